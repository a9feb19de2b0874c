"""Whether ranks can share the step that Keras makes of a model; remembered for each model and kind of data."""

from __future__ import annotations

import weakref
from typing import Any

from matex_tf.gradients import overlap_trial
from matex_tf.loops import open_shapes, traces
from matex_tf.resilience import elastic_step

EAGER = "it is not traced (run_eagerly=True)"
_known: weakref.WeakKeyDictionary[Any, dict[Any, str]] = weakref.WeakKeyDictionary()
_made_for_whole: weakref.WeakSet = weakref.WeakSet()
"""Functions that were made once a step was known to be computed whole."""


def note_made_for_whole(function: Any) -> None:
    _made_for_whole.add(function)


def is_made_for_whole(function: Any) -> bool:
    return function in _made_for_whole


def note_traced(model: Any, kind: str, data: Any, reason: Any) -> None:
    """The step of `model` for `kind` was traced for batches such as `data`; `reason`: why it cannot be sharded."""
    _known.setdefault(model, {})[kind, shapes_of(data)] = "" if reason is None else str(reason)


def why_whole(model: Any, kind: str, function: Any, spec: Any, is_fixed: bool = False) -> str:
    """Why the step of `model` cannot compute a part of a batch; empty where it is proved that it can.

    Args:
        kind: "train" or "test".
        function: what Keras calls with an iterator.
        spec: the element spec of that iterator, a `Batch`.
        is_fixed: alone the number of rows of a batch is known when the step is traced.
    """
    from tensorflow.python.data.ops import iterator_ops

    functions = elastic_step.functions_in(function)
    if not functions:
        return EAGER
    known = _known.setdefault(model, {})
    try:
        with open_shapes.watched(is_fixed):
            overlap_trial.traced(functions[0], (iterator_ops.IteratorSpec(spec),), {})
    except Exception:  # of the script's code, any: where it is a fault, its real step raises it, too
        return traces.NAMED
    return known.get((kind, shapes_of(spec.data)), "it is none of Keras' training steps")


def has_fixed_rows(spec: Any) -> bool:
    return rows_of(spec) is not None


def rows_of(spec: Any) -> int | None:
    """How many rows each batch has, where that is known."""
    import tensorflow as tf

    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(spec)]
    counts = [shape.as_list()[0] for shape in shapes if shape is not None and shape.rank]
    return next((count for count in counts if count is not None), None)


def shapes_of(data: Any) -> Any:
    import tensorflow as tf

    parts = tf.nest.flatten(data, expand_composites=True)
    return tuple((part.dtype, str(part.shape)) for part in parts if hasattr(part, "shape"))
