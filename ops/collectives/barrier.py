"""The barrier: no rank leaves it before all ranks have entered it."""

from __future__ import annotations

from typing import Any

from matex_tf.world import world

from ..library import get_library
from ..order import make_in_order
from . import common


def barrier(name: str | None = None) -> Any:
    """Return when every rank has called it. In a graph: an operation that does so when it runs."""
    if not world.is_active():
        import tensorflow as tf

        return None if tf.executing_eagerly() else tf.no_op()
    return make_in_order(get_library().ops.matex_barrier, place=name or "", turn=common.make_turn())
