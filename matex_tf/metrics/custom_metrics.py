"""Metrics of the script's own, functions or classes: what they make of slices is brought to what the whole batch gives.

`make_global` is for functions, `can_update_mix_rows` for classes. "Metrics" in docs/exactness.md has the cases.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.analysis import declarations, dry_trace, interpreter
from matex_tf.analysis.placement import ROWS, SHARDED, as_partial, make_partial
from matex_tf.gradients import reduction, row_gathering, row_mixing
from matex_tf.sharding import step_weight

_ROWS, _MEAN, _SUM, _OTHER = "rows", "mean", "sum", "other"
_known: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


def make_global(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(y_true, y_pred)` with its value for the whole batch, on every rank, where that is a single number.

    A mean is weighted by the rows, and a sum is added up. For any other, such as a root of a mean, labels and
    predictions of all ranks are gathered. A number for each row, of that row, needs nothing.
    """
    import tensorflow as tf

    plain = tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())

    @tf.autograph.experimental.do_not_convert
    def compute(y_true: Any, y_pred: Any, **kwargs: Any) -> Any:
        value = plain(y_true, y_pred, **kwargs)
        if not is_single(value) or not all(map(_has_rows, (y_true, y_pred))):
            return value
        kind = _find_kind(function, (y_true, y_pred), kwargs)
        if kind == _OTHER:
            return plain(*_make_whole([y_true, y_pred]), **kwargs)
        weight = tf.cast(step_weight.read_numbers()[0 if kind == _MEAN else 1], value.dtype)
        return ops.allreduce(value * weight, op="sum", name="metric")

    return compute


def can_update_mix_rows(metric: Any, update: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `update(metric, ...)`, a method of the script's own, does more with rows than to add sums over them."""
    parts = [*args, *kwargs.values()]
    of_uneven_rows = any(hasattr(part, "flat_values") or hasattr(part, "dense_shape") for part in parts)
    if of_uneven_rows or not any(map(_has_rows, parts)):
        return False
    key = repr([(part.dtype, tuple(part.shape[1:])) if hasattr(part, "dtype") else part for part in parts])
    known = _known.setdefault(metric, {})
    if key not in known:
        known[key] = _SUM if _is_additive(metric, update, args, kwargs) else _OTHER
    return known[key] == _OTHER


def can_function_mix_rows(metric: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `function`, of the script's own (or None), of which `metric` takes the mean, lets rows meet."""
    rows = (*args, *(kwargs[name] for name in ("y_true", "y_pred") if name in kwargs))[:2]
    if function is None or len(rows) < 2 or not all(map(_has_rows, rows)):
        return False
    return _find_kind(function, rows, getattr(metric, "_fn_kwargs", {})) == _OTHER


def gather_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an update, and their masks, with the rows of all ranks. Collective."""
    import tensorflow as tf

    flat = tf.nest.flatten((args, kwargs))
    places = [at for at, leaf in enumerate(flat) if _has_rows(leaf) or isinstance(leaf, tf.Tensor)]
    masks = {at: mask for at in places if (mask := getattr(flat[at], "_keras_mask", None)) is not None}
    wholes = _make_whole([*(flat[at] for at in places), *masks.values()])
    for at, whole in zip(places, wholes):
        flat[at] = whole
    for at, mask in zip(masks, wholes[len(places) :]):
        flat[at]._keras_mask = mask
    return tf.nest.pack_sequence_as((args, kwargs), flat)


def _make_whole(parts: list[Any]) -> list[Any]:
    """What ranks have parts of, whole: as placements tell, where they do; else whatever has rows is gathered."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    if not tf.executing_eagerly() and declarations.has_rows(graph):
        of_graph = [part for part in parts if getattr(part, "graph", None) is graph]
        wholes = row_mixing.make_all_whole(of_graph)
        known = {id(part): whole for part, whole in zip(of_graph, wholes or ())}
        return [known.get(id(part), part) for part in parts]
    numbers = step_weight.read_numbers()
    return [_gather_nonempty(part, numbers) if _has_rows(part) else part for part in parts]


def _has_rows(part: Any) -> bool:
    import tensorflow as tf

    return isinstance(part, (tf.Tensor, np.ndarray)) and len(part.shape) > 0


def _is_additive(metric: Any, update: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all that an update does is to add sums over rows to variables."""
    import tensorflow as tf

    def spec(part: Any) -> Any:
        return tf.TensorSpec([None, *part.shape[1:]], tf.as_dtype(part.dtype)) if _has_rows(part) else part

    def compute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        graph = tf.compat.v1.get_default_graph()
        declarations.declare_accounts(
            graph, [variable.handle for variable in map(reduction.find_tf_variable, metric.variables)]
        )
        _declare_rows((args, kwargs))
        update(metric, *args, **kwargs)

    with dry_trace.suppress_effects():
        try:
            graph = tf.function(compute).get_concrete_function(*tf.nest.map_structure(spec, (args, kwargs))).graph
        except Exception:  # of the script's code, any
            return False
    found = interpreter.make_interpreter(graph)
    assigned = [op for op in graph.get_operations() if op.type.startswith("Assign") and len(op.inputs) > 1]
    return bool(assigned) and all(as_partial(found.find_placement(op.inputs[1])) == make_partial(0) for op in assigned)


def _declare_rows(arguments: Any) -> None:
    import tensorflow as tf

    for part in tf.nest.flatten(arguments):
        if isinstance(part, tf.Tensor) and part.shape.rank:
            declarations.declare_placement(part, ROWS)


def is_number(value: Any) -> bool:
    """Whether a `value` has no dimensions, as far as its graph knows."""
    shape = getattr(value, "shape", ())
    return (shape.rank if hasattr(shape, "rank") else len(shape)) == 0


def is_single(value: Any) -> bool:
    """Whether a metric's `value` is one number for all rows."""
    import tensorflow as tf

    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating


def _gather_nonempty(tensor: Any, numbers: Any) -> Any:
    """The rows of all ranks that have some."""
    import tensorflow as tf

    tensor = tf.convert_to_tensor(tensor)
    mine = tensor[: tf.where(numbers[2] > 0, tf.shape(tensor)[0], 0)]
    gathered = row_gathering.gather_rows(mine, "metric", numbers)
    gathered.set_shape([None, *tensor.shape[1:]])
    return gathered


def _find_kind(function: Callable[..., Any], rows: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What the value of `function` is of the rows, by a trace of it for a number of rows that nothing else has."""
    specs = tuple((part.dtype, tuple(part.shape[1:])) for part in rows)
    key = repr((specs, sorted(kwargs)))
    try:
        known = _known.setdefault(function, {})
    except TypeError:  # no weak reference to it can be had
        known = {}
    if key not in known:
        known[key] = _trace_kind(function, rows, kwargs)
    return known[key]


def _trace_kind(function: Callable[..., Any], rows: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    import tensorflow as tf

    def compute(*parts: Any) -> Any:
        _declare_rows(parts)
        return function(*parts, **kwargs)

    specs = [tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in rows]
    with dry_trace.suppress_effects():
        try:
            graph = tf.function(compute).get_concrete_function(*specs).graph
        except Exception:  # of the script's code, any
            return _OTHER
    found = interpreter.find_placement(graph.outputs[0])
    if found.kind == SHARDED and found.axis == found.power == 0:
        return _ROWS
    # Of a vector, such as a sum for each column, a mean counts the entries: it is computed of all rows.
    return {make_partial(0): _SUM, make_partial(1): _MEAN}.get(found, _OTHER) if is_number(graph.outputs[0]) else _OTHER
