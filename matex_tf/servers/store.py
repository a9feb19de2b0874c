"""The store of this process (ops/src/engine/store): memory in which the ranks of one host train a model together.

Batches are taken by number. A rank begins one only while the oldest under way is at most `bound` behind it.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, NamedTuple

from matex_tf import ops
from matex_tf.ops import interface
from matex_tf.runtime import objects
from matex_tf.world import world

ALIGNED = 64
"""Bytes. TensorFlow ends the process where it finds a tensor at another place."""


class Begun(enum.IntEnum):
    """What the attempt to begin a batch came to."""

    TAKEN, END, NOT_YET = 0, 1, 2


class Turn(NamedTuple):
    """An attempt to begin a batch: its number, if this rank has one, and the rank that it waits for, if it does."""

    begun: Begun
    batch: int
    behind: int


def make_store(size: int) -> bool:
    """Make a store with room for `size` bytes; whether the ranks can have one. Collective."""
    made, c = ctypes.c_int(), ops.get_library().c
    with objects.start_exchange("making the memory in which ranks train together"):
        failed = c.matex_store_make(size, ctypes.byref(made))
    if failed:
        raise world.RankError(interface.get_last_error(c))
    return bool(made.value)


def drop_store() -> None:
    """Give the store back; its memory lives as long as a variable has its value there."""
    ops.get_library().c.matex_store_drop()


def view_variable(handle: Any, offset: int, writes: bool) -> None:
    """From now on the value of the variable with this handle lies in the store.

    `writes`: what it is now is put there.
    """
    ops.get_library().ops.matex_view(variable=handle, offset=offset, writes=writes)


def deal_batches(count: int) -> None:
    """Deal the batches from 0 to `count`; one rank does, while no other has one. Rank r begins with batch r."""
    ops.get_library().c.matex_store_deal(count)


def begin_batch(bound: int, seconds: float) -> Turn:
    """Take the next batch, unless there is one already, and wait until it may be trained, for some `seconds`."""
    ticket, behind = ctypes.c_int64(-1), ctypes.c_int(-1)
    begun = ops.get_library().c.matex_store_begin(bound, seconds, ctypes.byref(ticket), ctypes.byref(behind))
    return Turn(Begun(begun), ticket.value, behind.value)


def end_batch() -> int:
    """The batch is trained. How many others have been since it was begun."""
    return ops.get_library().c.matex_store_end()


def leave_batches() -> None:
    """Nobody waits for this rank any more."""
    ops.get_library().c.matex_store_leave()


def stop_batches() -> None:
    """No rank takes a batch any more."""
    ops.get_library().c.matex_store_stop()


def count_trained() -> int:
    """The batches that all ranks have trained since they were dealt."""
    return ops.get_library().c.matex_store_trained()


def want_batch(place: int) -> None:
    """The pipeline of this process is to give the batch at this place of it; -1: all of them."""
    ops.get_library().c.matex_store_want(place)


def is_wanted(place: Any) -> Any:
    """In a pipeline: whether the batch at `place` is the one that this rank is to train."""
    return ops.get_library().ops.matex_is_wanted(place=place)
