"""The loss of a script's own loop, made global where it passes through our hands.

A loss that a tape differentiates rides with its gradients; the sum over ranks, weighted as they are, is the loss of the
global batch. What a `tf.function` returns of it, what a metric is fed of it and what eager code reads of its value is
then the global one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import graphs, ops, output, reductions, steps

_ATTRIBUTE = "_matex_global"
_inexact = 0
_held: list[str] | None = None
_ALL = "_matex_globals"


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
    if steps.in_session_graph():
        graphs.note_targets(parts)
    if len(parts) == 1:
        own = reductions.divisor(parts[0])
        if own is not None:
            return tf.stack([share_of(own), steps.numbers()[3]])
    if tf.executing_eagerly():
        kinds = {reductions.marked(part) or ("sum" if part.shape.rank else "mean") for part in parts}
        return steps.weight_and_rows(of_sum=kinds == {"sum"})
    found = [reductions.analyse(part) for part in parts]
    of_sum = {one.kind for one in found} == {"sum"}
    for one in found:
        say_inexact(one)
    if of_sum and any(one.penalty for one in found):
        inexact(
            "a loss that is a sum over rows has a penalty on the weights, which every rank adds: it counts as many "
            "times as there are ranks. Make the loss a mean, or divide the penalty by matex_tf.size()"
        )
    return steps.weight_and_rows(of_sum=of_sum)


def inexact(text: str) -> None:
    """Say, once, `text`: why the ranks' parts do not add up to the whole batch's, where they are to."""
    from matex_tf import fitting

    global _inexact
    _inexact += 1
    run = fitting.current()
    if run is not None and run.training is not None and run.training.whole:
        return
    if steps.in_session_graph():
        graphs.note_inexact(text)  # what is fed to a training run of this graph is not known yet
        return
    if _held is None:
        output.note(text)
    else:
        _held.append(text)


@contextlib.contextmanager
def held() -> Iterator[list[str]]:
    """What is found inexact within it is not said but put into the list."""
    global _held
    before, _held = _held, []
    try:
        yield _held
    finally:
        _held = before


def times_inexact() -> int:
    """How often `inexact` was called."""
    return _inexact


def say_inexact(found: reductions.Analysis) -> None:
    """Say, once, where the ranks' parts of a loss do not add up to that of the whole batch."""
    if found.ratios and found.denominator is None:
        inexact(
            "a loss is divided by a sum over the data, beside other terms or by one that depends on the weights (as in "
            "Dice): ranks' losses are weighed by rows, which is exact only where each slice has the same such sum for "
            "each row"
        )
    if found.bent:
        inexact(
            "a loss is a curve, such as a square root, of a mean or sum over rows: ranks take it of their own rows and "
            "weigh the results by rows, which is not exactly the loss of the whole batch"
        )
    if found.mixed:
        inexact(
            "a loss has terms that are means over rows and others that are sums: all are weighed by rows, so that the "
            "sums count less than in the script alone. Make them all means"
        )


def ratio(part: Any, whole: Any, like: Any) -> Any:
    """`part` of `whole` in the dtype of `like`; 1 where the whole is nothing."""
    import tensorflow as tf

    found = tf.where(whole > 0, tf.math.divide_no_nan(part, whole), tf.ones_like(part))
    return tf.cast(found, like.dtype)


def sum_as_mean(loss: Any) -> Any:
    """The sum over rows `loss`, scaled so that the ranks' values, weighed as means are, add up to that of the batch."""
    numbers = steps.numbers()
    return reductions.mark(loss * ratio(numbers[1], numbers[0], loss), "mean")


