"""Steps whose variables come in another order on each rank, as from a set: the order of their making counts."""

import corpus_run
import numpy as np
import tensorflow as tf

keras = tf.keras
x = np.random.default_rng(0).normal(size=(9, 3))
y = np.random.default_rng(1).normal(size=(9, 3))
results = {}


def make_variables():
    generator = np.random.default_rng(2)
    shapes = [(3, 3), (3, 3), (3,), (3, 3), (3,)]
    return [tf.Variable(generator.normal(size=shape)) for shape in shapes]


def shuffled(variables):
    return [variables[place] for place in np.random.default_rng(corpus_run.get_rank()).permutation(len(variables))]


def compute(weights, a):
    first, second, bias, third, last = weights
    return tf.tanh(tf.tanh(tf.tanh(a @ first) @ second + bias) @ third) + last


def train(name, decorate, steps=4):
    weights = make_variables()
    listed = shuffled(weights)
    optimizer = keras.optimizers.Adam(0.05)

    @decorate
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((compute(weights, a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, listed), listed))
        return loss

    results[f"{name}|losses"] = np.array([step(tf.constant(x), tf.constant(y)) for _ in range(steps)])
    results[f"{name}|weights"] = np.concatenate([tf.reshape(one, [-1]) for one in weights])


train("function", tf.function)
train("eager", lambda step: step)
train("jit", tf.function(jit_compile=True))
