"""What happens when a rank ends at any moment, in any way: see docs/reliability.md.

    python benchmarks/faults.py [--ranks 2] [--times 1] [--only WORDS] [--ways 8]

Each line starts `matex run`, ends one rank at the moment named, in each of the ways that are possible there, and looks:
is the exit code something other than 0, does what is printed name rank and host, and after how many seconds; after how
many seconds is every process gone; are the files that were being saved whole, the old ones or the new.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

WORKER = Path(__file__).resolve().with_name("faults_worker.py")
KILLS = ("SIGKILL", "SIGSEGV")
ENDS = (*KILLS, "os._exit(0)", "os._exit(3)")
ALL = (*ENDS, "_exit(0) in C", "an exception", "SIGABRT", "SIGTERM")
SAVED = (".keras", ".weights.h5", "Checkpoint", "SavedModel", "v1 Saver")
# (the moment, the rank that ends, the ways)
TABLE = [
    ("import of mpi4py", "1", KILLS),
    ("import of TensorFlow", "1", ALL),
    ("building the ops", "any", ENDS),
    ("comparing variables at the start", "1", ALL),
    ("between steps (fit)", "1", ALL),
    ("in a step (fit)", "1", ALL),
    ("in a step (loop)", "1", ALL),
    ("in a step (overlapped)", "1", ALL),
    ("in a step (overlapped)", "0", KILLS),
    ("end of an epoch", "0", ALL),
    ("reader's read", "1", ALL),
    *((f"saving {what}", "0", ("SIGKILL", "os._exit(3)")) for what in SAVED),
    *((f"saving {what}", "1", ("SIGKILL", "_exit(0) in C")) for what in SAVED),
    ("end of the script", "1", ALL),
    ("after the meeting at the end", "1", KILLS),
    ("after the end of MPI", "1", KILLS),
    ("at random", "random", ("SIGKILL", "SIGABRT", "SIGBUS", "SIGTERM", "os._exit(3)")),
]
PATIENCE = 400
SPAN = 60.0  # seconds from the start of a rank, in which it imports, starts, traces, trains and saves


@dataclass
class Outcome:
    """How one run ended; seconds are counted from the fault, None where there was no such moment."""

    code: int
    told: float | None
    gone: float | None
    files: str
    output: str

    @property
    def is_well(self) -> bool:
        there = self.told is not None and self.gone is not None and self.gone <= 10
        return there and self.code != 0 and "torn" not in self.files


def values(folder: Path, what: str) -> set[float]:
    """The values in the file that was being saved; an error if it is no whole file."""
    import numpy as np
    import tensorflow as tf

    if what == ".keras":
        found = tf.keras.models.load_model(folder / "model.keras", compile=False).get_weights()[0]
    elif what == ".weights.h5":
        import h5py

        with h5py.File(folder / "model.weights.h5") as file:
            kept: list = []
            file.visititems(lambda name, item: kept.append(item[()]) if isinstance(item, h5py.Dataset) else None)
            (found,) = kept
    elif what == "SavedModel":
        loaded = tf.saved_model.load(str(folder / "saved"))
        found = loaded.read().numpy()
    else:
        reader = tf.train.load_checkpoint(str(folder / ("v1" if what == "v1 Saver" else "written")))
        (name,) = [name for name in reader.get_variable_to_shape_map() if "value" in name]
        found = reader.get_tensor(name)
    return set(np.unique(found).tolist())


def is_whole(path: Path) -> bool:
    """Whether every array of the HDF5 file at `path` can be read."""
    import h5py

    try:
        with h5py.File(path) as file:
            file.visititems(lambda name, item: item[()] if isinstance(item, h5py.Dataset) else None)
    except OSError:
        return False
    return True


def state_of_files(folder: Path, moment: str) -> str:
    """Which one is there where a whole file is, the old or the new; else "torn" and why."""
    if moment == "at random" and (folder / "model.weights.h5").exists():
        return "whole" if is_whole(folder / "model.weights.h5") else "torn"
    if not moment.startswith("saving "):
        return ""
    try:
        found = values(folder, moment.removeprefix("saving "))
    except Exception as error:
        return f"torn: {type(error).__name__}: {str(error)[:200]}"
    return {frozenset({1.0}): "old", frozenset({2.0}): "new"}.get(frozenset(found), f"torn: {found}")


def inject(ranks: int, moment: str, kind: str, rank: str) -> Outcome:
    """One run with one fault."""
    rank = str(random.randrange(ranks)) if rank == "random" else rank
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        folder, notes, site, cache = (Path(temporary, name) for name in ("folder", "notes", "site", "cache"))
        for each in (folder, notes, site, cache):
            each.mkdir()
        (folder / "table.csv").write_text("x,y\n" + "1.5,2\n" * 20000)
        (site / "sitecustomize.py").write_text(
            f"import sys\nsys.path.append({str(WORKER.parent)!r})\nimport faults_worker\nfaults_worker.arm()\n"
        )
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": str(site), "FAULT": f"{moment}:{kind}:{rank}",
            "FAULT_NOTES": str(notes), "FAULT_SECONDS": str(random.uniform(0, SPAN)),
            "MATEX_OVERLAP": "on" if "overlapped" in moment else "off",
        }  # fmt: skip
        if moment == "building the ops":
            environment["MATEX_CACHE_DIR"] = str(cache)
        child = subprocess.Popen(
            [sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", str(ranks), str(WORKER), str(folder)],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        printed: list[tuple[float, str]] = []
        reader = threading.Thread(
            target=lambda: printed.extend((time.time(), line) for line in child.stdout), daemon=True
        )
        reader.start()
        try:
            code = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            code = 0  # a hang is no end
        reader.join(20)
        pids = [path.name.partition("-")[2] for path in notes.glob("process-*")]
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.time() < printed_end(printed) + 30:
            time.sleep(0.05)
        ended = time.time()
        text = "".join(line for _, line in printed)
        if not (notes / "fault").exists():
            return Outcome(code, None, None, "the moment did not come", text)
        when, who = (notes / "fault").read_text().split()
        told = seconds_to_the_message(printed, who)
        return Outcome(
            code,
            None if told is None else max(told - float(when), 0.0),
            ended - float(when),
            state_of_files(folder, moment),
            text,
        )


def printed_end(printed: list[tuple[float, str]]) -> float:
    return printed[-1][0] if printed else time.time()


def seconds_to_the_message(printed: list[tuple[float, str]], rank: str) -> float | None:
    """When the text printed so far first named rank and host."""
    # mpirun breaks its lines.
    named = re.compile(rf"rank {rank}\b.{{0,60}}\b{re.escape(socket.gethostname().split('.')[0])}\b")
    text = ""
    for when, line in printed:
        text += f" {' '.join(line.split())}"
        if named.search(text):
            return when
    return None


def line(moment: str, rank: str, outcomes: list[tuple[str, Outcome]]) -> str:
    """The table's line for one moment."""
    kinds = ", ".join(dict.fromkeys(kind for kind, _ in outcomes))
    runs = [outcome for _, outcome in outcomes]
    well = sum(outcome.is_well for outcome in runs)
    codes = " ".join(map(str, sorted({outcome.code for outcome in runs})))
    told = max((outcome.told for outcome in runs if outcome.told is not None), default=float("nan"))
    gone = max((outcome.gone for outcome in runs if outcome.gone is not None), default=float("nan"))
    files = ", ".join(f"{count} {what}" for what, count in sorted(Counter(o.files for o in runs if o.files).items()))
    return f"| {moment} | {rank} | {kinds} | {len(runs)} | {well} | {codes} | {told:.1f} | {gone:.1f} | {files} |"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--ranks", type=int, default=2)
    asked.add_argument("--times", type=int, default=1)
    asked.add_argument("--only", default="", help="moments that have this in their name")
    asked.add_argument("--ways", type=int, default=len(ALL), help="at most so many for each moment")
    options = asked.parse_args()
    print("| moment | rank | ways | tried | well | exit codes | message, s | all gone, s | files |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    bad = 0
    for moment, rank, kinds in TABLE:
        if options.only not in moment:
            continue
        outcomes = [
            (kind, inject(options.ranks, moment, kind, rank))
            for _ in range(options.times)
            for kind in kinds[: options.ways]
        ]
        print(line(moment, rank, outcomes), flush=True)
        for kind, outcome in outcomes:
            if not outcome.is_well:
                bad += 1
                print(f"{moment}, {kind}: {outcome}", file=sys.stderr, flush=True)
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
