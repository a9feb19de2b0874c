"""Replaces AutoGraph's loop functions, for hooks (`Hook.put`)."""

from __future__ import annotations

from typing import Any

from matex_tf.runtime.hooks import Make, put_function


def put_loop(owner: Any, name: str, make: Make) -> None:
    """Replace a loop function, also in AutoGraph's table of loop functions by type of iterable."""
    from tensorflow.python.autograph.operators import control_flow

    original, registry = getattr(owner, name), control_flow.for_loop_registry._registry
    iterable_types = [iterable_type for iterable_type, loop in registry.items() if loop is original]
    if not iterable_types:
        raise LookupError(f"{name} is not registered")
    put_function(owner, name, make)
    registry.update(dict.fromkeys(iterable_types, getattr(owner, name)))
