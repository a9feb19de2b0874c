"""Trials that are processes of this one, in one place of several that run at once; they end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matex_tf.tune.objective import Objective
from matex_tf.tune.trials.trial import (
    GRACE,
    OUTPUT,
    PLACE,
    WHOLE,
    Outcome,
    Slot,
    Trial,
    hold_folder,
    make_variables,
    remove_own_variables,
)
from matex_tf.world import child_process, mpirun_options, task_environment
from matex_tf.world.hosts import host_lists


class ProcessTrial(Trial):
    """A trial that runs as `words`.

    To be made in the main thread: a trial ends with the thread that has started it.
    """

    def __init__(
        self, folder: Path, words: Sequence[str], variables: Mapping[str, str], objective: Objective,
        slot: Slot = WHOLE, limit: float = 0.0, pause: int | None = None,
    ):  # fmt: skip
        super().__init__(folder, objective, limit, pause)
        self._began = time.monotonic()
        environment = remove_own_variables(task_environment.remove_task_variables(os.environ))
        environment |= make_variables(folder, variables, pause)
        if slot.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        if slot.part:
            environment.setdefault("MATEX_PLACEMENT", f"spread:{slot.part}")
        if slot.hosts and "SLURM_JOB_ID" in environment:
            environment["SLURM_OVERLAP"] = "1"  # else a step waits for the cores that another one has
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with hold_folder(folder) as lock, (folder / OUTPUT).open("ab") as output:
            # Ctrl-C at the terminal is for the search, which then ends its trials.
            self._child = subprocess.Popen(
                words, cwd=folder / PLACE, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[lock],
                preexec_fn=child_process.make_preparation(mask, os.getpid(), slot.cpus),
            )  # fmt: skip

    @property
    def seconds(self) -> float:
        """For how long it has run."""
        return time.monotonic() - self._began

    def poll(self) -> Outcome | None:
        """What became of it; None while it runs. One that is over its time is told to end."""
        code = self._child.poll()
        if code is not None:
            self._end_group(signal.SIGKILL)  # what it has left behind
            return self.judge_outcome(code)
        if self._told is None and self.seconds > self.limit:
            self.stop_trial(f"longer than {self.limit:g} s")
        elif self._told is not None and time.monotonic() - self._told > GRACE:
            self._end_group(signal.SIGKILL)
        return None

    def stop_trial(self, why: str) -> None:
        """Tell it to end: `why` is empty where the search itself is to end."""
        if self._told is None:
            self._told, self._why = time.monotonic(), why
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGTERM)

    def _end_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


@dataclass(frozen=True)
class Processes:
    """Starts trials as processes: `matex run` with `ranks` ranks and `options` of its own or of mpirun."""

    matex: Sequence[str]
    ranks: int
    options: Sequence[str]

    def find_trial(self, folder: Path, objective: Objective, limit: float, pause: int | None) -> Trial | None:
        """The trial of a search that was killed: none, as its trials have ended with it."""
        return None

    def start_trial(
        self, folder: Path, target: Sequence[str], variables: Mapping[str, str], objective: Objective, slot: Slot,
        limit: float, pause: int | None,
    ) -> Trial:  # fmt: skip
        """Start a trial of `target` in its folder."""
        told = [word for name in variables for word in ("-x", name)] if slot.hosts else []  # to other hosts
        words = [*self.matex, "run", "-n", str(self.ranks), *self.make_options(slot), *told, *target]
        return ProcessTrial(folder, words, variables, objective, slot, limit, pause)

    def make_options(self, slot: Slot) -> list[str]:
        """The options of a trial, which name the hosts that it has for itself."""
        if not slot.hosts:
            return list(self.options)
        return host_lists.replace_hosts(self.options, slot.hosts, mpirun_options.OPENMPI)
