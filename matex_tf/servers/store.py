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


def make(size: int) -> bool:
    """Make a store with room for `size` bytes; whether the ranks can have one. Collective."""
    made, c = ctypes.c_int(), ops.library().c
    with objects.exchange("making the memory in which ranks train together"):
        failed = c.matex_store_make(size, ctypes.byref(made))
    if failed:
        raise world.RankError(interface.last_error(c))
    return bool(made.value)


def drop() -> None:
    """Give the store back; its memory lives as long as a variable has its value there."""
    ops.library().c.matex_store_drop()


def view(handle: Any, offset: int, writes: bool) -> None:
    """From now on the value of the variable with this handle lies in the store.

    `writes`: what it is now is put there.
    """
    ops.library().ops.matex_view(variable=handle, offset=offset, writes=writes)


def deal(count: int) -> None:
    """Deal the batches from 0 to `count`; one rank does, while no other has one. Rank r begins with batch r."""
    ops.library().c.matex_store_deal(count)


def begin(bound: int, seconds: float) -> Turn:
    """Take the next batch, unless there is one already, and wait until it may be trained, for some `seconds`."""
    ticket, behind = ctypes.c_int64(-1), ctypes.c_int(-1)
    begun = ops.library().c.matex_store_begin(bound, seconds, ctypes.byref(ticket), ctypes.byref(behind))
    return Turn(Begun(begun), ticket.value, behind.value)


def end() -> int:
    """The batch is trained. How many others have been since it was begun."""
    return ops.library().c.matex_store_end()


def leave() -> None:
    """Nobody waits for this rank any more."""
    ops.library().c.matex_store_leave()


def stop() -> None:
    """No rank takes a batch any more."""
    ops.library().c.matex_store_stop()


def trained() -> int:
    """The batches that all ranks have trained since they were dealt."""
    return ops.library().c.matex_store_trained()


def want(place: int) -> None:
    """The pipeline of this process is to give the batch at this place of it; -1: all of them."""
    ops.library().c.matex_store_want(place)


def is_wanted(place: Any) -> Any:
    """In a pipeline: whether the batch at `place` is the one that this rank is to train."""
    return ops.library().ops.matex_is_wanted(place=place)
