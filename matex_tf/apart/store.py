"""The store (ops/src/engine/store): memory in which the ranks of one host train a model (see `turns`).

A process has one store at most. It holds the values of variables, and the progress of each rank: the batches of an
epoch have numbers, and each rank takes the next number. A rank begins a batch only while the oldest batch in training
is at most `bound` numbers behind: with bound 2, batch 5 begins only after batches 0 to 2 have ended.
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
"""TensorFlow aborts the process if the address of a tensor is not a multiple of this number of bytes."""


def pad_bytes(size: int) -> int:
    """`size` rounded up to a multiple of `ALIGNED`: what follows is aligned, too."""
    return -(-size // ALIGNED) * ALIGNED


class TurnStatus(enum.IntEnum):
    """The result of an attempt to begin a batch.

    END: all batches are trained or given up, or training was stopped and no rank holds a batch.
    NOT_YET: the rank has to wait, and calls `begin_batch` again. It may hold a batch that it must not train yet.
    """

    TAKEN, END, NOT_YET = 0, 1, 2


class Turn(NamedTuple):
    """An attempt to begin a batch."""

    status: TurnStatus
    batch: int
    """The number of the batch, if the status is TAKEN; else -1."""
    oldest_rank: int
    """The rank that this rank waits for, which trains the oldest batch; -1 if it is unknown."""


def make_store(size: int, batches: int, parts: int) -> bool:
    """Create the store. Returns False if the ranks cannot share memory: on several hosts, in separate containers, or if
    memory is short. Raises SetupError if MPI fails. Collective.

    size: the bytes that ranks share.
    batches: the maximum number of batches in an epoch.
    parts: the number of additions in a step, by which it changes the shared variables. For each, the store records how
        much of it a rank has added, so that another rank can add the rest if the rank is lost.
    """
    exists, c_library = ctypes.c_int(), ops.get_library().c
    with objects.start_exchange("making the memory in which ranks train together"):
        failed = c_library.matex_store_make(size, batches, parts, ctypes.byref(exists))
    if failed:
        raise errors.SetupError(interface.get_last_error(c_library))
    return bool(exists.value)


def drop_store() -> None:
    """Release the store. Its memory is freed once no variable has its value there."""
    ops.get_library().c.matex_store_drop()


def view_variable(handle: Any, offset: int, writes: bool) -> None:
    """Let the value of the variable with this handle be in the store from now on, `offset` bytes from its beginning.

    writes: whether the present value is first written there; otherwise the variable takes the value in the store.
    """
    ops.get_library().ops.matex_view(variable=handle, offset=offset, writes=writes)


def deal_batches(first: int, count: int) -> None:
    """Begin an epoch of `count` batches; batches before `first` count as trained.

    One rank calls this, while no rank has a batch.
    """
    ops.get_library().c.matex_store_deal(first, count)


def begin_batch(bound: int, seconds: float) -> Turn:
    """Take the next batch, or the batch of a lost rank, unless this rank has one already. Wait until the batch may be
    trained, for about `seconds` at most. After that (NOT_YET) the rank keeps a batch that it has taken.

    `bound`: the batch may be trained while the oldest batch in training is at most this many numbers behind.
    """
    batch, oldest_rank = ctypes.c_int64(-1), ctypes.c_int(-1)
    status = ops.get_library().c.matex_store_begin(bound, seconds, ctypes.byref(batch), ctypes.byref(oldest_rank))
    return Turn(TurnStatus(status), batch.value, oldest_rank.value)


def end_batch(version: int) -> int:
    """Mark the batch of this rank as trained. Returns the number of batches trained by other ranks since it began.

    `version`: the slot, 0 or 1 alternately, to which this rank has written its metrics after the batch (`rescue`). If
    the rank is lost, another rank asks `read_version` for the slot that is complete.
    """
    return ops.get_library().c.matex_store_end(version)


def leave_batches() -> None:
    """Give up the batch of this rank without training it. Other ranks no longer wait for this rank."""
    ops.get_library().c.matex_store_leave()


def stop_batches() -> None:
    """From now on no rank takes a batch."""
    ops.get_library().c.matex_store_stop()


def note_loss(rank: int) -> tuple[bool, int | None]:
    """Mark a rank as lost: another rank trains the batch that it had begun.

    Returns whether this call is the first for that rank, and the batch; None if it had no batch.
    """
    batch, c_library = ctypes.c_int64(-1), ops.get_library().c
    is_first = bool(c_library.matex_store_lose(rank, ctypes.byref(batch)))
    return is_first, None if batch.value < 0 else batch.value


def is_lost(rank: int) -> bool:
    """Whether a rank has called `note_loss` for this rank."""
    return bool(ops.get_library().c.matex_store_lost(rank))


def read_version(rank: int) -> int:
    """The slot with a rank's metrics (`end_batch`) after its last trained batch; 1 if it has trained none."""
    return ops.get_library().c.matex_store_version(rank)


def map_bytes(size: int) -> Any:
    """The first `size` bytes of the store as an array of uint8. Delete the array before `drop_store`."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(ops.get_library().c.matex_store_data()))


def count_trained() -> int:
    """The number of trained batches of the epoch, which include those before the `first` of `deal_batches`."""
    return ops.get_library().c.matex_store_trained()
