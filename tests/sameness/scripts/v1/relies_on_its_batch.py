"""Graphs that cannot do with a part of the batch: a variable for each row, normalisation by hand, a streaming metric."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
features = rng.rand(120, 4).astype("float32")
classes = np.where(features.sum(1) > 2, 1.0, -1.0).astype("float32")[:, None]
losses, weights = [], []

# A support vector machine with a Gaussian kernel: one dual variable for each row of a batch.
batch_size = 24
x = tf.placeholder(tf.float32, [None, 4])
y = tf.placeholder(tf.float32, [None, 1])
b = tf.Variable(tf.random_normal([1, batch_size], seed=1))
kernel = tf.exp(-0.5 * tf.abs(2.0 * tf.matmul(x, tf.transpose(x))))
products = tf.matmul(tf.transpose(b), b) * tf.matmul(y, tf.transpose(y))
loss = tf.reduce_sum(kernel * products) - tf.reduce_sum(b)
train_step = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(6):
        rows = rng.choice(120, batch_size)
        sess.run(train_step, {x: features[rows], y: classes[rows]})
        losses.append(float(sess.run(loss, {x: features[rows], y: classes[rows]})))
    print("machine %.4f" % losses[-1])
    weights.append(sess.run(b))

# Batch normalisation as it was written before there were layers, and how often the answer was right so far.
tf.reset_default_graph()
x = tf.placeholder(tf.float32, [None, 4])
y = tf.placeholder(tf.float32, [None, 1])
W1 = tf.Variable(tf.random_normal([4, 8], seed=2))
W2 = tf.Variable(tf.random_normal([8, 1], seed=3))
hidden = tf.matmul(x, W1)
mean, variance = tf.nn.moments(hidden, [0])
averages = tf.train.ExponentialMovingAverage(0.9)
update = averages.apply([mean, variance])
with tf.control_dependencies([update]):
    hidden = tf.nn.tanh(tf.nn.batch_normalization(hidden, mean, variance, None, None, 1e-3))
scores = tf.matmul(hidden, W2)
loss = tf.reduce_mean(tf.square(scores - y))
right, count_right = tf.metrics.accuracy(y > 0, scores > 0)
train_step = tf.train.AdamOptimizer(0.01).minimize(loss)
with tf.Session() as sess:
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    for start in range(0, 120, 30):
        feed = {x: features[start : start + 30], y: classes[start : start + 30]}
        _, value, _ = sess.run([train_step, loss, count_right], feed)
        losses.append(float(value))
    losses.append(float(sess.run(right)))
    print("normalised %.4f, right %.4f" % (losses[-2], losses[-1]))
    weights += sess.run([W1, W2, averages.average(mean), averages.average(variance)])
losses += [float(np.abs(weight).sum()) for weight in weights]
weights = [np.asarray(weight) for weight in weights]
