"""Keras losses with a mask, in graphs: what is left of all ranks' rows is counted before it meets the rows."""

from __future__ import annotations

from typing import Any

from matex_tf.analysis import interpreter
from matex_tf.gradients import recombine
from matex_tf.runtime.keras_table import KerasTable

HOOKS = KerasTable()

_LOST = "a mean over what a mask leaves is that of a rank's slice"


@HOOKS.replace_in(_LOST, "losses.loss:apply_mask")
def _wrap_keras3_mask(original: Any) -> Any:
    def apply_mask(sample_weight, mask, dtype, reduction):
        import tensorflow as tf

        if mask is None or reduction not in ("mean", "sum_over_batch_size") or tf.executing_eagerly():
            return original(sample_weight, mask, dtype, reduction)
        return _mask_weights(original(sample_weight, mask, dtype, "sum"), mask)

    return apply_mask


def _mask_weights(weights: Any, mask: Any) -> Any:
    """Weights that are 0 where `mask` is false, times what makes a mean over all one over what is not masked.

    That is a figure of the batch, which meets its rows here: so it is made whole first.
    """
    import tensorflow as tf

    mask = tf.cast(mask, weights.dtype)
    valid, total = tf.reduce_sum(mask), tf.cast(tf.size(mask), weights.dtype)
    if all(interpreter.find_placement(one).can_be_whole for one in (valid, total)):
        valid, total = recombine.make_whole([valid, total], "what a mask leaves")
    return weights * tf.math.divide_no_nan(total, valid)


@HOOKS.replace_in(_LOST, keras2="utils.losses_utils:apply_valid_mask")
def _wrap_keras2_mask(original: Any) -> Any:
    """Keras 2 makes the mean over what is not masked by a factor on the weights."""

    def apply_valid_mask(losses, sw, mask, reduction):
        import tensorflow as tf

        if mask is not None and reduction in ("auto", "sum_over_batch_size") and not tf.executing_eagerly():
            return _mask_weights(original(losses, sw, mask, "none"), mask)
        return original(losses, sw, mask, reduction)

    return apply_valid_mask
