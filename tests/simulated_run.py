"""A run's folder as ranks that are not there would have written it."""

from __future__ import annotations

import json
from pathlib import Path

BEGAN = 1_700_000_000.0
PER_HOST = 8


def start(folder: Path, ranks: int, samples: int, slow: int | None = None, number: int = 1, end: str = "ended",
          began: float = BEGAN, seconds: float = 1.0, per_host: int = PER_HOST, gpu: bool = False) -> Path:  # fmt: skip
    """A start of `ranks` with so many samples each; rank `slow` computes longer, and the others wait for it."""
    where = folder / f"start-{number}"
    where.mkdir(parents=True)
    about = {
        "format": 1, "token": "0", "at": began, "command": ["/home/me/train.py", "--epochs", "9"], "python": "python",
        "folder": "/home/me", "hosts": [f"n{rank // per_host:03}" for rank in range(ranks)], "scaling": "strong",
        "versions": {"matex_tf": "0"}, "settings": {"MATEX_RECORD_SECONDS": str(seconds)},
    }  # fmt: skip
    (where / "start.json").write_text(json.dumps(about))
    for rank in range(ranks):
        lines = [json.dumps(sample(rank, slow, second * seconds, began, gpu)) for second in range(samples)]
        if end:
            lines[-1] = lines[-1][:-1] + f', "end": "{end}"}}'
        (where / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return where


def sample(rank: int, slow: int | None, second: float, began: float, gpu: bool = False) -> dict:
    """What `rank` has counted `second` seconds after the start: 20 steps of 50 ms a second, of 64 rows, 5 ms of each in
    waiting for the input.
    """
    steps, late = int(second * 20), 0.01 if rank == slow else 0.0
    has_slow = slow is not None
    waits = 0.004 if has_slow and rank == slow else 0.014 if has_slow else 0.004
    one = {
        "t": began + second, "cpu": second * (1 + rank % 4 / 10),
        "mem": 10**9 + int(second) * 10**5,
        "busy": second * 12.5, "free": 10**10, "rx": int(second * 2e6), "tx": int(second * 1e6),
        "up": steps, "rows": steps * 64,
        "com": steps * (0.03 + late), "wait": steps * waits, "sum": steps * 0.006, "st": steps,
        "in": steps * 0.005, "read": int(second * 3e6),
    }  # fmt: skip
    return {**one, "gpu": 90.0, "vram": 4 * 10**9} if gpu else one


def write_events(where: Path, name: str, *events: dict) -> None:
    """A file of events."""
    (where / name).write_text("".join(json.dumps(event) + "\n" for event in events))
