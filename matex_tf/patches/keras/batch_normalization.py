"""Batch normalisation by the statistics of the global batch, in Keras 3, Keras 2 and TensorFlow's fused op."""

from __future__ import annotations

from typing import Any

from matex_tf.analysis import programs
from matex_tf.gradients import batch_moments, row_mixing
from matex_tf.runtime.keras_table import KerasTable

HOOKS = KerasTable()


@HOOKS.replace_in(
    "a BatchNormalization has the statistics of a rank's slice",
    "layers.normalization.batch_normalization:BatchNormalization._moments",
    "layers.normalization.batch_normalization:BatchNormalizationBase._moments",
)
def _wrap_moments(original: Any) -> Any:
    @programs.mark_ours()
    def moments(self, inputs, *args, **kwargs):
        mean, variance = original(self, inputs, *args, **kwargs)
        moments_of = batch_moments.choose_moments()
        if moments_of is None or row_mixing.is_whole(inputs):
            return mean, variance
        # Keras 3 gives (inputs, mask), Keras 2 (inputs, reduction_axes, keep_dims, mask).
        mask = kwargs.get("mask", args[-1] if len(args) in (1, 3) else None)
        axes = getattr(self, "_reduction_axes", None) or kwargs.get("reduction_axes") or args[0]
        count = batch_moments.count_elements(inputs, mean, mask)
        return moments_of(mean, variance, count, inputs, axes)[:2]

    return moments


@HOOKS.replace("tensorflow", "compat.v1.nn.fused_batch_norm", "fused statistics are those of a rank's slice")
def _wrap_fused(original: Any) -> Any:
    @programs.mark_ours()
    def fused_batch_norm(
        x, scale, offset, mean=None, variance=None, epsilon=0.001, data_format="NHWC", is_training=True, name=None,
        exponential_avg_factor=1.0,
    ):  # fmt: skip
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        moments_of = batch_moments.choose_moments() if is_training else None
        if moments_of is None or row_mixing.is_whole(x):
            return original(
                x, scale, offset, mean, variance, epsilon, data_format, is_training, name, exponential_avg_factor
            )
        channel = 1 if data_format.startswith("NC") else x.shape.rank - 1
        axes = [axis for axis in range(x.shape.rank) if axis != channel]
        wide = tf.cast(x, scale.dtype)
        own_mean, own_variance = tf.nn.moments(wide, axes, keepdims=True)
        count = batch_moments.count_elements(x, own_mean)
        batch_mean, batch_variance, everything = moments_of(own_mean, own_variance, count, x, axes)
        shape = tf.shape(batch_mean)
        y = tf.nn.batch_normalization(
            wide, batch_mean, batch_variance, tf.reshape(offset, shape), tf.reshape(scale, shape), epsilon
        )
        new_mean = tf.reshape(batch_mean, [-1])
        # As the fused op does: the variance that goes into the moving average is that of a sample.
        sample = tf.cast(everything / tf.maximum(everything - 1, 1), scale.dtype)
        new_variance = tf.reshape(batch_variance, [-1]) * sample
        if exponential_avg_factor is not None and not _is_one(exponential_avg_factor):
            factor = tf.cast(exponential_avg_factor, scale.dtype)
            new_mean = mean * (1 - factor) + new_mean * factor
            new_variance = variance * (1 - factor) + new_variance * factor
        return tf.cast(y, x.dtype), new_mean, new_variance

    return fused_batch_norm


def _is_one(factor: Any) -> bool:
    return isinstance(factor, (int, float)) and factor == 1
