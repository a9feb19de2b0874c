"""Gradients of this rank in, those of the global batch out.

The one way to the engine. It fixes the order (last layer first, as backpropagation yields them), names each gradient by
its variable, and remembers of each variable whether its gradients are reduced where they are born (a loop of the
script's own) or are still owed to the optimizer (Keras' training step).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import ops, settings, steps
from matex_tf.ops import xla

KIND_GRADIENTS = 1

_born: dict[int, Any] = {}
_entangled: dict[int, Any] = {}
_scaling: weakref.WeakSet = weakref.WeakSet()
_numbers: dict[int, tuple[int, Any]] = {}
_count = itertools.count(1)
_state = threading.local()


def underlying(variable: Any) -> Any:
    """The TensorFlow variable behind a Keras variable; any other is its own."""
    inner = getattr(variable, "_value", None)
    return inner if inner is not None and hasattr(inner, "assign") else variable


def name_of(variable: Any) -> str:
    """The name by which a variable is known in messages and in the layout."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "unnamed")


def _number_of(variable: Any) -> int:
    """A number, from 1, that this variable has for as long as it lives and no other one gets."""
    inner = underlying(variable)
    key = id(inner)
    if key not in _numbers:
        number = next(_count)

        def gone(_: Any) -> None:
            _numbers.pop(key, None)
            xla.forget(number)

        _numbers[key] = number, weakref.ref(inner, gone)
    return _numbers[key][0]


def mark(variables: Sequence[Any], born: bool) -> None:
    """Remember whether the gradients of `variables` were reduced where they were born."""
    for variable in variables:
        if born:
            _remember(_born, variable)
        else:
            _born.pop(id(underlying(variable)), None)


def _remember(where: dict[int, Any], variable: Any) -> None:
    """Note `variable` in `where` for as long as it lives: the next may have its number."""
    inner = underlying(variable)
    key = id(inner)
    where[key] = weakref.ref(inner, lambda _: where.pop(key, None))


def entangle(variables: Sequence[Any]) -> None:
    """Note that unreduced gradients of `variables` went into something else that is differentiated.

    What is made of them is a sum of unreduced parts, so the optimizer reduces it and nobody before.
    """
    mark(variables, born=False)
    for variable in variables:
        _remember(_entangled, variable)


def are_entangled(variables: Sequence[Any]) -> bool:
    return any(id(underlying(variable)) in _entangled for variable in variables)


def disentangle(variables: Sequence[Any]) -> None:
    for variable in variables:
        _entangled.pop(id(underlying(variable)), None)


def are_born_reduced(variables: Sequence[Any]) -> bool:
    """Whether the gradients of all `variables` reach the optimizer reduced already."""
    return bool(variables) and all(id(underlying(variable)) in _born for variable in variables)


@contextlib.contextmanager
def reduced() -> Iterator[None]:
    """Within it an optimizer takes its gradients as they are: an outer one has reduced them."""
    before = getattr(_state, "reduced", False)
    _state.reduced = True
    try:
        yield
    finally:
        _state.reduced = before


def inside_reduced() -> bool:
    return getattr(_state, "reduced", False)


def leave_infinities_to(optimizer: Any) -> None:
    """Note that `optimizer`, as long as it lives, scales losses until gradients overflow, and skips such steps."""
    _scaling.add(optimizer)


def are_checked() -> bool:
    """Whether gradients that are no finite numbers are an error."""
    return settings.current().check_numerics and not _scaling


def updates() -> int:
    """How many reductions of gradients this rank has completed."""
    return ops.count(KIND_GRADIENTS)


