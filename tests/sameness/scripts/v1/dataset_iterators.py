"""tf.data in a v1 graph: one-shot and initializable iterators, until OutOfRangeError."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
features, labels = rng.rand(100, 5), rng.rand(100, 1)
dataset = tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(100, seed=3).repeat(2).batch(16)
x, y = tf.data.make_one_shot_iterator(dataset).get_next()
w = tf.get_variable("w", [5, 1], tf.float64, tf.zeros_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
train = tf.train.AdamOptimizer(0.05).minimize(loss)

held_out = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices((features, labels)).batch(50))
vx, vy = held_out.get_next()
error = tf.reduce_mean(tf.abs(tf.matmul(vx, w) - vy))

losses = []
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    try:
        while True:
            value, _ = sess.run([loss, train])
            losses.append(value)
    except tf.errors.OutOfRangeError:
        print("steps", len(losses), "last loss %.6f" % losses[-1])
    sess.run(held_out.initializer)
    print("error %.6f" % np.mean([sess.run(error) for _ in range(2)]))
    weights = sess.run(w)
