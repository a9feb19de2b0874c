"""Cuts the quickest step out of files of MATEX_TIMELINE, for the picture of one step:

for way in off on; do MATEX_OVERLAP=$way MATEX_TIMELINE=$way.json matex run -n 2 docs/figures/train.py; done
python docs/figures/step_of_trace.py off.json on.json > docs/figures/data/timeline.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OTHERS = ("collective", "allgather", "broadcast", "announcement")
LEAVES = {"compute": "compute", "transfer": "transfer", "copy": "copy", **dict.fromkeys(OTHERS, "other")}
SLEEP = "gradients are still computed"
TITLES = ("all gradients at once (MATEX_OVERLAP=off)", "overlapped (MATEX_OVERLAP=on)")


def spans_between(events: list[dict[str, Any]], start: float, end: float) -> list[list[Any]]:
    """[kind, start, length] in milliseconds of what a thread did in the step; what lies within comes after."""
    found = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        kind = "wait" if event["cat"] == "wait" and event["name"] != SLEEP else LEAVES.get(event["cat"])
        begin, stop = max(event["ts"], start), min(event["ts"] + event["dur"], end)
        if kind and stop > begin:
            found.append([kind, round((begin - start) / 1000, 3), round((stop - begin) / 1000, 3)])
    return found


def quickest_step(path: Path, title: str) -> dict[str, Any]:
    """The lanes of the quickest step, from update to update of rank 0, in the second half of the run."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    ends = sorted(event["ts"] + event["dur"] for event in events if event["pid"] == 0 and event["cat"] == "update")
    ends = ends[len(ends) // 2 :]
    start, end = min(zip(ends, ends[1:]), key=lambda pair: pair[1] - pair[0])
    lanes = []
    for rank in (0, 1):
        for thread, name in enumerate(("script", "communication")):
            spans = spans_between([e for e in events if (e["pid"], e["tid"]) == (rank, thread)], start, end)
            if spans:
                lanes.append({"name": f"rank {rank}, {name}", "spans": spans})
    return {"title": title, "milliseconds": round((end - start) / 1000, 3), "lanes": lanes}


def main() -> int:
    ways = [quickest_step(Path(path), title) for path, title in zip(sys.argv[1:], TITLES)]
    machine = "two cores of a virtual machine beside other work, 2 ranks; the quickest step of the second epoch"
    print(json.dumps({"command": __doc__, "machine": machine, "tick": 10, "ways": ways}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
