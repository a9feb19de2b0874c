"""Keras losses whose denominator is not the number of rows: sums, masked means and means over sample weights.

A slice's loss counts with the share of rows it has. Where the loss's own denominator is another, the loss is scaled
so that the ranks' losses, weighed by their rows, add up to that of the whole batch.
"""

from __future__ import annotations

from typing import Any

from matex_tf import figures, losses, reductions, steps
from matex_tf.patches import replace, when_imported


def install() -> None:
    when_imported("keras.src.losses.loss", lambda module: replace(module, "reduce_weighted_values", _keras3))
    for package in ("keras", "tf_keras"):
        when_imported(f"{package}.src.utils.losses_utils", _keras2_utils)


def _keras2_utils(module: Any) -> None:
    replace(module, "compute_weighted_loss", _keras2)
    replace(module, "apply_valid_mask", _keras2_mask)


def scale_own(loss: Any, of: Any = None) -> Any:
    """A scalar that the script computed itself: scaled, where its graph shows that it is a sum over rows or divided by
    one. `of` is what to look at if `loss` was made of it.
    """
    of = loss if of is None else of
    own = reductions.divisor(of)
    if own is not None:
        return _scale_mean(loss, own)
    if not hasattr(of, "numpy") and hasattr(of, "op"):
        losses.say_inexact(reductions.analyse(of))
    return losses.sum_as_mean(loss) if _is_sum(of) else loss


def _is_sum(loss: Any) -> bool:
    if hasattr(loss, "numpy") or not hasattr(loss, "op"):
        return reductions.marked(loss) == "sum"
    return reductions.kind(loss) == "sum"


def _scale_mean(loss: Any, denominator: Any) -> Any:
    """Scale a mean over `denominator` units of this slice to its part of the mean over those of the batch."""
    return reductions.mark(loss * _mean_ratio(denominator, loss), "mean")


def _mean_ratio(denominator: Any, like: Any) -> Any:
    return losses.ratio(losses.share_of(denominator), steps.numbers()[0], like)


def _keras3(original: Any) -> Any:
    def reduce_weighted_values(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        import tensorflow as tf

        loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if reduction in (None, "none") or not isinstance(loss, tf.Tensor) or loss.shape.rank != 0:
            return loss
        if isinstance(values, tf.Tensor) and values.shape.rank == 0:
            return scale_own(loss)
        if reduction == "sum":
            return losses.sum_as_mean(loss)
        if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
            weights = tf.ones([], loss.dtype)
            for part in (sample_weight, mask):
                if part is not None:
                    weights = weights * tf.cast(tf.convert_to_tensor(part), loss.dtype)
            return _scale_mean(loss, tf.reduce_sum(weights))
        if mask is not None:
            return _scale_mean(loss, tf.reduce_sum(tf.cast(tf.convert_to_tensor(mask), loss.dtype)))
        return loss

    return _noted(reduce_weighted_values)


def _noted(reduce: Any) -> Any:
    """In eager code the result, which is scaled as a mean where it is not one, is a figure of the slice."""

    def reduce_and_note(values, *args, **kwargs):
        with figures.left_alone():
            loss = reduce(values, *args, **kwargs)
        if loss is not values and hasattr(loss, "numpy") and loss.shape.rank == 0:
            part = figures.part_of(values)
            if part is not None:
                figures.pass_on(loss, part._replace(kind="mean"))
            else:
                figures.note(loss, values, None, "mean")
        return loss

    return reduce_and_note


def _keras2(original: Any) -> Any:
    def compute_weighted_loss(values, sample_weight=None, reduction="sum_over_batch_size", name=None):
        import tensorflow as tf

        loss = original(values, sample_weight=sample_weight, reduction=reduction, name=name)
        if reduction == "sum":
            return losses.sum_as_mean(loss)
        of_one = isinstance(values, tf.Tensor) and values.shape.rank == 0
        return scale_own(loss, values) if of_one and reduction != "none" else loss

    return _noted(compute_weighted_loss)


def _keras2_mask(original: Any) -> Any:
    """Keras 2 makes the mean over what is not masked by a factor on the weights."""

    def apply_valid_mask(losses, sw, mask, reduction):
        import tensorflow as tf

        weights = original(losses, sw, mask, reduction)
        if mask is None or reduction not in ("auto", "sum_over_batch_size"):
            return weights
        return weights * _mean_ratio(tf.reduce_sum(tf.cast(mask, weights.dtype)), weights)

    return apply_valid_mask
