"""Runs a script as a phantom rank, in concurrent copies, each in a mirror of the folder, and reads the measurements."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.files.mirror import make_mirror_command, mirror_folder
from matex_tf.observe import measured_steps
from matex_tf.planner.measurement import machine, started
from matex_tf.planner.measurement import steps as steps_of_events
from matex_tf.planner.measurement.steps import Steps
from matex_tf.planner.plan_file import Input, Size, Update, compute_typical_step

STEPS, LEAST = 25, 8
"""Steps at each size: default, and minimum, because the first steps do not count."""
LIMIT = measured_steps.LIMIT + 20
"""Seconds after which a process that has not ended is killed."""
SETTLED = 20
"""The number of last steps of real ranks that are measured. Before them ranks choose buckets and overlapping."""
SHOWN_LINES = 40
"""Last lines of output shown for a script that cannot be measured."""
_NOT_TAKEN = ("CHECK", "STATE", "TIMELINE", "PROFILE", "PROOF", "EXPLAIN", "ELASTIC", "COMPRESSION")


Launch = Callable[[Sequence[str], Mapping[str, str]], list[str]]
"""Makes the command line that starts the ranks, from a script with its arguments and the ranks' environment."""


class NotMeasured(RuntimeError):
    """The script could not be measured. The text says how far it came, and why.

    `updates`: number of updates that it did. `is_late`: it was too slow. `is_short`: it ended by itself too early.
    """

    def __init__(self, text: str = "", updates: int = 0, is_late: bool = False, is_short: bool = False):
        super().__init__(text)
        self.updates, self.is_late, self.is_short = updates, is_late, is_short


@dataclass(frozen=True)
class Measurement:
    """The measurement of one size, and values of the plan that are the same for all sizes."""

    size: Size
    steps: Steps
    overlaps: bool
    update: Update
    epoch_steps: int = 0
    """Steps of an epoch of the script alone; 0: unknown, for the reason `why_no_epoch`."""
    why_no_epoch: str = ""


def measure_copies(
    script: Sequence[str], ranks: int, copies: int, folder: Path, steps: int = STEPS, scaling: str = "strong",
    limits: Mapping[str, str] | None = None,
) -> Measurement:  # fmt: skip
    """Measure the script as rank 0 of `ranks`, in `copies` concurrent copies, within `limits` (`make_limits`).

    Raises:
        NotMeasured: the script fails, does not train, or ends before it has trained enough.
    """
    others = machine.Others()
    with contextlib.ExitStack() as at_end:
        processes = []
        for copy in range(copies):
            asked = make_copy_environment(f"{ranks}:{steps}:{copy}:{copies}:{folder}", scaling, limits=limits)
            processes.append(at_end.enter_context(_start_copy(script, copy, folder, asked)))
        codes = _await_copies(processes)
    busy = others.compute_share()
    found = []
    for copy, code in enumerate(codes):
        found.append(read_copy(folder, copy, code, ranks, steps))
    first = found[0][1]
    alike = [steps for _, steps, _ in found if steps.gradients == first.gradients]
    size = Size(
        ranks, copies, ceil(first.rows / ranks) if first.rows else 0,
        tuple(second for steps in alike for second in steps.seconds), first.ready, first.at,
        max(int(notes["base"]) for notes, _, _ in found), max(int(notes["peak"]) for notes, _, _ in found), busy,
        statistics.median(steps.update for steps in alike),
        _count_cores([float(notes["cores"]) for notes, _, _ in found]), first.bytes,
        read_input([notes for notes, _, _ in found]),
    )  # fmt: skip
    told, update = (json.loads(str(found[0][0][name])) for name in ("epoch", "update"))
    epoch = count_epoch_steps(told["batches"], told["given"], told["updates"] * first.share)
    return Measurement(size, first, found[0][2], Update(**update), epoch, told["why_not"])


def count_epoch_steps(batches: int, given: int, updates: float) -> int:
    """Steps of an epoch of `batches` batches, if `given` batches made `updates` steps; 0: unknown.

    A step may take several batches, whose gradients accumulate, and a batch may make several steps.
    """
    if not batches or not given or not updates:
        return 0
    return round(batches * round(updates / given)) if updates > given else ceil(batches / round(given / updates))


def read_input(of_copies: Sequence[Mapping[str, Any]]) -> Input | None:
    """The mean over the copies with a measurement; the data of other copies may have ended."""
    told = [json.loads(str(notes["input"])) for notes in of_copies]
    known = [Input(**one) for one in told if one is not None]
    if not known:
        return None
    seconds, size = (statistics.mean(getattr(one, name) for one in known) for name in ("seconds", "bytes"))
    return Input(seconds, size)


def _count_cores(of_copies: Sequence[float]) -> float | None:
    """The largest number of busy cores of a copy; None if steps were too short to measure it."""
    return None if any(map(math.isnan, of_copies)) else max(of_copies)


def measure_real(
    launch: Launch, script: Sequence[str], folder: Path, steps: int, scaling: str,
    limits: Mapping[str, str] | None = None, is_here: bool = True,
) -> float:  # fmt: skip
    """The typical step, in seconds, of `script` on the ranks that `launch` starts. `is_here`: all ranks are on this
    host.

    Raises:
        NotMeasured: as `measure_copies`.
    """
    place, source = folder / "place-0", Path.cwd().resolve()
    mirror_folder(source, place)
    asked = make_copy_environment(f"0:{steps}:0:1:{folder}", scaling, "auto", limits, is_here)
    words = launch(make_copy_command(script, source, place)[3:], asked)
    until = time.monotonic() + LIMIT
    with _start_in(words, place, asked, folder / "said-0", started.PATIENCE) as process:
        while process.poll() is None and time.monotonic() < until and not (folder / "copy-0.npz").exists():
            time.sleep(0.1)
    notes, found, _ = read_copy(folder, 0, process.returncode, 0, steps)
    if (seen := int(notes["updates"])) < steps:
        print(
            f"matex: only {seen} of {steps} steps were recorded; ranks may still have been choosing how to reduce",
            file=sys.stderr,
        )
    return compute_typical_step(found.seconds[-SETTLED:])


