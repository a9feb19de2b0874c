"""Measures the steps of a script as one of N ranks, on a machine without the other ranks.

A phantom rank is a process that runs the script as rank 0 of N ranks, without the others; MATEX_PLAN contains N. The
ranks of a host share its cores, so as many copies of the process run at once as a host has ranks. Copy number K stores
its measurements, here called notes, in the file copy-K.npz (`observe.measured_steps.Measured.store_steps`). It runs in
a mirror of the user's folder, so that it writes files of its own. `matex plan --check` also measures real ranks.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
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
from matex_tf.monitor.machine import parse_busy_seconds
from matex_tf.observe import measured_steps
from matex_tf.planner.measurement import started
from matex_tf.planner.measurement import steps as steps_of_events
from matex_tf.planner.measurement.steps import Steps
from matex_tf.planner.plan_file import Input, Size, Update

STEPS, LEAST = 25, 8
"""Updates that a process makes: the default, and the minimum. The first `steps.FIRST` (3) updates do not count, and a
step lasts from one update to the next. So 8 updates give about 4 steps.
"""
LIMIT = measured_steps.LIMIT + 20
"""Seconds after which a process is killed. It ends itself after `measured_steps.LIMIT`, if it can."""
SETTLED_STEPS = 20
"""The number of last steps of real ranks that are measured. In earlier steps ranks choose buckets and overlapping."""
SHOWN_LINES = 40
"""Last lines of output shown for a script that cannot be measured."""
# Settings of the user's environment that would change a measured process (COMPRESSION), or let it write to files of the
# user (LOG_DIR).
_NOT_INHERITED = (
    "CHECK", "STATE", "TIMELINE", "PROFILE", "PROOF", "EXPLAIN", "ELASTIC", "COMPRESSION", "DISABLE", "OUTPUT",
    "LOG_DIR", "RECORD",
)  # fmt: skip


Launch = Callable[[Sequence[str], Mapping[str, str]], list[str]]
"""Makes the command line that starts the ranks, from a script with its arguments and the ranks' environment."""