def _dense(gradient: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def weigh(gradients: Sequence[Any], weight: Any = None) -> list[Any]:
    """Each gradient times this rank's weight in the step; zeros, not products, where the weight is 0."""
    import tensorflow as tf

    weight = steps.numbers()[0] if weight is None else weight
    return [
        None
        if gradient is None
        else tf.where(weight > 0, gradient * tf.cast(weight, gradient.dtype), tf.zeros_like(gradient))
        for gradient in map(_dense, gradients)
    ]


def reduce(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    scalars: Sequence[Any] = (),
    weight: Any = None,
    place: str = "a gradient update",
) -> tuple[list[Any], list[Any]]:
    """The gradients of the global batch: the sum over ranks of each rank's, times its weight.

    Args:
        gradients: tensors, `tf.IndexedSlices` or None, one for each of `variables`.
        variables: what they are gradients of, in the order of the model; names come from here.
        scalars: further floating-point tensors that are to be reduced in the same way, such as the loss.
        weight: this rank's weight, a float64 scalar, or that and the rows of the global batch; default those of a
            mean over the rows of the current step.
        place: where in the program this is, for messages.

    Returns:
        The reduced gradients (None where none was given) and the reduced scalars. Of `tf.IndexedSlices` the ranks'
        parts stand one below the other, as the whole batch would have given them: optimizers and clipping may treat
        rows that occur twice otherwise than their sum.

    Raises:
        tf.errors.FailedPreconditionError: when run, if ranks differ in variables, shapes, types or places.
    """
    import tensorflow as tf

    present = [index for index, gradient in enumerate(gradients) if gradient is not None][::-1]
    if not present:
        return list(gradients), list(scalars)
    order = [index for index in present if not isinstance(gradients[index], tf.IndexedSlices)]
    weight = steps.weight_and_rows() if weight is None else weight
    # Where all gradients are sparse this op is still the update's own, on which the ranks agree and which is counted.
    further = list(scalars) if order or scalars else [tf.zeros([])]
    names = [f"loss {index}" for index in range(len(further))]
    checked = are_checked()
    if checked:
        for index in present:
            if index not in order:
                further.append(_zero_if_finite(gradients[index].values))
                names.append(name_of(variables[index]))
    outputs = ops.reduce_gradients(
        [gradients[index] for index in order] + further,
        [name_of(variables[index]) for index in order] + names,
        weight,
        place,
        checked,
        [_number_of(variables[index]) for index in order] + [0] * len(further),
    )
    result = list(gradients)
    for index, output in zip(order, outputs):
        result[index] = output
    before = outputs[-1]
    for index in present:
        if index not in order:
            result[index], before = _gathered(gradients[index], weight, before, name_of(variables[index]))
    return result, list(outputs[len(order) :][: len(scalars)])


def accumulators(optimizer: Any) -> list[Any]:
    """The variables in which an optimizer of Keras 3 adds up gradients until it updates: each rank its own part."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "_accumulated_gradients", None) or [])


def _zero_if_finite(values: Any) -> Any:
    """What stands in the update for a sparse gradient, which is gathered after it: 0, or NaN."""
    import tensorflow as tf

    return tf.where(tf.reduce_all(tf.math.is_finite(values)), tf.constant(0.0), tf.constant(float("nan")))


def _gathered(slices: Any, weight: Any, before: Any, name: str) -> tuple[Any, Any]:
    """All ranks' parts of a sparse gradient, and what the next collective is to come after (v1 graphs ask for it).

    Rows that the graph has made unique in the batch are so again in the whole batch; and those that are the same on all
    ranks, each there once, such as positions, are no rows of the batch: alone their gradients are sums over it.
    """
    import tensorflow as tf

    weight = tf.reshape(tf.convert_to_tensor(weight, tf.float64), [-1])[0]
    count = tf.where(weight > 0, tf.shape(slices.indices)[0], 0)
    with tf.control_dependencies([before]):
        indices, counts = ops.allgather_rows(slices.indices[:count], name)
    with tf.control_dependencies([indices]):
        values = ops.allgather(slices.values[:count] * tf.cast(weight, slices.values.dtype), name)

    def are_the_same() -> Any:
        table = tf.reshape(indices, [tf.size(counts), -1])
        ordered = tf.sort(table[0])
        return tf.reduce_all(table == table[:1]) & tf.reduce_all(ordered[1:] != ordered[:-1])

    def summed() -> Any:
        rows, place = tf.unique(indices)
        return tf.math.unsorted_segment_sum(values, place, tf.size(rows)), rows

    if _is_made_unique(slices.indices):
        parts, rows = summed()
    else:
        even = tf.reduce_all(counts == counts[0]) & (counts[0] > 0)
        together = tf.cond(even, are_the_same, lambda: tf.constant(False))
        parts, rows = tf.cond(together, summed, lambda: (values, indices))
    if not tf.executing_eagerly():
        parts.set_shape([None, *slices.values.shape[1:]])
    return tf.IndexedSlices(parts, rows, slices.dense_shape), values


def _is_made_unique(indices: Any) -> bool:
    """Whether the tensor `indices` of a graph comes out of `tf.unique`, as in `embedding_lookup_sparse`."""
    op = getattr(indices, "op", None)
    while op is not None and op.type in ("Identity", "Reshape", "Cast", "StridedSlice"):
        op = op.inputs[0].op
    return op is not None and op.type.startswith("Unique")
