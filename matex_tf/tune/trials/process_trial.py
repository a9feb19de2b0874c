"""Trials that run as child processes of this one, and end with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matex_tf.tune.trials.trial import (
    GRACE,
    OUTPUT,
    PLACE,
    Outcome,
    Rules,
    Slot,
    Trial,
    hold_folder,
    make_variables,
    remove_own_variables,
)
from matex_tf.world import child_process, mpirun_options, task_environment
from matex_tf.world.hosts import host_lists


class ProcessTrial(Trial):
    """A trial that is a child process, with its group of processes.

    It must be started in the main thread: the system ends a child with the thread that has started it
    (`child_process.make_preparation`). `rules`: when the trial ends, and how it is judged.
    """

    def __init__(self, folder: Path, command: Sequence[str], variables: Mapping[str, str], rules: Rules, slot: Slot):
        super().__init__(folder, rules)
        self._started_at = time.monotonic()
        environment = remove_own_variables(task_environment.remove_task_variables(os.environ))
        environment |= make_variables(folder, variables, rules)
        environment["MATEX_PASSED"] = " ".join(variables)  # names that mpirun passes on to ranks of other hosts
        if slot.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        if slot.part:  # such as "1/2": two trials share the hosts
            environment.setdefault("MATEX_PLACEMENT", f"spread:{slot.part}")
        if slot.hosts and "SLURM_JOB_ID" in environment:
            environment["SLURM_OVERLAP"] = "1"  # otherwise a Slurm step waits for the cores of another step
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # only reads this process's mask
        # The child inherits the lock of the folder, so that no second trial starts there while the child runs.
        with hold_folder(folder) as lock, (folder / OUTPUT).open("ab") as output:
            # Ctrl-C in the terminal goes to the search only, which then ends its trials.
            self._child = subprocess.Popen(
                command, cwd=folder / PLACE, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[lock],
                preexec_fn=child_process.make_preparation(mask, os.getpid(), slot.cpus),
            )  # fmt: skip

    @property
    def seconds(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_at

    def _find_outcome(self) -> Outcome | None:
        code = self._child.poll()
        if code is None:
            return None
        self._kill_group()  # processes that it has left behind
        return self.judge_outcome(code)

    def _request_stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGTERM)

    def _enforce_stop(self, waited_seconds: float) -> None:
        if waited_seconds > GRACE:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Processes:
    """Starts trials as processes: `matex run` with `ranks` ranks and `options` of `matex run` or mpirun."""

    matex: Sequence[str]
    ranks: int
    options: Sequence[str]

    def find_trial(self, folder: Path, rules: Rules) -> Trial | None:
        """The trial of a killed search: always None, because processes end with the search."""
        return None

    def start_trial(
        self, folder: Path, target: Sequence[str], variables: Mapping[str, str], rules: Rules, slot: Slot
    ) -> Trial:
        """Start a trial of `target` in its folder."""
        options = list(self.options)
        if slot.hosts:
            options = host_lists.replace_hosts(self.options, slot.hosts, mpirun_options.OPENMPI)
        command = [*self.matex, "run", "-n", str(self.ranks), *options, *target]
        return ProcessTrial(folder, command, variables, rules, slot)
