"""The surviving ranks of an elastic run, which continues without the ranks that were lost.

After a loss, `resilience.elastic` shrinks the world, and the remaining ranks have new numbers: if rank 1 of 4 is lost,
ranks 0, 2 and 3 become 0, 1 and 2, and `survivors` is [0, 2, 3]. Code that collects data outside of steps calls its
collectives by `attempt_collectives`, which repeats them after a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import errors
from matex_tf.world import world

survivors: list[int] = []
"""The ranks' numbers before the last loss, indexed by their present numbers."""

_origins: list[int] = []  # the result of `list_origins` after a loss; empty before any loss

_retry: Callable[[str, Callable[[], Any], Callable[[], None] | None], Any] | None = None  # see `set_retry`


def note_survivors(remaining: list[int]) -> None:
    """Record that ranks were lost; `remaining` is the new value of `survivors`."""
    global survivors, _origins
    # Before the first loss, the numbers are the original ones.
    survivors, origins_before = remaining, _origins or list(range(max(remaining) + 1))
    _origins = [origins_before[rank] for rank in remaining]


def list_origins() -> list[int]:
    """The ranks' numbers at the beginning of the run, indexed by their present numbers."""
    return list(_origins or range(world.get_world().size))


def make_loss_error(reason: str) -> errors.LostRankError:
    """The error that ends the run after a loss."""
    return errors.LostRankError(
        "another rank has ended or its host cannot be reached, and the ranks that are left cannot go on by "
        f"themselves: {reason}"
    )


def set_retry(attempt: Callable[[str, Callable[[], Any], Callable[[], None] | None], Any]) -> None:
    """Set the function that repeats failed work after a loss: `elastic.attempt_work`."""
    global _retry
    _retry = attempt


def attempt_collectives(description: str, work: Callable[[], Any], undo: Callable[[], None] | None = None) -> Any:
    """Call `work`, which consists of collectives; returns its result.

    An elastic run repeats it after a loss. `undo`, if given, then restores the state before `work`. `description` is of
    the work, for messages.
    """
    return work() if _retry is None else _retry(description, work, undo)
