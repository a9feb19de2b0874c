"""The tapes that record in this thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from matex_tf.thread_flag import ThreadFlag

_state = threading.local()
_plain, _within = ThreadFlag(), ThreadFlag()


def get_tapes() -> list[tuple[Any, Any]]:
    """The tapes, outermost first, each with the graph in which it began to record, None in eager code."""
    return _state.__dict__.setdefault("stack", [])


def is_recording() -> bool:
    return bool(get_tapes())


def list_tapes_here() -> list[Any]:
    """The tapes that record, if all of them began where ops are now made, in eager code or in a graph; else none."""
    import tensorflow as tf

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    is_here = not count_accumulators() and all(began is graph for _, began in get_tapes())
    return [tape for tape, _ in get_tapes()] if is_here else []


def count_accumulators() -> int:
    """How many forward accumulators (`tf.autodiff`) record."""
    return getattr(_state, "accumulators", 0)


def count_accumulator(more: int) -> None:
    _state.accumulators = count_accumulators() + more


def keep_plain() -> contextlib.AbstractContextManager[None]:
    """Within it gradients are as TensorFlow gives them: they are parts of larger ones."""
    return _plain.set()


@contextlib.contextmanager
def enter_gradient() -> Iterator[None]:
    """Around a gradient function of the script's own: gradients that it takes are followed, but not reduced."""
    with _within.set(), _plain.set(False):
        yield


def is_plain() -> bool:
    return bool(_plain)


def is_within_gradient() -> bool:
    return bool(_within)
