"""Two JSON files in the private folder of a run, by which `matex run --adapt=ranks` and its ranks agree on a restart.

1. `matex run` writes the file "offer": how many ranks the run could have now, and how long a restart takes.
2. Ranks that accept (`leaving`) save the state of the run, write the file "change", and exit.
3. `matex run` starts the ranks of that change, which continue from the saved state.

Example: 2 ranks train, and a third host has become free. The offer says 3 ranks and 6 s; the ranks expect to save 90 s,
and ask for the change to 3 ranks. If their steps then take longer than before, they ask to undo the change.
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
    """A restart that `matex run` could make now."""

    ranks: int  # the number of ranks that the run could have; its present number if no other is possible
    restart_seconds: float  # expected duration: from saving the state to the first step after the restart
    reason_to_leave: str = ""  # why ranks must leave their hosts even if that gains nothing; empty if they may stay
    may_choose: bool = False  # whether the ranks may choose another strategy
    step_seconds_before: float = 0.0  # duration of a step before the last change, if that may be undone; otherwise 0
    undo_text: str = ""  # the result of undoing it, for messages, such as "2 ranks in place of 3 again"
    kept_hosts: Sequence[str] = field(default_factory=list)  # must not lose a rank: such a change has been undone


@dataclass(frozen=True)
class Change:
    """The restart that the ranks ask for."""

    ranks: int  # the number of ranks after the restart
    what: str  # the new ranks or strategy, for messages, such as "3 ranks in place of 2"
    why: str  # the reason for the change, for messages
    strategy: str | None = None  # the new strategy; None: the strategy stays
    dropped_host: str = ""  # the host that loses a rank; empty if none does
    saved_at: str = ""  # the place in the script at which the state was saved, for messages, such as "epoch 2"
    saving_seconds: float = 0.0  # the time that saving the state took, a part of the duration of the restart
    is_forced: bool = False  # whether the ranks had to leave (`Offer.reason_to_leave`)
    step_seconds_before: float = 0.0  # duration of a step before the change; 0 if it was not measured
    undoes: bool = False  # whether the change undoes the last one


def describe_ranks(ranks: int, ranks_before: int) -> str:
    return f"{ranks} rank{'' if ranks == 1 else 's'} in place of {ranks_before}"


def write_offer(offer: Offer, folder: str | os.PathLike[str]) -> None:
    """Called by `matex run`."""
    rank_records.leave_file(_OFFER, json.dumps(asdict(offer)), folder)


def read_offer() -> Offer | None:
    """Called by ranks. None if `matex run` offers nothing, or if this rank's host does not see its folder."""
    folder = settings.get_settings().proof
    with real_files.use_real_files():
        fields = _read_file(folder, _OFFER) if folder else None
    return None if fields is None else Offer(**fields)


def mark_change(change: Change) -> None:
    """Called by ranks that have saved the state: ask `matex run` for a restart with `change`."""
    if world.get_world().local_rank == 0:  # one rank of each host, because not every host sees the folder
        rank_records.leave_file(_CHANGE, json.dumps(asdict(change)))


def has_trained(folder: str | os.PathLike[str]) -> bool:
    """Whether the ranks have computed a training step since their start."""
    return Path(folder, rank_records.TRAINING).exists()


def has_change(folder: str | os.PathLike[str]) -> bool:
    return Path(folder, _CHANGE).exists()


def read_change(folder: str | os.PathLike[str]) -> Change | None:
    fields = _read_file(folder, _CHANGE)
    return None if fields is None else Change(**fields)


def _read_file(folder: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """The fields in a file; None if it does not exist, or is incomplete: NFS may show a part while it is replaced."""
    try:
        return dict(json.loads(Path(folder, name).read_text()))
    except (OSError, ValueError):
        return None
