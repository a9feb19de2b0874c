"""The store of this process (ops/src/engine/store): memory in which the ranks of one host train a model together.

Batches are taken by number. A rank begins one only while the oldest under way is at most `bound` behind it.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors, ops
from matex_tf.ops import interface
from matex_tf.runtime import objects

ALIGNED = 64
"""Bytes. TensorFlow ends the process where it finds a tensor at another place."""


def pad_bytes(size: int) -> int:
    """So many bytes with those after them, so that what follows lies at a place for a tensor."""
    return -(-size // ALIGNED) * ALIGNED


class Begun(enum.IntEnum):
    """What the attempt to begin a batch came to."""

    TAKEN, END, NOT_YET = 0, 1, 2


class Turn(NamedTuple):
    """An attempt to begin a batch: its number, if this rank has one, and the rank that it waits for, -1 for any."""

    begun: Begun
    batch: int
    behind: int


def make_store(size: int, batches: int, parts: int) -> bool:
    """Make a store; whether the ranks can have one. Collective.

    Args:
        size: the bytes that ranks share.
        batches: those of an epoch, at most.
        parts: the additions of a step.
    """
    made, c = ctypes.c_int(), ops.get_library().c
    with objects.start_exchange("making the memory in which ranks train together"):
        failed = c.matex_store_make(size, batches, parts, ctypes.byref(made))
    if failed:
        raise errors.SetupError(interface.get_last_error(c))
    return bool(made.value)


def drop_store() -> None:
    """Give the store back; its memory lives as long as a variable has its value there."""
    ops.get_library().c.matex_store_drop()


def view_variable(handle: Any, offset: int, writes: bool) -> None:
    """From now on the value of the variable with this handle lies in the store.

    `writes`: what it is now is put there.
    """
    ops.get_library().ops.matex_view(variable=handle, offset=offset, writes=writes)


def deal_batches(first: int, count: int) -> None:
    """Deal the batches from `first` to `count`, those before being trained; one rank does, while no other has one."""
    ops.get_library().c.matex_store_deal(first, count)


def begin_batch(bound: int, seconds: float) -> Turn:
    """Take the next batch, unless there is one already, and wait until it may be trained, for some `seconds`."""
    ticket, behind = ctypes.c_int64(-1), ctypes.c_int(-1)
    begun = ops.get_library().c.matex_store_begin(bound, seconds, ctypes.byref(ticket), ctypes.byref(behind))
    return Turn(Begun(begun), ticket.value, behind.value)


def end_batch(version: int) -> int:
    """The batch is trained. How many others have been since it was begun.

    `version`: 0 and 1 in turn, for `read_version`.
    """
    return ops.get_library().c.matex_store_end(version)


def leave_batches() -> None:
    """What this rank has is not trained, and nobody waits for it any more."""
    ops.get_library().c.matex_store_leave()


def stop_batches() -> None:
    """No rank takes a batch any more."""
    ops.get_library().c.matex_store_stop()


def note_loss(rank: int) -> tuple[bool, int | None]:
    """That rank is lost: others train what it had begun. Whether nobody has said so before, and that batch."""
    ticket, c = ctypes.c_int64(-1), ops.get_library().c
    is_news = bool(c.matex_store_lose(rank, ctypes.byref(ticket)))
    return is_news, None if ticket.value < 0 else ticket.value


def is_lost(rank: int) -> bool:
    """Whether somebody has said that this rank is lost."""
    return bool(ops.get_library().c.matex_store_lost(rank))


def read_version(rank: int) -> int:
    """The version that a rank gave of the last batch that is known to be trained by it; 1 if there is none."""
    return ops.get_library().c.matex_store_version(rank)


def map_bytes(size: int) -> Any:
    """The first `size` bytes of the store, as an array of NumPy. To be let go before the store is dropped."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(ops.get_library().c.matex_store_data()))


def count_trained() -> int:
    """The batches that were trained since they were dealt, by whomever."""
    return ops.get_library().c.matex_store_trained()
