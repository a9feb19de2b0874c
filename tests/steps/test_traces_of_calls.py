"""Which traces of a call are the same, and which models need no other trace."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from matex_tf.steps import capture
from matex_tf.steps.arguments import Arguments
from matex_tf.steps.tapes import still_models

X = tf.constant(np.random.RandomState(0).randn(4, 3))


def trace(function):
    return Arguments((X,), {}).trace_call(function)


def make_function(factor=2.0, turns=3, inner=1.0, other=False):
    """Branches, loops, functions and gradients of their own: what they are called is another in each trace."""

    def function(x):
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: x * factor, lambda: -x)
        _, x = tf.while_loop(lambda i, _: i < turns, lambda i, y: (i + 1, y * inner), [0, x])
        x = tf.function(lambda y: tf.nn.silu(y) + inner)(x)
        return tf.sinh(x) if other else tf.tanh(x)

    return function


def test_traces_of_the_same_ops_have_one_digest():
    digests = {capture.digest_graph(trace(make_function())) for _ in range(3)}
    assert len(digests) == 1


@pytest.mark.parametrize("change", [{"factor": 3.0}, {"turns": 4}, {"inner": 1.5}, {"other": True}])
def test_traces_of_other_ops_have_other_digests(change):
    first, second = (capture.digest_graph(trace(make_function(**one))) for one in ({}, change))
    assert first != second


def test_ranks_compare_ops_with_their_attributes_but_no_constants():
    def digest(**change):
        return capture.digest_graph(trace(make_function(**change)), for_ranks=True)

    assert digest() == digest(factor=3.0) != digest(other=True)
    first, second = (trace(lambda x, kept=kept: tf.reduce_sum(x, 0, keepdims=kept) * 2) for kept in (False, True))
    assert capture.digest_graph(first, for_ranks=True) != capture.digest_graph(second, for_ranks=True)
    first, second = trace(lambda x: (x, x - 1)), trace(lambda x: (x - 1, x))
    assert capture.digest_graph(first) != capture.digest_graph(second)


def test_a_trace_takes_the_tensors_of_the_call_and_what_hangs_on_them():
    tensor = tf.identity(X)
    tensor._keras_mask = tf.constant([True, False, True, True])
    arguments = Arguments((tensor,), {"factor": 2.0})

    def function(x, factor):
        result = x * factor
        result._keras_mask = ~x._keras_mask
        return {"result": result, "none": None}

    graph = arguments.trace_call(function)
    assert [one.shape.as_list() for one in graph.inputs] == [[4, 3], [4]]
    made, hung = graph.structured_outputs
    assert made["none"] is None and made["result"].shape.as_list() == [4, 3]
    assert [list(one) for one in hung if one] == [["_keras_mask"]]


def test_python_that_a_trace_cannot_run_gives_no_trace():
    assert trace(lambda x: x * float(tf.reduce_sum(x))) is None


def test_python_reads_the_number_of_rows_of_the_call():
    assert trace(lambda x: tf.reshape(x, [x.shape[0] * 3]) if x.shape[0] == 4 else None).outputs[0].shape == [12]


@pytest.mark.parametrize("package", [keras, tf_keras])
def test_a_model_is_still_until_an_attribute_of_a_layer_changes(package):
    dropout = package.layers.Dropout(0.5)
    model = package.Sequential([package.layers.Input((3,)), package.layers.Dense(2), dropout])
    model(X, training=True)
    for change in (lambda: setattr(dropout, "rate", 0.25), lambda: setattr(model.layers[0], "trainable", False)):
        is_still = still_models.watch_model(model)
        assert is_still()
        change()
        assert not is_still()


def test_a_model_with_code_of_a_script_is_never_still():
    class Own(keras.layers.Layer):
        def call(self, inputs):
            return inputs

    for layer in (Own(), keras.layers.Lambda(lambda x: x), keras.layers.Dense(3, activation=lambda x: x * 2)):
        model = keras.Sequential([keras.layers.Input((3,)), layer])
        assert not still_models.watch_model(model)()


def test_what_python_has_changed_in_a_trace_is_undone():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.calls, drawn = 0, np.random.RandomState(0)
    np.random.set_state(drawn.get_state())
    undo = still_models.remember_python(model)
    model.calls, model.kept = model.calls + 1, np.random.rand()
    undo()
    assert model.calls == 0 and not hasattr(model, "kept")
    assert np.random.rand() == drawn.rand()
