"""A keep-probability placeholder, an exponentially decaying rate, a moving average and summaries."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
X, Y = rng.rand(120, 10).astype("float32"), rng.randint(0, 2, 120)
tf.set_random_seed(1)
x = tf.placeholder(tf.float32, [None, 10])
y = tf.placeholder(tf.int32, [None])
keep_prob = tf.placeholder(tf.float32)
is_training = tf.placeholder_with_default(False, [])


def weight_variable(shape):
    return tf.Variable(tf.truncated_normal(shape, stddev=0.1))


w1, w2 = weight_variable([10, 8]), weight_variable([8, 2])
hidden = tf.nn.dropout(tf.nn.relu(tf.matmul(x, w1)), rate=1 - keep_prob)
logits = tf.matmul(hidden, w2)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
global_step = tf.Variable(0, trainable=False)
rate = tf.train.exponential_decay(0.1, global_step, 4, 0.9, staircase=True)
train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss, global_step=global_step)
ema = tf.train.ExponentialMovingAverage(0.9)
with tf.control_dependencies([train_op]):
    train = ema.apply([w1, w2])
tf.summary.scalar("loss", loss)
merged = tf.summary.merge_all()

losses = []
with tf.Session() as sess:
    writer = tf.summary.FileWriter("logs", sess.graph)
    sess.run(tf.global_variables_initializer())
    for i in range(8):
        feed = {x: X[i * 15 : i * 15 + 15], y: Y[i * 15 : i * 15 + 15], keep_prob: 1.0, is_training: True}
        summary, _, value = sess.run([merged, train, loss], feed_dict=feed)
        writer.add_summary(summary, i)
        losses.append(value)
        print("step %d rate %.4f loss %.5f" % (i, sess.run(rate), value))
    final = sess.run(loss, feed_dict={x: X, y: Y, keep_prob: 1.0})
    averaged = sess.run([ema.average(w1), w2])
    writer.close()
print("final %.5f" % final, "runs of summaries:", len(os.listdir("logs")))
