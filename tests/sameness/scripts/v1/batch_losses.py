"""Losses with a figure of the whole batch in them, fed by hand."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(3)
x_train = rng.randn(60, 4)
y_train = (x_train[:, :1] > 0.3).astype(float)
start = rng.randn(4, 1)


def balanced(p, y):
    share = tf.reduce_mean(y)
    return -tf.reduce_mean(y * (1 - share) * tf.log(p) + (1 - y) * share * tf.log(1 - p))


def of_the_positive(p, y):
    return tf.reduce_mean(tf.boolean_mask(tf.square(p - y), y > 0.5)) + tf.reduce_mean(tf.square(p - y))


def dice(p, y):
    return 1 - 2 * tf.reduce_sum(p * y) / (tf.reduce_sum(p) + tf.reduce_sum(y) + 1)


def worst(p, y):
    return tf.reduce_max(tf.abs(p - y))


losses, weights = [], []
for objective in (balanced, of_the_positive, dice, worst):
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(tf.float64, [None, 4]), tf.placeholder(tf.float64, [None, 1])
        kernel = tf.get_variable("kernel", initializer=start)
        loss = objective(tf.sigmoid(tf.matmul(x, kernel)), y)
        train = tf.train.GradientDescentOptimizer(0.3).minimize(loss)
        session.run(tf.global_variables_initializer())
        for first in range(0, 60, 20):
            feed = {x: x_train[first : first + 20], y: y_train[first : first + 20]}
            losses.append(session.run([loss, train], feed)[0])
        weights.append(session.run(kernel))
        print("%s %.6f" % (objective.__name__, losses[-1]))