def make_copy_command(script: Sequence[str], source: Path, place: Path) -> list[str]:
    """The command that runs `script` in `place`, the mirror of `source`."""
    return [sys.executable, "-m", "matex_tf", *make_mirror_command(script, source, place)]


def make_limits(memory: float, microbatch: int) -> dict[str, str]:
    """Environment variables for a memory limit in bytes and microbatches of `microbatch` rows.

    Zeros (no limit, no microbatches) are set as well: the environment may differ from that of the plan.
    """
    parts = "auto" if microbatch == settings.AUTO else str(microbatch)
    return {"MATEX_MEMORY": f"{memory:.0f}", "MATEX_MICROBATCH": parts}


def make_copy_environment(
    plan: str, scaling: str, overlap: str = "on", limits: Mapping[str, str] | None = None, is_here: bool = True
) -> dict[str, str]:
    """The environment of a measured process, with the settings `plan` and `scaling`; its files are next to its results.

    So are its temporary files, if it runs on this host, because it may be killed before it removes them.
    """
    kept = {name: value for name, value in os.environ.items() if name not in {f"MATEX_{one}" for one in _NOT_TAKEN}}
    folder = plan.split(":", 4)[4]
    own = {"MATEX_PLAN": plan, "MATEX_SCALING": scaling, "MATEX_FILES_DIR": folder, "MATEX_QUIET": "1"}
    if is_here:
        own["TMPDIR"] = os.path.join(folder, "temporary")
        os.makedirs(own["TMPDIR"], exist_ok=True)
    return {"MATEX_OVERLAP": overlap, **kept, **own, **(limits or {}), "TF_CPP_MIN_LOG_LEVEL": "2"}


def _start_copy(
    script: Sequence[str], copy: int, folder: Path, asked: Mapping[str, str]
) -> contextlib.AbstractContextManager[subprocess.Popen[Any]]:
    place, source = folder / f"place-{copy}", Path.cwd().resolve()
    mirror_folder(source, place)
    return _start_in(make_copy_command(script, source, place), place, asked, folder / f"said-{copy}")


@contextlib.contextmanager
def _start_in(
    words: Sequence[str], place: Path, asked: Mapping[str, str], said: Path, patience: float = 0.0
) -> Iterator[subprocess.Popen[Any]]:
    """Start a process in the folder `place`, with its output in the file `said`."""
    with (
        said.open("wb") as out,
        started.start_process(words, patience, cwd=place, env=asked, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        yield process


def _await_copies(processes: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    until = time.monotonic() + LIMIT
    codes: list[int | None] = []
    for process in processes:
        try:
            codes.append(process.wait(max(until - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            codes.append(None)
    return codes


def read_copy(
    folder: Path, copy: int, code: int | None, ranks: int, asked: int = STEPS
) -> tuple[dict[str, Any], Steps, bool]:
    """Read the results of one copy that was asked for `asked` steps: notes, steps, and whether gradients were handed
    over one by one.

    Raises:
        NotMeasured: as `measure_copies`.
    """
    said = (folder / f"said-{copy}").read_text(errors="replace") if (folder / f"said-{copy}").exists() else ""
    file = folder / f"copy-{copy}.npz"
    notes = dict(np.load(file, allow_pickle=False)) if file.exists() else {}
    updates = int(notes.get("updates", 0))
    steps = steps_of_events.find_steps(notes["events"], notes["labels"].tolist(), notes["called"]) if notes else None
    if steps is not None and (code == 0 or len(steps.seconds) >= steps_of_events.FIRST):
        return notes, steps, bool(notes["overlaps"])
    is_late = code is None or bool(notes.get("is_late"))
    if is_late:
        why = f"it had not reached {asked} steps after {measured_steps.LIMIT} s"
    elif code == -signal.SIGKILL:
        why = "it was killed, probably because memory ran out (MATEX_MICROBATCH=auto computes slices in parts)"
    elif code:
        why = f"it failed with exit code {code}"
    elif updates:
        why = "it ended before it had trained enough; give it more epochs or data, some 10 steps"
    else:
        why = "it ended; name the script that trains"
    if not notes:
        reached = "its progress is not known"
    elif not notes["has_tensorflow"]:
        reached = "it had not imported TensorFlow"
    elif not updates and len(notes["called"]):
        reached = (
            "it had trained, but every rank computes the whole of each step, so that ranks make it no faster: `matex "
            "run --explain` says why"
        )
    elif not updates:
        reached = "it had imported TensorFlow, and no gradients had been reduced: nothing was trained"
    else:
        reached = f"it had trained for {updates} steps, the first {steps_of_events.FIRST} of which do not count"
    last = "\n".join(said.strip().splitlines()[-SHOWN_LINES:])
    text = f"as rank 0 of {ranks} the script cannot be measured: {why}; {reached}.\n{last}".rstrip()
    raise NotMeasured(text, updates, is_late, code == 0 and not is_late)