def share_of(denominator: Any) -> Any:
    """What this rank's part of a loss weighs that is divided by `denominator`, a sum or mean over its rows. Collective.

    A float64 scalar: the rank's share in the sum over ranks; that of the rows where the sum is 0.
    """
    import tensorflow as tf

    numbers = steps.numbers()
    eager = hasattr(denominator, "numpy")
    kind = reductions.marked(denominator) if eager else reductions.kind(denominator)
    own = tf.stop_gradient(tf.cast(denominator, tf.float64))
    own = own * numbers[0] if kind == "mean" else own
    own = tf.where(numbers[2] > 0, own, tf.zeros_like(own))
    total = ops.allreduce(own, op="sum", name="loss_denominator")
    return tf.where(tf.equal(total, 0), numbers[0], tf.math.divide_no_nan(own, total))


def remember(local: Sequence[Any], total: Sequence[Any]) -> None:
    """Note that `total` are the global values of the tensors `local`."""
    for tensor, value in zip(local, total):
        setattr(tensor, _ATTRIBUTE, value)
        setattr(tensor, _ALL, [*getattr(tensor, _ALL, []), value])


def global_value(tensor: Any) -> Any:
    """The global value of a loss, or None where `tensor` is not one, or belongs to another graph."""
    value = getattr(tensor, _ATTRIBUTE, None)
    if value is None or hasattr(value, "numpy"):
        return value
    return value if value.graph is getattr(tensor, "graph", None) else None


def global_values(tensor: Any) -> list[Any]:
    """Of a tensor in a graph of `tf.compat.v1` the global values by each reduction that it went through."""
    return getattr(tensor, _ALL, [])


def global_figures(tensors: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """For the tensors that a training step in a graph returns, what they are over the whole batch; None for the rest.

    Scalars whose graph shows that they are a mean or a sum over rows are summed over the ranks, weighed as a loss would
    be: an accuracy, a part of the loss, the loss divided by a number. `known` has the global values known already.
    """
    import tensorflow as tf

    result, weights = list(known), {}
    for index, tensor in enumerate(tensors):
        if known[index] is not None or not isinstance(tensor, tf.Tensor) or tensor.shape.rank != 0:
            continue
        weight = _weight_of_figure(tensor)
        if weight is not None:
            weights[index] = weight
    for index, total in _totals(tensors, weights, "figures of a step").items():
        result[index] = total
    return result


def global_logs(logs: Any) -> Any:
    """`logs`, what a step of Keras in a graph returns, with its figures of this rank's rows made global.

    Metrics know those of all rows; a loss or a figure of the script's own does not. One whose graph does not show what
    it is is weighed by rows, so that at least all ranks, and their callbacks, see the same.
    """
    import tensorflow as tf

    flat = tf.nest.flatten(logs)
    weights = {}
    for index, value in enumerate(flat):
        if not isinstance(value, tf.Tensor) or hasattr(value, "numpy") or value.shape.rank != 0:
            continue
        known = global_value(value)
        if known is not None:
            flat[index] = known
        elif value.dtype.is_floating and reductions.depends_on_data(value):
            weight = _weight_of_figure(value)
            weights[index] = steps.numbers()[0] if weight is None else weight
    for index, total in _totals(flat, weights, "the logs of a step").items():
        flat[index] = total
    return tf.nest.pack_sequence_as(logs, flat)


def _totals(tensors: Sequence[Any], weights: dict[int, Any], name: str) -> dict[int, Any]:
    """By their places, the scalars among `tensors` that have weights: the sums over ranks of each rank's, weighed."""
    import tensorflow as tf

    if not weights:
        return {}
    weighed = [
        tf.where(weight > 0, tf.cast(tensors[index], tf.float64) * weight, tf.zeros([], tf.float64))
        for index, weight in weights.items()
    ]
    totals = tf.unstack(ops.allreduce(tf.stack(weighed), op="sum", name=name), num=len(weights))
    return {index: tf.cast(total, tensors[index].dtype) for index, total in zip(weights, totals)}


def _weight_of_figure(tensor: Any) -> Any:
    found = reductions.analyse(tensor)
    if found.kind == "unknown" or found.bent or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        return None
    if found.ratios:
        return None if found.denominator is None else share_of(found.denominator)
    if found.kind == "mean" and tensor.dtype.is_integer:
        return None
    return steps.numbers()[1 if found.kind == "sum" else 0]
