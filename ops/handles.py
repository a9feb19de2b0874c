"""Three small ops, which have nothing to do with each other.

`pass_turn`, for steps of v1 sessions. In a v1 graph each collective op has a turn: its number in the order in which all
ranks run collectives (`sequence/v1_order.h`). A collective in a branch that is not executed would never use its turn,
and all later collectives would wait for it. So the other branch gets this op, which uses the turn.

`let_go`, for iterators of `tf.data`. To release an iterator may take a minute (`let_go.cc`), so a C++ thread does it.
`wait_for_ends` waits for these threads at the end of Python, because functions in a pipeline refer to Python.

`seek_seeds`, for shuffled datasets. The seed generator of a `shuffle` draws seeds for each pass over the data. The op
reads the generator's position, to save it with a run, or sets the position, to continue a saved run.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import sys
from typing import Any

from .library import get_library, load_tensorflow_ops

_SHORT_WAIT_MS, _MAX_WAIT_MS = 100, 120_000
"""How long `wait_for_ends` waits at most before it collects unreachable objects, and after that."""


def pass_turn(other_branch: Any, turn: int) -> Any:
    """In a v1 graph: the operation that uses the turn of a collective if the branch of the collective is not executed.

    Args:
        other_branch: a bool tensor of the branch without the collective. It has a value, so that the operation runs,
            only if that branch is executed.
        turn: the attribute `turn` of the collective.
    """
    return get_library().ops.matex_pass_turn(other_branch=other_branch, turn=turn)


def let_go(resource: Any) -> None:
    """Release an iterator in a C++ thread, and return at once.

    `resource` is the iterator's handle, an eager tensor. The caller drops it next.
    """
    import tensorflow as tf

    if not sys.is_finalizing():
        _wait_at_exit()
        with tf.init_scope():  # the garbage collector may call this while a graph is being traced
            get_library().ops.matex_let_go(resource)


def seek_seeds(generator: Any, drawn: Any = -1) -> Any:
    """Read or set the position of the seed generator of a shuffled dataset. Returns the position, an int64 scalar.

    The position is the number of values that the generator has drawn.

    drawn: the position to set; -1: the position stays.
    """
    return get_library().ops.matex_seek_seeds(generator=generator, drawn=drawn)


def wait_for_ends() -> None:
    """Wait until the threads of `let_go` have ended, for two minutes at most.

    A thread waits a few seconds for other owners of its iterator, for example for an unreachable object. So if the
    threads do not end at once, the garbage collector first removes such objects.
    """
    wait_for_threads = load_tensorflow_ops().c.matex_wait_for_let_go
    wait_for_threads.restype, wait_for_threads.argtypes = ctypes.c_int, [ctypes.c_int]
    if wait_for_threads(_SHORT_WAIT_MS):
        gc.collect()  # an iterator may be held by the traceback of a step in which a rank was lost
        wait_for_threads(_MAX_WAIT_MS)


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(wait_for_ends)
