"""Random numbers of a model that is called in parts: a part that is computed once more draws the same.

A seed is drawn once for all parts, and folded with the part's number.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

_STRIDE = 0x19660D1F  # far from those of neighbouring ranks and layers
_state = threading.local()


@contextlib.contextmanager
def draw_in_part(number: Any, around: Any) -> Iterator[list[Any]]:
    """Within it, in the trace of a part, seeds are drawn in the graph `around` it; gives the list of them."""
    drawn: list[Any] = []
    before, _state.here = getattr(_state, "here", None), (number, around, drawn)
    try:
        yield drawn
    finally:
        _state.here = before


def draw_seed(draw: Callable[[], Any]) -> Any:
    """What `draw` gives, a tensor of two numbers; in the trace of a part, of that part."""
    here = getattr(_state, "here", None)
    if here is None:
        return draw()
    import tensorflow as tf

    number, around, drawn = here
    _state.here = None
    try:
        with around.as_default():
            found = draw()
    finally:
        _state.here = here
    if not isinstance(found, tf.Tensor):
        return found
    drawn.append(found)
    fold = number * _STRIDE % 0x7FFFFFFF
    return found + tf.cast(tf.stack([fold, tf.zeros_like(fold)]), found.dtype)
