"""The options of a search."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from matex_tf.deploy.options import Options
from matex_tf.tune.trials.slots import make_slots
from matex_tf.tune.trials.trial import Slot


@dataclass(frozen=True)
class Settings:
    """The options of a search, recorded for its resumption."""

    trials: int = 50
    parallel: int = 1
    ranks: int = 1
    engine: str = "random"
    seed: int = 0
    limit: float = 0.0  # seconds of a trial, one run of the script; 0: no limit
    run: tuple[str, ...] = ()  # texts with further options of `matex run`
    warm_start: bool = True
    source: str = ""  # the folder in which the user runs the script
    name: str = "search"  # the name of the space file
    rungs: tuple[int, ...] = ()
    slurm: dict[str, Any] | None = None  # the options of trials that are jobs; None: trials run on this machine

    def __post_init__(self) -> None:
        Options(run=self.run)  # raises ValueError for options that trials set themselves
        if self.slurm and self.slurm.get("array"):
            raise ValueError("each trial is one job, and takes no array: --parallel says how many there are at a time")

    @property
    def options(self) -> list[str]:
        """The words of further options of `matex run`."""
        return [word for text in self.run for word in shlex.split(text)]

    def make_slots(self) -> list[Slot]:
        """The resources of each concurrent trial. Raises HostsError."""
        if self.slurm is not None:
            return [Slot()] * self.parallel
        return make_slots(self.parallel, self.ranks, self.options, self.source)
