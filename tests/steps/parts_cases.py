"""Steps that are computed in parts, in float64: `python parts_cases.py FOLDER usual|all`, alone and in parts."""

import os
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.backend.set_floatx("float64")
DRAWN = np.random.RandomState(3)
X, Y, CLASSES = DRAWN.randn(37, 6, 6, 2), DRAWN.randn(37, 3), DRAWN.randint(0, 3, 37)
WORDS = DRAWN.randint(0, 9, (37, 5))
SIZES = [0, 16, 32, 37, 39]  # the rows of each step; of the last there are fewer than parts
results: dict = {}


def kept(name, *values):
    results.update({f"{name} {index}": np.asarray(tf.convert_to_tensor(one)) for index, one in enumerate(values)})


def network(*more, activation=None):
    keras.utils.set_random_seed(1)
    first = [keras.Input((6, 6, 2)), layers.Conv2D(3, 3, activation="relu"), *more, layers.Flatten()]
    return keras.Sequential([*first, layers.Dense(3, activation=activation, kernel_regularizer="l2")])


def fit(name, model, data=X, labels=CLASSES, loss="sparse_categorical_crossentropy"):
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    weights = np.linspace(0, 2, len(data))
    seen = model.fit(data, labels, 16, 2, verbose=0, sample_weight=weights, validation_data=(data[:9], labels[:9]))
    kept(name, *model.get_weights(), *model.optimizer.variables, *seen.history.values())


def steps(name, models, loss_of, data=X, labels=Y):
    """A loop of its own; stores what its step returns, and the weights and the optimizer's state after it."""
    trained = [one for model in models for one in model.trainable_variables]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(trained)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss, *others = loss_of(x, y)
        gradients = tape.gradient(loss, trained)
        norm = tf.linalg.global_norm(gradients)
        optimizer.apply_gradients([(one, of) for one, of in zip(gradients, trained) if one is not None])
        return [loss, norm, *others]

    data, labels = np.concatenate([data, data[:2]]), np.concatenate([labels, labels[:2]])
    for turn in range(2):
        for start, stop in zip(SIZES, SIZES[1:]):
            kept(f"{name} {turn} {start}", *step(tf.constant(data[start:stop]), tf.constant(labels[start:stop])))
    kept(name, *trained, *optimizer.variables)


def of_squares(model):
    def loss_of(x, y):
        made = model(x, training=True)
        return tf.sqrt(tf.reduce_mean((made - y) ** 2)) + sum(model.losses), made

    return loss_of


def sparse():
    keras.utils.set_random_seed(1)
    inner = [layers.Embedding(9, 4), layers.LSTM(4), layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,), dtype="int64"), *inner])
    steps("sparse", [model], of_squares(model), WORDS)


def one_of_two_heads():
    keras.utils.set_random_seed(1)
    given = keras.Input((6, 6, 2))
    flat = layers.Flatten()(given)
    model = keras.Model(given, [layers.Dense(3)(flat), layers.Dense(2)(flat)])
    steps("one of two heads", [model], lambda x, y: (tf.reduce_mean((model(x)[0] - y) ** 2),))


def one_after_another():
    first, second = network(), keras.Sequential([keras.Input((3,)), layers.Dense(3, activation="tanh")])
    steps("one after another", [first, second], lambda x, y: (tf.reduce_mean((second(first(x)) - y) ** 2),))


def dropped():
    """Of a sum over what is linear in the weights, weights times gradients are the sum, if a mask is the same twice."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((50,)), layers.Dense(40, use_bias=False), layers.Dropout(0.5)])
    weight = model.trainable_variables[0]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            made = model(x, training=True)
            loss = tf.reduce_sum(made)
        return loss, tf.reduce_sum(tape.gradient(loss, weight) * weight), made

    x = tf.ones((16, 50), tf.float64)
    for _ in range(2):
        loss, product, made = step(x)
        assert abs(float(loss - product)) < 1e-9 * abs(float(loss)), (loss, product)
        assert len({tuple(row) for row in np.asarray(made).tolist()}) == 16, "two rows have the same mask"
    kept("dropped", loss, made)


def loop_in_a_function():
    model, optimizer = network(layers.Dropout(0.3)), keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    seen = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train(batches):
        total = tf.zeros([], tf.float64)
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            total += loss
            seen.assign_add(tf.shape(x, tf.int64)[0])
        return total

    for _ in range(2):
        kept("loop", train(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)), seen, *model.get_weights())


fit("normalised", network(layers.BatchNormalization(), activation="softmax"))
steps("a root", [model := network()], of_squares(model))
loop_in_a_function()
if sys.argv[2] == "all":
    fit("fit", network(activation="softmax"))
    sparse()
    one_of_two_heads()
    one_after_another()
    dropped()
for _ in range(2):  # gradients that are taken once are no training
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(tf.constant(X)) ** 2)
    kept("eager", loss, *tape.gradient(loss, model.trainable_variables))
np.savez(os.path.join(sys.argv[1], "found.npz"), **results)
