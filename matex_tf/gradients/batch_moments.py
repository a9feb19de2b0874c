"""Means and variances over the rows of the global batch, from those that each rank has over its slice.

For layers that normalise by the batch. One collective forwards and one backwards, of a few numbers for each channel;
they are added up in float64, so that the variance may be taken from the mean of squares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.analysis import declarations, verdict
from matex_tf.analysis.placement import SAME, SHARDED, Placement
from matex_tf.gradients import custom_gradients, local_gradients
from matex_tf.runtime import notes
from matex_tf.sharding import step_weight
from matex_tf.world import world

Moments = Callable[[Any, Any, Any, Any, Sequence[int]], tuple[Any, Any, Any]]
OFF = (
    "MATEX_SYNC_BATCHNORM=off: the result is not that of the script alone. BatchNormalization uses the statistics of "
    "each rank's slice"
)
NO_ROWS = "batch normalisation is given something else than rows of the batch"


def choose_moments() -> Moments | None:
    """What gives the statistics of layers made or run now: `compute_global_moments`, `compute_slice_moments`, or None:
    as they are.
    """
    if not world.is_active() or step_weight.is_alone() or settings.get_settings().scaling == "weak":
        return None
    if step_weight.is_in_session_graph():
        import tensorflow as tf

        # Its collectives would have to be put in order with all others of a run, which is not known yet.
        why = "it normalises by the statistics of its batch"
        verdict.note_failure(tf.compat.v1.get_default_graph(), verdict.Reason(why))
        return None
    return compute_global_moments


def compute_global_moments(
    mean: Any, variance: Any, count: Any, inputs: Any, axes: Sequence[int]
) -> tuple[Any, Any, Any]:
    """The mean and variance over all ranks' elements, and the gradients that lead back to each rank's. Collective.

    Args:
        mean, variance: those of this rank's slice, of one shape and dtype (variance: the mean squared deviation).
        count: over how many elements each was taken, a scalar. Where this rank's rows do not count, it is taken as 0.
        inputs, axes: what they were taken of, and along which axes: one of these is that of the rows.

    Returns:
        Both, in the shape and dtype given, and the count over all ranks (float64).

    Where every rank computes the whole batch, or trains by itself, they are as given, and so are the gradients.

    With p the rank's part of all elements, M = sum(p m) and V = sum(p (v + m^2)) - M^2. A rank's gradients are its part
    of a sum; of a rank's own rows in eager code they are later multiplied by its weight w, so that upstream gradients
    are weighted by w before they are summed, and p by 1 / w.
    """
    import tensorflow as tf

    shape, dtype = tf.shape(mean), mean.dtype
    numbers = step_weight.read_numbers()
    weight = numbers[0] if tf.executing_eagerly() and not step_weight.is_within_slice() else numbers[1]
    mine = tf.stop_gradient(tf.cast(count, tf.float64))
    count, is_sliced = mine * numbers[2], numbers[3] > 0

    @tf.custom_gradient
    def combine(m: Any, v: Any) -> Any:
        packed = tf.concat([count[tf.newaxis], count * m, count * (v + m * m)], 0)
        # Selected, not multiplied: what a rank without rows computed may be no number.
        packed = tf.where(count > 0, packed, tf.zeros_like(packed))
        total = ops.allreduce(packed, op="sum", name="the statistics of a normalisation layer")
        all_m, all_square = tf.split(tf.math.divide_no_nan(total[1:], total[0]), 2)
        all_v = tf.maximum(all_square - all_m * all_m, 0.0)
        found = [tf.where(is_sliced, of_all, own) for of_all, own in ((all_m, m), (all_v, v), (total[0], mine))]

        def back(upstream_m: Any, upstream_v: Any, _: Any) -> Any:
            upstream = weight * tf.concat([upstream_m, upstream_v], 0)
            upstream = tf.where(weight > 0, upstream, tf.zeros_like(upstream))
            summed = ops.allreduce(upstream, op="sum", name="the gradients of a normalisation layer's statistics")
            part = tf.math.divide_no_nan(count, total[0])
            grad_m, grad_v = tf.split(summed * tf.math.divide_no_nan(part, weight), 2)
            grad_m += 2 * grad_v * (m - all_m)
            return tf.where(is_sliced, grad_m, upstream_m), tf.where(is_sliced, grad_v, upstream_v)

        return tuple(found), back

    moments = [tf.reshape(tf.cast(part, tf.float64), [-1]) for part in (mean, variance)]
    # A rank that trains by itself has a batch of its own: parts of the gradients of common statistics lead nowhere.
    with custom_gradients.trust_gradients():
        *whole, everything = (*moments, mine) if local_gradients.are_kept() else combine(*moments)
    _declare_moments(whole, inputs, axes)
    _declare_moments([everything], inputs, axes, or_same=False)
    return *(tf.cast(tf.reshape(part, shape), dtype) for part in whole), everything


def compute_slice_moments(
    mean: Any, variance: Any, count: Any, inputs: Any, axes: Sequence[int]
) -> tuple[Any, Any, Any]:
    """As `compute_global_moments`, of this rank's slice alone: not what the script alone has, which is said."""
    import tensorflow as tf

    notes.print_note(OFF)
    found = tf.identity(mean), tf.identity(variance), tf.cast(count, tf.float64)
    _declare_moments(found, inputs, axes)
    return found


def _declare_moments(parts: Sequence[Any], inputs: Any, axes: Sequence[int], or_same: bool = True) -> None:
    """In a graph: state that statistics of `inputs` are the same on all ranks, where these are rows along `axes`.

    or_same: or where every rank has the same.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        return
    graph, axes = parts[0].graph, [axis % inputs.shape.rank for axis in axes]
    source = inputs if getattr(inputs, "graph", None) is graph else graph.capture(inputs)

    def holds(one: Placement) -> bool:
        return (or_same and one.is_same) or (one.kind == SHARDED and not one.power and one.axis in axes)

    for part in parts:
        declarations.declare_if(part, SAME, source, holds, NO_ROWS)


def count_elements(inputs: Any, mean: Any, mask: Any = None) -> Any:
    """Over how many elements of `inputs` each entry of `mean` was taken; `mask` leaves some of them out."""
    import tensorflow as tf

    if mask is not None:
        return tf.reduce_sum(tf.cast(mask, tf.float64))
    return tf.size(inputs, tf.int64) // tf.maximum(tf.size(mean, tf.int64), 1)
