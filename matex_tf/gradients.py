"""Gradients of this rank in, those of the global batch out.

The one way to the engine. It fixes the order (last layer first, as backpropagation yields them), names each gradient by
its variable, and remembers of each variable whether its gradients are reduced where they are born (a loop of the
script's own) or are still owed to the optimizer (Keras' training step).
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import ops, steps

KIND_GRADIENTS = 1

_born: dict[int, Any] = {}
_entangled: set[int] = set()
_state = threading.local()


def underlying(variable: Any) -> Any:
    """The TensorFlow variable behind a Keras variable; any other is its own."""
    inner = getattr(variable, "_value", None)
    return inner if inner is not None and hasattr(inner, "assign") else variable


def name_of(variable: Any) -> str:
    """The name by which a variable is known in messages and in the layout."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "unnamed")


def mark(variables: Sequence[Any], born: bool) -> None:
    """Remember whether the gradients of `variables` were reduced where they were born."""
    for variable in variables:
        inner = underlying(variable)
        key = id(inner)
        if born:
            _born[key] = weakref.ref(inner, lambda _, key=key: _born.pop(key, None))
        else:
            _born.pop(key, None)


def entangle(variables: Sequence[Any]) -> None:
    """Note that unreduced gradients of `variables` went into something else that is differentiated.

    What is made of them is a sum of unreduced parts, so the optimizer reduces it and nobody before.
    """
    mark(variables, born=False)
    _entangled.update(id(underlying(variable)) for variable in variables)


def are_entangled(variables: Sequence[Any]) -> bool:
    return any(id(underlying(variable)) in _entangled for variable in variables)


def disentangle(variables: Sequence[Any]) -> None:
    _entangled.difference_update(id(underlying(variable)) for variable in variables)


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
        gradients: tensors, `tf.IndexedSlices` (made dense) or None, one for each of `variables`.
        variables: what they are gradients of, in the order of the model; names come from here.
        scalars: further floating-point tensors that are to be reduced in the same way, such as the loss.
        weight: this rank's weight, a float64 scalar, or that and the rows of the global batch; default those of a
            mean over the rows of the current step.
        place: where in the program this is, for messages.

    Returns:
        The reduced gradients (None where none was given) and the reduced scalars.

    Raises:
        tf.errors.FailedPreconditionError: when run, if ranks differ in variables, shapes, types or places.
    """
    present = [index for index, gradient in enumerate(gradients) if gradient is not None]
    order = present[::-1]
    if not order:
        return list(gradients), list(scalars)
    tensors = [_dense(gradients[index]) for index in order]
    names = [name_of(variables[index]) for index in order]
    outputs = ops.reduce_gradients(
        tensors + list(scalars),
        names + [f"loss {index}" for index in range(len(scalars))],
        steps.weight_and_rows() if weight is None else weight,
        place,
    )
    result = list(gradients)
    for index, output in zip(order, outputs):
        result[index] = output
    return result, list(outputs[len(order) :])
