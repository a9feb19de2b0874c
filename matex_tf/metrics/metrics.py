"""Metrics of all the data from metrics that each rank feeds with its own slices.

Keras' metrics add up their state (totals, counts, confusion matrices). So the state over all data is the sum of the
ranks' states, which `hold_whole_state` puts in place of each rank's own while a result is computed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.analysis import declarations, graph_ops
from matex_tf.analysis.placement import SAME
from matex_tf.sharding import step_weight
from matex_tf.world import world

_state = threading.local()
_whole: dict[int, Any] = {}  # by id: the variables of which every rank holds the sum, until one counts again


def is_in_whole_state() -> bool:
    return getattr(_state, "depth", 0) > 0


@contextlib.contextmanager
def hold_whole_state(variables: Sequence[Any]) -> Iterator[None]:
    """Within it `variables` (Keras or TensorFlow ones) hold the sum of their values over the ranks. Collective.

    Works in eager code and in functions; one reduction for each dtype.
    """
    variables = [variable for variable in variables if id(variable) not in _whole]
    own = _add_up(variables)
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        yield
    finally:
        _state.depth -= 1
        for variable, value in zip(variables, own):
            variable.assign(value)


def list_layers(model: Any) -> list[Any]:
    """The layers of a Keras model, those within others and the model itself too, where Keras tells of them."""
    return list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else list(getattr(model, "layers", []))


def list_variables(model: Any) -> list[Any]:
    """The variables of all metrics of a Keras model, each rank's own. Keras 2 counts some of them among its weights."""
    layers = list_layers(model)
    # A layer that adapts has `update_state`, too, but no result.
    own = [layer for layer in layers if hasattr(layer, "update_state") and hasattr(layer, "result")]
    found = [*getattr(model, "metrics", []), *own]
    for layer in layers:
        found += getattr(layer, "_metrics", None) or []
    return [variable for metric in found for variable in metric.variables]


def store_whole_state(variables: Sequence[Any]) -> None:
    """Put the sum over ranks in `variables` to stay, as they are saved and compared with others. Collective; eager."""
    _add_up(variables)
    _whole.update((id(variable), variable) for variable in variables)


def count_apart(variables: Sequence[Any] | None = None) -> None:
    """Before these metrics' variables, or any, count again: what every rank holds whole, only rank 0 keeps."""
    for key in list(_whole) if variables is None else [id(variable) for variable in variables]:
        variable = _whole.pop(key, None)
        if variable is not None and world.get_world().rank > 0:
            variable.assign(variable * 0)


def copy_result(result: Any) -> Any:
    """`result` of a metric with copies in place of variables, whose values change once `hold_whole_state` ends."""
    import tensorflow as tf

    found = tf.nest.map_structure(
        lambda part: tf.identity(tf.convert_to_tensor(part)) if hasattr(part, "assign") else part, result
    )
    for part in tf.nest.flatten(found):
        if isinstance(part, tf.Tensor) and not hasattr(part, "numpy"):
            declarations.declare_placement(part, SAME)
    return found


def _read_variable(variable: Any) -> Any:
    import tensorflow as tf

    value = tf.convert_to_tensor(variable)
    # In eager code a copy: a read may share the memory that a later assignment writes.
    return tf.identity(value) if tf.executing_eagerly() else value


def _add_up(variables: Sequence[Any]) -> list[Any]:
    """Put the sum over ranks in `variables`; returns what this rank had."""
    own = [_read_variable(variable) for variable in variables]
    for variable, total in zip(variables, sum_over_ranks(own)):
        variable.assign(total)
    return own


def sum_over_ranks(values: Sequence[Any]) -> list[Any]:
    """The sums over the ranks of tensors of the same shapes and dtypes; one reduction for each dtype. Collective."""
    import tensorflow as tf

    totals: list[Any] = [None] * len(values)
    for dtype in sorted({value.dtype.name for value in values}):
        chosen = [index for index, value in enumerate(values) if value.dtype.name == dtype]
        flat = _join([values[index] for index in chosen])
        exact = flat.dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64)
        summed = ops.allreduce(flat if exact else tf.cast(flat, tf.int64), op="sum", name="metrics")
        for index, part in zip(chosen, _split(tf.cast(summed, flat.dtype), [values[index] for index in chosen])):
            totals[index] = part
    return totals


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether all are scalars, as most metrics' variables: in a graph, two ops for all in place of four for each."""
    return all(value.shape.rank == 0 for value in values)


def _join(values: Sequence[Any]) -> Any:
    """All values one after another, as a vector."""
    import tensorflow as tf

    if _are_numbers(values):
        return tf.stack(list(values))
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def _split(joined: Any, values: Sequence[Any]) -> list[Any]:
    """What `_join` has made of tensors of the shapes of `values`, one by one."""
    import tensorflow as tf

    if _are_numbers(values):
        return list(tf.unstack(joined, num=len(values)))
    known = [value.shape.is_fully_defined() for value in values]
    sizes = [value.shape.num_elements() if is_known else tf.size(value) for value, is_known in zip(values, known)]
    shapes = [value.shape if is_known else tf.shape(value) for value, is_known in zip(values, known)]
    return [tf.reshape(part, shape) for part, shape in zip(tf.split(joined, sizes, num=len(sizes)), shapes)]


@contextlib.contextmanager
def count_where_due(metric: Any, counts: Any = None) -> Iterator[None]:
    """Within it an update of `metric` takes effect only where this rank's rows count in the current step.

    `counts` (a number, 1 or 0) overrides the step's own.
    """
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    outer, _state.before = getattr(_state, "before", None), (graph, {})
    try:
        keep_variables(metric.variables)
        yield
        counts = step_weight.read_numbers()[2] if counts is None else tf.convert_to_tensor(counts, tf.float64)
        is_due = counts > 0
        for variable, old in _state.before[1].values():
            variable.assign(tf.where(is_due, tf.convert_to_tensor(variable), old))
    finally:
        if outer is not None and outer[0] is graph:
            outer = graph, {**_state.before[1], **outer[1]}
        _state.before = outer


def keep_variables(variables: Sequence[Any]) -> None:
    """Within `count_where_due`: an update may change `variables` from here on; where it is not to count, they go back.

    A metric may tell of its variables only in its first update. So those that it has, those of each metric within
    it, and those that it makes are read where they come up: in a function each run reads what it finds there.
    """
    import tensorflow as tf

    known: tuple[Any, dict[int, Any]] | None = getattr(_state, "before", None)
    graph, before = known or (None, {})
    if graph is not tf.compat.v1.get_default_graph():
        return  # outside of `count_where_due`, or in a trace that only looks at what an update does
    new = [variable for variable in variables if id(variable) not in before]
    count_apart(new)
    graph_ops.note_accounts(new)
    before.update({id(variable): (variable, _read_variable(variable)) for variable in new})
