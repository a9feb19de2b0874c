"""The loss of a script's own loop, made global where it passes through our hands.

A loss that a tape differentiates rides with its gradients; the sum over ranks, weighted as they are, is the loss of the
global batch. What a `tf.function` returns of it, what a metric is fed of it and what eager code reads of its value is
then the global one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import output, reductions, steps

_ATTRIBUTE = "_matex_global"


def reducible(target: Any) -> list[Any]:
    """The scalar floating-point tensors in `target`, the first argument of `tape.gradient`."""
    import tensorflow as tf

    return [
        part
        for part in tf.nest.flatten(target)
        if isinstance(part, tf.Tensor) and part.dtype.is_floating and part.shape.rank == 0
    ]


def weight(target: Any) -> Any:
    """What this rank's part of the loss weighs (the rows' share for a mean, 1 for a sum), and the batch's rows."""
    import tensorflow as tf

    parts = [part for part in tf.nest.flatten(target) if isinstance(part, tf.Tensor)]
    if tf.executing_eagerly():
        kinds = {reductions.marked(part) or ("sum" if part.shape.rank else "mean") for part in parts}
        return steps.weight_and_rows(of_sum=kinds == {"sum"})
    found = [reductions.analyse(part) for part in parts]
    of_sum = {one.kind for one in found} == {"sum"}
    if any(one.ratio for one in found):
        output.note(
            "a loss is divided by a sum over the data, such as a mask: ranks' losses are weighed by rows, which is "
            "exact only where each slice has the same such sum for each row"
        )
    if any(one.bent for one in found):
        output.note(
            "a loss is a curve, such as a square root, of a mean or sum over rows: ranks take it of their own rows and "
            "weigh the results by rows, which is not exactly the loss of the whole batch"
        )
    if of_sum and any(one.penalty for one in found):
        output.note(
            "a loss that is a sum over rows has a penalty on the weights, which every rank adds: it counts as many "
            "times as there are ranks. Make the loss a mean, or divide the penalty by matex_tf.size()"
        )
    return steps.weight_and_rows(of_sum=of_sum)


def remember(local: Sequence[Any], total: Sequence[Any]) -> None:
    """Note that `total` are the global values of the tensors `local`."""
    for tensor, value in zip(local, total):
        setattr(tensor, _ATTRIBUTE, value)


def global_value(tensor: Any) -> Any:
    """The global value of a loss, or None where `tensor` is not one, or belongs to another graph."""
    value = getattr(tensor, _ATTRIBUTE, None)
    if value is None or hasattr(value, "numpy"):
        return value
    return value if value.graph is getattr(tensor, "graph", None) else None
