"""A function with a gradient of its own keeps a model's call from being shared where that is the script's function."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from matex_tf.steps.tapes import calls


@tf.custom_gradient
def own(x):
    return tf.identity(x), lambda upstream: upstream * tf.reduce_mean(upstream)


@pytest.mark.parametrize("activation, hidden", [(tf.nn.silu, ""), (tf.nn.tanh, ""), (own, calls.OWN_GRADIENT)])
def test_only_a_gradient_of_the_script_is_its_own(activation, hidden):
    model = keras.Sequential([keras.Input((3,), dtype="float64"), keras.layers.Dense(2, activation, dtype="float64")])
    spec = tf.TensorSpec([None, 3], tf.float64)
    graph = tf.function(lambda x: model(x), autograph=False).get_concrete_function(spec).graph
    assert calls._find_hidden(model, graph) == hidden
