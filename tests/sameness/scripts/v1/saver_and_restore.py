"""Saver: train, save, restore in another session and go on."""

import os

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
rng = np.random.RandomState(0)
X, Y = rng.rand(90, 3), rng.rand(90)
graph = tf.Graph()
with graph.as_default():
    tf1.set_random_seed(1)
    inputs = tf1.placeholder(tf.float64, [None, 3])
    outputs = tf1.placeholder(tf.float64, [None])
    weights = tf1.Variable(tf.random.normal([3, 1], dtype=tf.float64), name="weights")
    bias = tf1.Variable(np.zeros(1), name="bias")
    prediction = tf.squeeze(tf.matmul(inputs, weights) + bias, axis=1)
    cost = tf.reduce_sum(tf.pow(prediction - outputs, 2)) / (2 * 90)
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(cost)
    init = tf1.global_variables_initializer()
    saver = tf1.train.Saver(max_to_keep=2)

path = os.path.join("checkpoints", "model.ckpt")
os.makedirs("checkpoints", exist_ok=True)
with tf1.Session(graph=graph) as sess:
    sess.run(init)
    for epoch in range(4):
        _, value = sess.run([optimizer, cost], feed_dict={inputs: X, outputs: Y})
        print("Epoch:", "%04d" % (epoch + 1), "cost=", "{:.9f}".format(value))
        saver.save(sess, path, global_step=epoch)

with tf1.Session(graph=graph) as sess:
    saver.restore(sess, tf1.train.latest_checkpoint("checkpoints"))
    for epoch in range(2):
        sess.run(optimizer, feed_dict={inputs: X, outputs: Y})
    final = sess.run([weights, bias])
    print("W=", final[0].ravel(), "b=", final[1])
