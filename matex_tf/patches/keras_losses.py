"""Keras losses whose denominator is not the number of rows: sums, masked means and means over sample weights.

A slice's loss counts with the share of rows it has. Where the loss's own denominator is another, the loss is scaled
so that the ranks' losses, weighed by their rows, add up to that of the whole batch.
"""

from __future__ import annotations

from typing import Any

from matex_tf import ops, reductions, steps
from matex_tf.patches import replace, when_imported


def install() -> None:
    when_imported("keras.src.losses.loss", lambda module: replace(module, "reduce_weighted_values", _keras3))
    for package in ("keras", "tf_keras"):
        when_imported(
            f"{package}.src.utils.losses_utils", lambda module: replace(module, "compute_weighted_loss", _keras2)
        )


def _ratio(part: Any, whole: Any, like: Any) -> Any:
    import tensorflow as tf

    ratio = tf.where(whole > 0, tf.math.divide_no_nan(part, whole), tf.ones_like(part))
    return tf.cast(ratio, like.dtype)


def _scale_sum(loss: Any) -> Any:
    numbers = steps.numbers()
    return reductions.mark(loss * _ratio(numbers[1], numbers[0], loss), "mean")


def scale_own(loss: Any) -> Any:
    """A scalar that the script computed itself: scaled, where its graph shows that it is a sum over rows."""
    if hasattr(loss, "numpy") or not hasattr(loss, "op"):
        return _scale_sum(loss) if reductions.marked(loss) == "sum" else loss
    return _scale_sum(loss) if reductions.kind(loss) == "sum" else loss


def _scale_mean(loss: Any, denominator: Any) -> Any:
    """Scale a mean over `denominator` units of this slice to its part of the mean over those of the batch."""
    import tensorflow as tf

    numbers = steps.numbers()
    own = tf.stop_gradient(tf.cast(denominator, tf.float64))
    total = ops.allreduce(tf.where(numbers[2] > 0, own, tf.zeros_like(own)), op="sum", name="loss_denominator")
    share = tf.math.divide_no_nan(own, total)
    return reductions.mark(loss * _ratio(share, numbers[0], loss), "mean")


def _keras3(original: Any) -> Any:
    def reduce_weighted_values(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        import tensorflow as tf

        loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if reduction in (None, "none") or not isinstance(loss, tf.Tensor) or loss.shape.rank != 0:
            return loss
        if isinstance(values, tf.Tensor) and values.shape.rank == 0:
            return scale_own(loss)
        if reduction == "sum":
            return _scale_sum(loss)
        if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
            weights = tf.ones([], loss.dtype)
            for part in (sample_weight, mask):
                if part is not None:
                    weights = weights * tf.cast(tf.convert_to_tensor(part), loss.dtype)
            return _scale_mean(loss, tf.reduce_sum(weights))
        if mask is not None:
            return _scale_mean(loss, tf.reduce_sum(tf.cast(tf.convert_to_tensor(mask), loss.dtype)))
        return loss

    return reduce_weighted_values


def _keras2(original: Any) -> Any:
    def compute_weighted_loss(losses, sample_weight=None, reduction="sum_over_batch_size", name=None):
        loss = original(losses, sample_weight=sample_weight, reduction=reduction, name=name)
        return _scale_sum(loss) if reduction == "sum" else loss

    return compute_weighted_loss
