"""Which ranks are left: what says that one was lost, and who makes again what failed with it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from matex_tf import errors
from matex_tf.world import world

LEFT_WITH = "the end of its script, with exit code"
TOLD_ELSEWHERE = "its own message says why"
LOST = "another rank has ended or its host cannot be reached"
"""What the text of an error says that is not the script's (see `MpiError` in world.cc, `Together` in overlapped.cc)."""

survivors: list[int] = []
"""The numbers that the ranks had before the last loss, by the numbers that they have now."""

_origins: list[int] = []

_retry: Callable[[str, Callable[[], Any], Callable[[], None] | None], Any] | None = None


def note_survivors(left: list[int]) -> None:
    """Ranks were lost; `left` is what `survivors` is from here on."""
    global survivors, _origins
    survivors, before = left, _origins or list(range(max(left) + 1))
    _origins = [before[rank] for rank in left]


def list_origins() -> list[int]:
    """The numbers that the ranks had when the run began, by the numbers that they have now."""
    return list(_origins or range(world.get_world().size))


def is_loss(error: BaseException) -> bool:
    """Whether what failed is the place or another rank rather than the script, which started again may well succeed."""
    names = {base.__name__ for base in type(error).__mro__}
    return isinstance(error, MemoryError) or "ResourceExhaustedError" in names or is_loss_of_another(error)


def is_loss_of_another(error: BaseException) -> bool:
    """Whether a collective failed, as it does where another rank was lost."""
    return any(base.__module__.startswith("mpi4py") for base in type(error).__mro__) or LOST in str(error)


def make_loss_error(why: str) -> errors.LostRankError:
    """The error by which the run ends after a loss."""
    return errors.LostRankError(f"{LOST}, and the ranks that are left cannot go on by themselves: {why}")


def watch_mpi() -> None:
    """From here on a script that takes `MPI.COMM_WORLD`, whose numbers stay those of the start, asks for its rank."""
    from mpi4py import MPI

    everyone = MPI.COMM_WORLD

    class Watched(types.ModuleType):
        @property
        def COMM_WORLD(self) -> Any:
            world.note_script_knows_ranks()
            return everyone

    MPI.__class__ = Watched  # a property of it comes before what is in the module


def set_retry(attempt: Callable[[str, Callable[[], Any], Callable[[], None] | None], Any]) -> None:
    """Have `attempt_collectives` called with what fails where a rank is lost: what, work and undo of
    `elastic.attempt_work`.
    """
    global _retry
    _retry = attempt


def attempt_collectives(what: str, work: Callable[[], Any], undo: Callable[[], None] | None = None) -> Any:
    """What `work` gives, a collective or several. With MATEX_ELASTIC those that are left make it again after a loss."""
    return work() if _retry is None else _retry(what, work, undo)
