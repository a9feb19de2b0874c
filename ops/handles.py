"""Ops on what is no tensor's value: turns of branches in v1 graphs, and ends of iterators."""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import sys
from typing import Any

from .library import get_library, load_tensorflow_ops

_SOON, _LATEST = 100, 120_000
"""Milliseconds in which iterators that nobody holds end; and those in which all do (see let_go.cc)."""


def pass_turn(other_branch: Any, turn: int) -> Any:
    """In a v1 graph, the operation that takes the turn of one of our ops in a branch, where the other one is taken.

    Args:
        other_branch: a bool tensor that is there only if the other branch is taken.
        turn: the attribute `turn` of the op whose turn it is.
    """
    return get_library().ops.matex_pass_turn(other_branch=other_branch, turn=turn)


def let_go(resource: Any) -> None:
    """Leave the end of an iterator's resource, an eager tensor about to be dropped, to a thread outside of Python."""
    import tensorflow as tf

    if not sys.is_finalizing():
        _wait_at_exit()
        with tf.init_scope():  # the garbage collector may call while a graph is being made
            get_library().ops.matex_let_go(resource)


def wait_for_ends() -> None:
    """Return when the iterators that were let go have ended, also those that are part of unreachable objects."""
    wait = load_tensorflow_ops().c.matex_wait_for_let_go
    wait.restype, wait.argtypes = ctypes.c_int, [ctypes.c_int]
    if wait(_SOON):
        gc.collect()  # such as the traceback of a step in which a rank was lost
        wait(_LATEST)


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(wait_for_ends)
