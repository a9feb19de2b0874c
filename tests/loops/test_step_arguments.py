"""Which calls of a step have one plan: those whose arguments are alike, in kind and in structure."""

from __future__ import annotations

import pytest
import tensorflow as tf

from matex_tf.loops import step_arguments

X, Y = tf.ones([4, 3]), tf.ones([4])


@tf.function
def step(x, y=None, *others, scale=1.0):
    return x


def key(*args, **kwargs):
    return step_arguments.Arguments(step, args, kwargs).make_key()


def test_calls_that_are_alike_have_one_key():
    assert key(X, Y) == key(x=X, y=Y) == key(tf.zeros([9, 3]), tf.zeros([9])) == key(X, Y, scale=1.0)


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((X,), {}),
        (([X, Y],), {}),
        (((X, Y),), {}),
        (([X], Y), {}),
        ((X, [Y]), {}),
        (({"a": X, "b": Y},), {}),
        ((X, Y, None), {}),
        ((X, Y), {"scale": 2.0}),
        ((X, tf.ones([4], tf.float64)), {}),
        ((X, tf.ones([5])), {}),
    ],
    ids=str,
)
def test_calls_that_differ_have_keys_that_differ(args, kwargs):
    assert key(*args, **kwargs) != key(X, Y)


def test_a_list_of_one_is_another_structure_than_its_tensor():
    @tf.function
    def one(x):
        return x

    keys = [step_arguments.Arguments(one, (x,), {}).make_key() for x in (X, [X], (X,), {"x": X}, [[X]])]
    assert len(set(keys)) == len(keys)


def test_parameters_are_those_of_each_function():
    """The method of two objects, and functions of one name."""

    class Model:
        @tf.function
        def step(self, x, scale=2.0):
            return x

    for model in (Model(), Model()):
        (x, scale), kwargs = step_arguments.bind_arguments(model.step, (X,), {})
        assert x is X and scale == 2.0 and not kwargs
    with pytest.raises(TypeError, match="unexpected keyword"):
        step_arguments.bind_arguments(step, (X,), {"other": 1})