class NotMeasured(RuntimeError):
    """The script could not be measured. The text gives the reason and the progress of the script.

    `updates`: the number of its updates of weights. `is_late`: it was too slow. `is_short`: it ended too early.
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
    """Whether gradients became ready one by one, as `Plan.overlaps`."""
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
    for copy in range(copies):  # before the first copy starts, so that all run at the same time
        _make_mirror(folder, copy)
    begun_at, other_seconds_before = time.monotonic(), _count_other_seconds()
    with contextlib.ExitStack() as exit_stack:
        processes = []
        for copy in range(copies):
            environment = _make_environment(f"{ranks}:{steps}:{copy}:{copies}", folder, scaling, limits)
            processes.append(exit_stack.enter_context(_start_copy(script, copy, folder, environment)))
        exit_codes = _await_ends(processes)
    core_seconds = (time.monotonic() - begun_at) * (os.cpu_count() or 1)
    # The share of the machine's cores that other processes used.
    busy_share = min(max(_count_other_seconds() - other_seconds_before, 0.0) / core_seconds, 1.0)
    results = [read_copy(folder, copy, exit_code, ranks, steps) for copy, exit_code in enumerate(exit_codes)]
    all_notes = [notes for notes, _, _ in results]
    first_notes, first_steps, overlaps = results[0]
    cores = [float(notes["cores"]) for notes in all_notes]  # NaN: steps were too short to measure them
    # Times of copies with other gradients than copy 0 are not comparable.
    comparable_steps = [copy_steps for _, copy_steps, _ in results if copy_steps.gradients == first_steps.gradients]
    size = Size(
        ranks=ranks, copies=copies, rows=ceil(first_steps.rows / ranks) if first_steps.rows else 0,
        steps=tuple(seconds for copy_steps in comparable_steps for seconds in copy_steps.seconds),
        ready=first_steps.ready, at=first_steps.at, base_bytes=max(int(notes["base"]) for notes in all_notes),
        peak_bytes=max(int(notes["peak"]) for notes in all_notes), busy=busy_share,
        update=statistics.median(copy_steps.update for copy_steps in comparable_steps),
        cores=None if any(map(math.isnan, cores)) else max(cores), bytes=first_steps.bytes, input=read_input(all_notes),
    )  # fmt: skip
    epoch, update = (json.loads(str(first_notes[name])) for name in ("epoch", "update"))
    # If a script trains several models, only the fraction `share` of its updates end a step.
    epoch_steps = count_epoch_steps(epoch["batches"], epoch["given"], epoch["updates"] * first_steps.share)
    return Measurement(size, first_steps, overlaps, Update(**update), epoch_steps, epoch["why_not"])


def _count_other_seconds() -> float:
    """Core seconds since the boot of the machine that were neither idle nor spent by this process and its children.

    The seconds of a child are known after its end.
    """
    own_usage = [resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_seconds = sum(usage.ru_utime + usage.ru_stime for usage in own_usage)
    return parse_busy_seconds(Path("/proc/stat").read_bytes()) - own_seconds


def count_epoch_steps(batches: int, batches_taken: int, updates: float) -> int:
    """Steps of an epoch of `batches` batches, if the measured `updates` took `batches_taken` batches; 0: unknown."""
    if not batches or not batches_taken or not updates:
        return 0
    if updates > batches_taken:  # a batch makes several steps
        return round(batches * round(updates / batches_taken))
    return ceil(batches / round(batches_taken / updates))  # a step takes several batches, whose gradients accumulate


def read_input(notes_of_copies: Sequence[Mapping[str, Any]]) -> Input | None:
    """The mean over the copies that measured their input; None if no copy did, as its data may have ended too early."""
    input_costs = [json.loads(str(notes["input"])) for notes in notes_of_copies]
    measured_inputs = [Input(**cost) for cost in input_costs if cost is not None]
    if not measured_inputs:
        return None
    return Input(
        statistics.mean(cost.seconds for cost in measured_inputs),
        statistics.mean(cost.bytes for cost in measured_inputs),
    )


def measure_real(
    launch: Launch, script: Sequence[str], folder: Path, steps: int, scaling: str,
    limits: Mapping[str, str] | None = None, is_here: bool = True,
) -> float:  # fmt: skip
    """The typical seconds of a step of `script` on the ranks that `launch` starts, for `matex plan --check`. `is_here`:
    all ranks are on this host.

    Raises:
        NotMeasured: as `measure_copies`.
    """
    # RANKS = 0 in MATEX_PLAN means that real ranks are measured. Rank R then stores copy-R.npz; rank 0's file is read.
    environment = _make_environment(f"0:{steps}:0:1", folder, scaling, limits, overlap="auto", is_here=is_here)
    _make_mirror(folder, 0)
    with _start_copy(script, 0, folder, environment, launch) as process:
        _await_ends([process], folder / "copy-0.npz")  # then the end of the context ends ranks that still run
    notes, real_steps, _ = read_copy(folder, 0, process.returncode, 0, steps)
    if (recorded_steps := int(notes["updates"])) < steps:
        print(
            f"matex: only {recorded_steps} of {steps} steps were recorded; ranks may still have been choosing how to "
            "reduce",
            file=sys.stderr,
        )
    return statistics.median(real_steps.seconds[-SETTLED_STEPS:])


def make_limits(memory: float, microbatch: int) -> dict[str, str]:
    """Environment variables for a memory limit in bytes and microbatches of `microbatch` rows.

    Zeros (no limit, no microbatches) are set as well, because the user's environment may have other values.
    """
    microbatch_text = "auto" if microbatch == settings.AUTO else str(microbatch)
    return {"MATEX_MEMORY": f"{memory:.0f}", "MATEX_MICROBATCH": microbatch_text}


def inherit_environment() -> dict[str, str]:
    """The environment of this process for a process that is measured, without `_NOT_INHERITED`."""
    not_inherited = {f"MATEX_{name}" for name in _NOT_INHERITED}
    return {name: value for name, value in os.environ.items() if name not in not_inherited}


def _make_environment(
    plan: str, folder: Path, scaling: str, limits: Mapping[str, str] | None, overlap: str = "on", is_here: bool = True
) -> dict[str, str]:
    """The environment of a measured process. Creates the folder of its temporary files.

    A process that is killed does not remove its files. So its private files are in `folder`, which the caller removes.
    On this host its temporary files are also there.

    Args:
        plan: the value of MATEX_PLAN without the folder, "RANKS:STEPS:COPY:COPIES" (`settings.Phantom`).
        limits: further variables (`make_limits`).
        overlap: MATEX_OVERLAP, if the user's environment does not set it. "on" for phantoms: only overlapped updates
            record when each gradient is ready.
        is_here: the process runs on this host. Otherwise hosts share `folder`, and temporary files stay on each host.
    """
    plan_variables = {"MATEX_PLAN": f"{plan}:{folder}", "MATEX_SCALING": scaling, "MATEX_FILES_DIR": str(folder)}
    if is_here:
        plan_variables["TMPDIR"] = str(folder / "temporary")
        os.makedirs(plan_variables["TMPDIR"], exist_ok=True)
    quiet_variables = {"MATEX_QUIET": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return {"MATEX_OVERLAP": overlap, **inherit_environment(), **plan_variables, **(limits or {}), **quiet_variables}


def _make_mirror(folder: Path, copy: int) -> None:
    """Mirror the current folder for copy number `copy`. The plan's `folder` may be in it, and is left out."""
    mirror_folder(Path.cwd().resolve(), folder / f"place-{copy}", [folder])


