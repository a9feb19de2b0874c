"""Updates that are made in some steps only: in branches, one of them in a branch of a branch."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
x_train = rng.randn(60, 4)
y_train = x_train @ np.array([[1.0], [2.0], [-1.0], [0.5]]) + 0.1

x = tf.placeholder(tf.float64, [None, 4])
y = tf.placeholder(tf.float64, [None, 1])
step = tf.placeholder(tf.int32, [])
w, v, u = (tf.get_variable(name, [4, 1], tf.float64, initializer=tf.zeros_initializer()) for name in "wvu")
of_w, of_v, of_u = (tf.reduce_mean(tf.square(tf.matmul(x, one) - y)) for one in (w, v, u))


def now_and_then():
    later = tf.cond(
        step > 6, lambda: tf.group(tf.train.MomentumOptimizer(0.1, 0.9).minimize(of_u, var_list=[u])), tf.no_op
    )
    first = tf.train.AdamOptimizer(0.05).minimize(of_v, var_list=[v])
    return tf.group(first, later)


sometimes = tf.cond(tf.equal(step % 3, 0), now_and_then, tf.no_op)
always = tf.train.GradientDescentOptimizer(0.1).minimize(of_w, var_list=[w])
losses = []
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for number in range(12):
        first = number * 20 % 60
        feed = {x: x_train[first : first + 20], y: y_train[first : first + 20], step: number}
        losses += session.run([sometimes, always, of_w, of_v, of_u], feed)[2:]
        session.run(sometimes, feed)
    weights = session.run([w, v, u])
print(" ".join(f"{loss:.4f}" for loss in losses[-3:]))
