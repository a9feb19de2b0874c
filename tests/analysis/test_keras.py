"""Layers and losses of Keras of which the rows must stay proved to be independent: so that precision does not fall."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import recombining
import tensorflow as tf

from matex_tf.analysis import interpreter
from matex_tf.analysis.placement import UNKNOWN

L = keras.layers
_random = np.random.default_rng(3)


def _f(*shape: int) -> np.ndarray:
    return _random.normal(size=[4, *shape]).astype(np.float32)


def _is_known(reduction: str) -> bool:
    try:
        return bool(keras.losses.MeanSquaredError(reduction=reduction))
    except ValueError:  # of an older Keras
        return False


REDUCTIONS = [one for one in ("sum_over_batch_size", "sum", "mean_with_sample_weight") if _is_known(one)]
SERIES, IMAGE, IDS = _f(5, 8), _f(8, 8, 4), _random.integers(0, 9, [4, 5], np.int32)
LABELS, SCORES = np.eye(4, dtype=np.float32)[IDS[:, 0] % 4], np.abs(_f(4)) + 0.1
LAYERS = {
    "dense": (lambda: L.Dense(3, activation="gelu"), SERIES), "time": (lambda: L.TimeDistributed(L.Dense(3)), SERIES),
    "norm": (lambda: L.LayerNormalization(), SERIES), "groups": (lambda: L.GroupNormalization(2), IMAGE),
    "batch": (lambda: L.BatchNormalization(), IMAGE), "lstm": (lambda: L.LSTM(3), SERIES),
    "both ways": (lambda: L.Bidirectional(L.GRU(3, return_sequences=True)), SERIES),
    "masked": (lambda: keras.Sequential([L.Embedding(9, 4, mask_zero=True), L.LSTM(3)]), IDS),
    "masked mean": (lambda: keras.Sequential([L.Embedding(9, 4, mask_zero=True), L.GlobalAveragePooling1D()]), IDS),
    "conv": (lambda: L.Conv2D(4, 3, strides=2, padding="same"), IMAGE),
    "causal": (lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2), SERIES),
    "depthwise": (lambda: L.DepthwiseConv2D(3, dilation_rate=2), IMAGE),
    "separable": (lambda: L.SeparableConv2D(4, 3), IMAGE),
    "transposed": (lambda: L.Conv2DTranspose(4, 3, strides=2, padding="same"), IMAGE),
    "upsampled": (lambda: L.UpSampling2D(interpolation="bilinear"), IMAGE),
    "pooled": (lambda: L.AveragePooling2D(2, padding="same"), IMAGE),
    "most": (lambda: L.GlobalMaxPooling2D(), IMAGE), "resized": (lambda: L.Resizing(5, 6), IMAGE),
    "flat": (lambda: keras.Sequential([L.Flatten(), L.RepeatVector(2), L.Permute((2, 1)), L.Reshape((-1, 4))]), IMAGE),
    "convolved in time": (lambda: L.ConvLSTM1D(2, 3), _f(2, 8, 3)),
}  # fmt: skip


def _assert_proved(function, *arguments: np.ndarray) -> None:
    graph = recombining.traced(function, arguments)
    found = interpreter.make_interpreter(graph)
    for tensor in graph.outputs:
        placement = found.find_placement(tensor)
        assert placement.kind != UNKNOWN, f"{placement.why[0]}: {placement.why[1]}"
    assert recombining.wrong_claims(graph, arguments, (3, 1), tolerance=1e-4) == []


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_proved(name):
    make, rows = LAYERS[name]
    layer = make()
    _assert_proved(lambda x: layer(x, training=False), rows)


def test_attention_is_proved():
    layer = L.MultiHeadAttention(2, 4)
    _assert_proved(lambda x: layer(x, x, use_causal_mask=True), SERIES)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "loss", ["MeanSquaredError", "Huber", "LogCosh", "CategoricalCrossentropy", "BinaryCrossentropy", "KLDivergence",
             "CosineSimilarity", "Poisson", "CategoricalHinge", "BinaryFocalCrossentropy"]
)  # fmt: skip
def test_losses_are_proved(loss, reduction):
    made = getattr(keras.losses, loss)(reduction=reduction)
    weights = np.abs(_f())
    _assert_proved(lambda y, p, w: (made(y, p), made(y, p, sample_weight=w)), LABELS, SCORES, weights)


def test_a_mean_over_tokens_that_are_there_is_proved():
    def loss(labels, logits):
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        there = tf.cast(labels != 0, each.dtype)
        return tf.reduce_sum(each * there) / tf.reduce_sum(there)

    _assert_proved(loss, IDS, _f(5, 9))
