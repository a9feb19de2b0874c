"""Eager steps and functions whose loss has a figure of the whole batch in it, or of the rows that a condition chooses."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(1)
x_train = rng.randn(75, 5)
y_train = (x_train[:, :1] + 0.3 * rng.randn(75, 1) > 0.4).astype(float)


def balanced(p, y):
    share = tf.reduce_mean(y)
    return -tf.reduce_mean(y * (1 - share) * tf.math.log(p) + (1 - y) * share * tf.math.log(1 - p))


def of_the_positive(p, y):
    return tf.reduce_mean(tf.boolean_mask(tf.square(p - y), y > 0.5)) + tf.reduce_mean(tf.square(p - y))


def dice(p, y):
    return 1 - 2 * tf.reduce_sum(p * y) / (tf.reduce_sum(p) + tf.reduce_sum(y) + 1)


def weighed(p, y):
    weights = 1 + tf.cast(y > 0.5, p.dtype)
    return tf.reduce_sum(weights * tf.square(p - y)) / tf.reduce_sum(weights)


def per_row(p, y):
    return tf.reduce_sum(tf.square(p - y)) * (1.0 / tf.cast(tf.shape(p)[0], p.dtype))


def network():
    model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(8, activation="tanh")])
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    models.append(model)
    return model, tf.keras.optimizers.SGD(0.2), tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(25)


def step_of(objective, model, optimizer):
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = objective(model(x), y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return train_step


models, history = [], []
for objective in (balanced, of_the_positive, dice, weighed, per_row):
    for wrap in (tf.function, lambda step: step):
        model, optimizer, dataset = network()
        train_step = wrap(step_of(objective, model, optimizer))
        for epoch in range(2):
            for x, y in dataset:
                history.append(float(train_step(x, y)))
        print("%s %.5f" % (objective.__name__, history[-1]))

    model, optimizer, dataset = network()
    train_step = step_of(objective, model, optimizer)

    @tf.function
    def train_epoch():
        total = tf.constant(0.0, tf.float64)
        for x, y in dataset:
            total += train_step(x, y)
        return total

    history += [float(train_epoch()) for epoch in range(2)]
    print("%s in one function %.5f" % (objective.__name__, history[-1]))
