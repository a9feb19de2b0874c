"""The request of `matex plan`, from its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matex_tf import memory, settings
from matex_tf.launch.planning.option_types import HERE
from matex_tf.world import placement


@dataclass(frozen=True)
class Asked:
    """The request of `matex plan`."""

    ranks: list[int]
    ranks_per_host: int
    network: str
    """The network between hosts, if named; else ""."""
    scaling: str
    target: float
    deadline: float
    epochs: int
    epoch_steps: int
    memory: float
    steps: int
    json: str
    chart: str
    hosts: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    strategy: str = ""
    """MATEX_STRATEGY; its number is priced in addition to others."""

    @property
    def copies(self) -> int:
        """The number of simultaneous phantom ranks: the ranks of a host, but at most one for each core here."""
        return max(1, min(self.ranks_per_host, len(placement.list_cores())))


def read_options(given: dict[str, Any]) -> Asked:
    """Read the options of the command line."""
    per_host = given["ranks_per_host"] or len(placement.list_cores())
    limit = memory.measure_free() / per_host if given["memory"] == HERE else given["memory"]
    return Asked(
        given["ranks"], per_host, given["network"],
        given["scaling"] or settings.get_settings().scaling, given["target"], given["deadline"] or 0.0,
        given["epochs"] or 1, given["epoch_steps"] or 0, limit, given["steps"], given["file"], given["chart"],
        split_hosts(given["hosts"]), tuple(given["batch"] or ()), settings.get_settings().strategy,
    )  # fmt: skip


def split_hosts(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