@contextlib.contextmanager
def _start_copy(
    script: Sequence[str], copy: int, folder: Path, environment: Mapping[str, str], launch: Launch | None = None
) -> Iterator[subprocess.Popen[Any]]:
    """Start the script as copy number `copy`, or on the ranks of `launch`, in its mirror of the current folder."""
    mirror = folder / f"place-{copy}"
    target = make_mirror_command(script, Path.cwd().resolve(), mirror)
    command = launch(target, environment) if launch else [sys.executable, "-m", "matex_tf", *target]
    with (
        (folder / f"said-{copy}").open("wb") as output,
        started.start_process(
            command, started.PATIENCE if launch else 0.0, cwd=mirror, env=environment, stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):  # fmt: skip
        yield process


def _await_ends(processes: Sequence[subprocess.Popen[Any]], result_path: Path | None = None) -> list[int | None]:
    """Wait until all processes have ended, or the file `result_path` of real ranks exists, at most `LIMIT` seconds.

    Returns the exit code of each process; None if it has not ended.
    """
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline and not (result_path and result_path.exists()):
        if None not in [process.poll() for process in processes]:
            break
        time.sleep(0.1)
    return [process.returncode for process in processes]


def read_copy(
    folder: Path, copy: int, code: int | None, ranks: int, requested_steps: int = STEPS
) -> tuple[dict[str, Any], Steps, bool]:
    """Read the results of one copy that was to make `requested_steps` steps.

    Returns (its notes, its steps, whether gradients became ready one by one).

    Args:
        code: its exit code; None if it was killed at `LIMIT`.

    Raises:
        NotMeasured: as `measure_copies`.
    """
    output = (folder / f"said-{copy}").read_text(errors="replace") if (folder / f"said-{copy}").exists() else ""
    notes_path = folder / f"copy-{copy}.npz"
    notes = dict(np.load(notes_path, allow_pickle=False)) if notes_path.exists() else {}
    updates = int(notes.get("updates", 0))
    steps = steps_of_events.find_steps(notes["events"], notes["labels"].tolist(), notes["called"]) if notes else None
    # A copy that failed or was killed also counts if it had recorded enough steps before.
    if steps is not None and (code == 0 or len(steps.seconds) >= steps_of_events.FIRST):
        return notes, steps, bool(notes["overlaps"])
    is_late = code is None or bool(notes.get("is_late"))
    reason = _explain_end(code, is_late, updates, requested_steps)
    last_lines = "\n".join(output.strip().splitlines()[-SHOWN_LINES:])
    progress = _describe_progress(notes, updates)
    message = f"as rank 0 of {ranks} the script cannot be measured: {reason}; {progress}.\n{last_lines}".rstrip()
    raise NotMeasured(message, updates, is_late, code == 0 and not is_late)


def _explain_end(exit_code: int | None, is_late: bool, updates: int, requested_steps: int) -> str:
    """Why a copy that cannot be measured ended."""
    if is_late:
        return f"it had not reached {requested_steps} steps after {measured_steps.LIMIT} s"
    if exit_code == -signal.SIGKILL:
        return "it was killed, probably because memory ran out (MATEX_MICROBATCH=auto computes slices in parts)"
    if exit_code:
        return f"it failed with exit code {exit_code}"
    if updates:
        return "it ended before it had trained enough; give it more epochs or data, some 10 steps"
    return "it ended; name the script that trains"


def _describe_progress(notes: Mapping[str, Any], updates: int) -> str:
    """How far a copy that cannot be measured came."""
    if not notes:
        return "its progress is not known"
    if not notes["has_tensorflow"]:
        return "it had not imported TensorFlow"
    if updates:
        return f"it had trained for {updates} steps, the first {steps_of_events.FIRST} of which do not count"
    if len(notes["called"]):  # steps changed weights, although no gradients were summed
        return (
            "it had trained, but every rank computes the whole of each step, so that ranks make it no faster: `matex "
            "run --explain` says why"
        )
    return "it had imported TensorFlow, and no gradients had been reduced: nothing was trained"
