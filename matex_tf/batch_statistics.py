"""Means and variances over the rows of the global batch, from those that each rank has over its slice.

For layers that normalise by the batch. One collective forwards and one backwards, of a few numbers for each channel;
they are added up in float64, so that the variance may be taken from the mean of squares.
"""

from __future__ import annotations

from typing import Any

from matex_tf import ops, settings, steps, whole_runs, world


def are_global() -> bool:
    """Whether layers made or run now are to use the statistics of the global batch."""
    chosen = settings.current().sync_batchnorm
    wanted = chosen == "on" or chosen == "auto" and settings.current().scaling == "strong"
    if not world.is_active() or not wanted:
        return False
    if steps.in_session_graph():
        import tensorflow as tf

        # Its collectives would have to be put in order with all others of a run, which is not known yet.
        whole_runs.note_normalisation(tf.compat.v1.get_default_graph())
        return False
    return True


def global_moments(mean: Any, variance: Any, count: Any) -> tuple[Any, Any, Any]:
    """The mean and variance over all ranks' elements, and the gradients that lead back to each rank's. Collective.

    Args:
        mean, variance: those of this rank's slice, of one shape and dtype (variance: the mean squared deviation).
        count: over how many elements each was taken, a scalar. Where this rank's rows do not count, it is taken as 0.

    Returns:
        Both, in the shape and dtype given, and the count over all ranks (float64).

    With p the rank's part of all elements, M = sum(p m) and V = sum(p (v + m^2)) - M^2. The gradients of a rank are
    later multiplied by its weight w, so upstream gradients are weighed by w before they are summed, and p by 1 / w.
    """
    import tensorflow as tf

    shape, dtype = tf.shape(mean), mean.dtype
    numbers = steps.numbers()
    count = tf.stop_gradient(tf.cast(count, tf.float64)) * numbers[2]

    @tf.custom_gradient
    def combine(m: Any, v: Any) -> Any:
        packed = tf.concat([count[tf.newaxis], count * m, count * (v + m * m)], 0)
        # Selected, not multiplied: what a rank without rows computed may be no number.
        packed = tf.where(count > 0, packed, tf.zeros_like(packed))
        total = ops.allreduce(packed, op="sum", name="the statistics of a normalisation layer")
        all_m, all_square = tf.split(tf.math.divide_no_nan(total[1:], total[0]), 2)
        all_v = tf.maximum(all_square - all_m * all_m, 0.0)

        def back(upstream_m: Any, upstream_v: Any, _: Any) -> Any:
            upstream = numbers[0] * tf.concat([upstream_m, upstream_v], 0)
            upstream = tf.where(numbers[0] > 0, upstream, tf.zeros_like(upstream))
            summed = ops.allreduce(upstream, op="sum", name="the gradients of a normalisation layer's statistics")
            part = tf.math.divide_no_nan(count, total[0])
            grad_m, grad_v = tf.split(summed * tf.math.divide_no_nan(part, numbers[0]), 2)
            return grad_m + 2 * grad_v * (m - all_m), grad_v

        return (all_m, all_v, total[0]), back

    *whole, everything = combine(*(tf.reshape(tf.cast(part, tf.float64), [-1]) for part in (mean, variance)))
    return *(tf.cast(tf.reshape(part, shape), dtype) for part in whole), everything


def counted_elements(inputs: Any, mean: Any, mask: Any = None) -> Any:
    """Over how many elements of `inputs` each entry of `mean` was taken; `mask` leaves some of them out."""
    import tensorflow as tf

    if mask is not None:
        return tf.reduce_sum(tf.cast(mask, tf.float64))
    return tf.size(inputs, tf.int64) // tf.maximum(tf.size(mean, tf.int64), 1)
