"""Ops on what is no tensor's value: turns of branches in v1 graphs, and ends of iterators."""

from __future__ import annotations

import atexit
import functools
import sys
from typing import Any

from .library import get_library, load_tensorflow_ops


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
        _wait_for_let_go_at_exit()
        with tf.init_scope():  # the garbage collector may call while a graph is being made
            get_library().ops.matex_let_go(resource)


@functools.cache
def _wait_for_let_go_at_exit() -> None:
    wait = load_tensorflow_ops().c.matex_wait_for_let_go
    wait.restype, wait.argtypes = None, []
    atexit.register(wait)
