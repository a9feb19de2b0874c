"""The tapes that record in this thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_state = threading.local()


def stack() -> list[tuple[Any, Any]]:
    """The tapes, outermost first, each with the graph in which it began to record, None in eager code."""
    return _state.__dict__.setdefault("stack", [])


def recording() -> bool:
    return bool(stack())


def here() -> list[Any]:
    """The tapes that record, if all of them began where ops are now made, in eager code or in a graph; else none."""
    import tensorflow as tf

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    is_here = not accumulators() and all(began is graph for _, began in stack())
    return [tape for tape, _ in stack()] if is_here else []


def accumulators() -> int:
    """How many forward accumulators (`tf.autodiff`) record."""
    return getattr(_state, "accumulators", 0)


def count_accumulator(more: int) -> None:
    _state.accumulators = accumulators() + more


@contextlib.contextmanager
def keep_plain() -> Iterator[None]:
    """Within it gradients are as TensorFlow gives them: they are parts of larger ones."""
    with _plain(True):
        yield


@contextlib.contextmanager
def within_gradient() -> Iterator[None]:
    """Around a gradient function of the script's own: gradients that it takes are followed, but not reduced."""
    before, _state.within = is_within_gradient(), True
    try:
        with _plain(False):
            yield
    finally:
        _state.within = before


@contextlib.contextmanager
def _plain(are: bool) -> Iterator[None]:
    before, _state.plain = keeps_plain(), are
    try:
        yield
    finally:
        _state.plain = before


def keeps_plain() -> bool:
    return getattr(_state, "plain", False)


def is_within_gradient() -> bool:
    return getattr(_state, "within", False)
