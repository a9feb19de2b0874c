"""What `matex run` and the ranks tell each other of changes (`--adapt=ranks`), by files in the run's private folder.

`matex run` offers what the run could go on with. Ranks that have kept their state for a change say which, and end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matex_tf import settings
from matex_tf.runtime import rank_records, real_files
from matex_tf.world import world

_OFFER, _CHANGE = "offer", "change"


@dataclass(frozen=True)
class Offer:
    """What the run could be started with, from its kept state."""

    ranks: int
    seconds: float
    """What that takes until the first step."""
    must: str = ""
    """Why the run is to leave where it is, whatever that costs; empty where it may stay."""
    may_choose: bool = False
    """Whether the strategy is the ranks' to choose."""
    took: float = 0.0
    """What a step took before the last change, in seconds; 0 where none is to be undone."""
    undone: str = ""
    """What there would be if it were."""
    keep: Sequence[str] = field(default_factory=list)
    """The hosts on which there is not to be a rank less."""


@dataclass(frozen=True)
class Change:
    """What the run is to go on with."""

    ranks: int
    what: str
    why: str
    strategy: str | None = None
    """None: the one that it has."""
    without: str = ""
    """The host on which there is to be a rank less."""
    where: str = ""
    """The place in the script whose state was kept."""
    seconds: float = 0.0
    """What keeping it took."""
    must: bool = False
    """Whether the ranks had to leave."""
    took: float = 0.0
    """What a step took before, in seconds."""
    undoes: bool = False
    """Whether it only takes back the last one."""


def describe_ranks(ranks: int, before: int) -> str:
    return f"{ranks} rank{'' if ranks == 1 else 's'} in place of {before}"


def write_offer(offer: Offer, folder: str | os.PathLike[str]) -> None:
    """For `matex run`."""
    rank_records.leave_file(_OFFER, json.dumps(asdict(offer)), folder)


def read_offer() -> Offer | None:
    """For ranks; None where `matex run` offers nothing, or its folder is not seen here."""
    folder = settings.get_settings().proof
    with real_files.use_real_files():
        found = _read_file(folder, _OFFER) if folder else None
    return None if found is None else Offer(**found)


def mark_change(change: Change) -> None:
    """For ranks: the state is kept, from which the run is to go on so."""
    if world.get_world().local_rank == 0:
        rank_records.leave_file(_CHANGE, json.dumps(asdict(change)))


def has_trained(folder: str | os.PathLike[str]) -> bool:
    """Whether the ranks have made a step of training since the start."""
    return Path(folder, rank_records.TRAINING).exists()


def has_change(folder: str | os.PathLike[str]) -> bool:
    return Path(folder, _CHANGE).exists()


def read_change(folder: str | os.PathLike[str]) -> Change | None:
    found = _read_file(folder, _CHANGE)
    return None if found is None else Change(**found)


def _read_file(folder: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(Path(folder, name).read_text()))
    except (OSError, ValueError):  # it is not there, or NFS has it stale as it is being replaced: it is read again
        return None
