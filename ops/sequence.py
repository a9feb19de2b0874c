"""The sequence of collectives of this process: its next number, its counts and times, waits, and errors.

The engine numbers all collectives of a rank, also those of TensorFlow's ops. Before a collective, ranks meet: they
compare number, kind and key of the collective (`rendezvous`).
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matex_tf import errors
from matex_tf.world import world

from . import interface, library
from .library import get_library


class Kind(enum.IntEnum):
    """The kinds of collectives, by the numbers of the enum `Kind` of sequence/mismatch.h."""

    GRADIENTS = 1
    """The sums of the gradients of an update."""
    ALLREDUCE = 2
    BROADCAST = 3
    ALLGATHER = 4
    BARRIER = 5
    CONTROL = 6
    """An exchange of Python objects."""
    EXIT = 7
    """The end of the script."""
    FAILURE = 8
    """A step has raised an error on this rank; other ranks may still be within the step."""


def rendezvous(kind: Kind, key: int, place: str, size: int = 0, rows: int = 0, exit_code: int = 0) -> None:
    """Meet the other ranks at the next number of the sequence of collectives. No effect if this process is no rank.

    Args:
        kind: `CONTROL`, `EXIT` or `FAILURE`; ops of TensorFlow use the other kinds.
        key: the 64 bits on which all ranks must agree.
        place: the place in the program, for messages.
        size: the bytes that this rank contributes, for recorded events.
        rows: the rows of the batch that the collective is for; 0: none. Reported if ranks are at different places.
        exit_code: of the script, at its end.

    Raises:
        MismatchError: on every rank, if ranks meet with different kinds or keys, and at every later rendezvous; only
            once if a step has failed here and all other ranks are within a step.
    """
    if not world.is_active():
        return
    engine = get_library().c
    if engine.matex_rendezvous(kind, key & 0xFFFFFFFFFFFFFFFF, place.encode(), size, rows, exit_code):
        raise errors.MismatchError(interface.get_last_error(engine))


def _find_engine() -> ctypes.CDLL | None:
    """The C functions of the engine; None if this process is no rank, or has not started its engine."""
    return library.find_engine() if world.is_active() else None


def count_completed(kind: Kind) -> int:
    """The number of completed collectives of `kind`; 0 if this process is no rank.

    `FAILURE` counts each rendezvous after a step had failed on some ranks.
    """
    engine = _find_engine()
    return engine.matex_count(kind) if engine else 0


def count_updates() -> int:
    """The number of updates so far; 0 if this process is no rank."""
    return count_completed(Kind.GRADIENTS)


def count_global_rows() -> int:
    """The rows of the global batches of all updates so far; an update whose batch was not sliced adds none."""
    engine = _find_engine()
    return engine.matex_rows() if engine else 0


def get_collective_seconds(kind: Kind) -> float:
    """The seconds that collectives of `kind` took this process, with the wait for others."""
    engine = _find_engine()
    return engine.matex_seconds(kind) if engine else 0.0


def get_blocked_seconds() -> float:
    """The seconds that this process waited for other ranks or sums while no gradient was computed."""
    engine = _find_engine()
    return engine.matex_blocked_seconds() if engine else 0.0


@dataclass(frozen=True)
class Waiting:
    """The position of this process in the sequence of collectives."""

    number: int  # of the collective whose rendezvous is under way or comes next
    seconds: float = 0.0  # that this process has waited there
    what: str = ""  # the place in the program; "": it does not wait


def read_failure() -> str:
    """Why all later collectives fail; "" if they do not. Blocks while another thread is in a collective."""
    engine = get_library().c
    return interface.get_last_error(engine) if engine.matex_failure() else ""


class Cause(enum.IntEnum):
    """The cause of an error, by the numbers of the enum `Cause` of mpi/failure.h."""

    OTHER = 0
    MPI = 1
    """An MPI call of the engine has failed in this process, usually because another rank was lost."""
    ELSEWHERE = 2
    """Another rank has raised the error that is the cause."""
    ENDED = 3
    """A rank has ended its script with an exit code other than 0 while others go on."""


def find_cause(text: str) -> Cause:
    """The cause of the engine's error whose message `text` contains. Never blocks."""
    engine = library.find_engine()
    return Cause(engine.matex_cause(text.encode(errors="replace"))) if engine else Cause.OTHER


def read_waiting() -> Waiting:
    """Where this process waits for other ranks. Any thread may call it."""
    engine = library.find_engine()
    if engine is None:
        return Waiting(0)
    seconds, number, place = ctypes.c_double(), ctypes.c_int64(), ctypes.create_string_buffer(512)
    if engine.matex_waiting(ctypes.byref(seconds), ctypes.byref(number), place, len(place)):
        return Waiting(number.value, seconds.value, place.value.decode(errors="replace"))
    return Waiting(number.value)


@contextlib.contextmanager
def announce_exchange(place: str) -> Iterator[None]:
    """Within it, `read_waiting` tells that this process exchanges Python objects with all ranks and may wait for them.

    `place`: the place in the program, for `read_waiting`.
    """
    engine = get_library().c
    engine.matex_wait(place.encode())
    try:
        yield
    finally:
        engine.matex_go_on()


def announce_turns(turns: Sequence[int]) -> None:
    """Announce the collectives of the next v1 run by their attribute `turn` (`order.py`), in the order that all ranks
    use.

    A collective that is ready before its turn waits without holding a thread. An empty list ends the run: collectives
    that still wait are cancelled.
    """
    if world.is_active():
        get_library().c.matex_expect((ctypes.c_int64 * len(turns))(*turns), len(turns))


def restart_engine(agree: Callable[[list[int]], list[int]]) -> None:
    """Continue with the remaining ranks after a loss. Collective; the world already contains only these ranks.

    The remaining ranks may have completed different numbers of collectives. All continue with the greatest numbers.

    `agree`: takes a list of numbers on each rank; returns the maximum over ranks of each entry.
    """
    engine, me = get_library().c, world.get_world()
    # The number of the current collective, and the completed collectives of each kind; there is no kind 0.
    number, *counts = agree([read_waiting().number, 0, *(engine.matex_count(kind) for kind in Kind)])
    completed_counts = (ctypes.c_int64 * len(counts))(*counts)
    communicators = library.list_communicators()
    if engine.matex_start_again(*communicators, me.rank, me.size, me.node, number, completed_counts):
        raise errors.SetupError(f"the engine cannot continue: {interface.get_last_error(engine)}.")
