"""The request of `matex plan`: its options, with defaults filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from matex_tf import memory, settings
from matex_tf.launch.option_types import HERE
from matex_tf.world import placement


@dataclass(frozen=True)
class PlanRequest:
    """The request of `matex plan`. 0 and "" mean that the option is not given."""

    ranks: list[int]
    ranks_per_host: int
    network: str  # the network between hosts
    scaling: str
    target: float  # the minimum efficiency of the chosen number of ranks
    deadline: float  # the seconds that `epochs` epochs may take
    epochs: int
    epoch_steps: int
    memory: float  # the memory limit of a rank, in bytes
    steps: int  # the steps to train at each size of slices
    json: str
    chart: str
    hosts: Sequence[str] = ()  # hosts on which ranks are started to time the network
    batches: Sequence[int] = ()  # other global batches to predict, in rows
    strategy: str = ""  # MATEX_STRATEGY; it is priced in addition to the other strategies

    @property
    def copies(self) -> int:
        """The number of phantom ranks that are measured at once: the ranks of a host, at most one for each core here.

        A phantom rank is a process that runs the script as rank 0 of ranks that do not exist.
        """
        return max(1, min(self.ranks_per_host, len(placement.list_cores())))


def read_options(values: dict[str, Any]) -> PlanRequest:
    """Read the options of the command line, of which most have the names of the fields."""
    per_host = values["ranks_per_host"] or len(placement.list_cores())
    # HERE: "--memory here", an equal part of the free memory of this host.
    rank_bytes = memory.measure_free() / per_host if values["memory"] == HERE else values["memory"]
    defaults = settings.get_settings()
    given = {option.name: values[option.name] for option in fields(PlanRequest) if option.name in values}
    filled = {"ranks_per_host": per_host, "memory": rank_bytes, "scaling": values["scaling"] or defaults.scaling}
    return PlanRequest(**given | filled, strategy=defaults.strategy)
