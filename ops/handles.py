"""Small ops on handles: `pass_turn` for steps of sessions, `let_go` for iterators, `draw_seeds` for shuffled datasets.

In a v1 graph each collective op has a turn: its number in the order in which all ranks run collectives
(`sequence/v1_order.h`). A collective in a branch that is not executed would never use its turn, and all later
collectives would wait for it; so `pass_turn` uses the turn.

The end of an iterator may take a minute (`let_go.cc`), so `let_go` releases it in another thread.
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
"""How long `wait_for_ends` waits before it collects unreachable objects, and after that."""


def pass_turn(other_branch: Any, turn: int) -> Any:
    """In a v1 graph: the operation that uses the turn of a collective if the branch of the collective is not executed.

    Args:
        other_branch: a bool tensor that exists only if the other branch is executed.
        turn: the attribute `turn` of the collective.
    """
    return get_library().ops.matex_pass_turn(other_branch=other_branch, turn=turn)


def let_go(resource: Any) -> None:
    """Release an iterator's resource, an eager tensor about to be dropped, in a C++ thread. Returns at once."""
    import tensorflow as tf

    if not sys.is_finalizing():
        _wait_at_exit()
        with tf.init_scope():  # the garbage collector may call this while a graph is being traced
            get_library().ops.matex_let_go(resource)


def draw_seeds(generator: Any, drawn: Any = -1) -> Any:
    """The number of values that the seed generator of a shuffled dataset has drawn, an int64 scalar.

    drawn: the generator continues after so many values; -1: where it is.
    """
    return get_library().ops.matex_draw_seeds(generator=generator, drawn=drawn)


def wait_for_ends() -> None:
    """Return when all released iterators have ended, also those of unreachable objects, or after two minutes."""
    wait = load_tensorflow_ops().c.matex_wait_for_let_go
    wait.restype, wait.argtypes = ctypes.c_int, [ctypes.c_int]
    if wait(_SHORT_WAIT_MS):
        gc.collect()  # an iterator may be held by the traceback of a step in which a rank was lost
        wait(_MAX_WAIT_MS)


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(wait_for_ends)
