"""v1 graphs in a script that otherwise is eager, sparse feeds of embeddings, and a queue of epochs."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
rng = np.random.RandomState(0)
words, labels = rng.randint(0, 30, (96, 4)), rng.rand(96)
with tf.Graph().as_default():
    v1.set_random_seed(1)
    ids = v1.placeholder(tf.int64, [None, 4], name="ids")
    target = v1.placeholder(tf.float64, [None], name="target")
    rate = v1.placeholder(tf.float64, [], name="rate")
    table = v1.get_variable("table", [30, 5], tf.float64, v1.random_normal_initializer(stddev=0.1))
    kernel = v1.get_variable("kernel", [5, 1], tf.float64, v1.ones_initializer())
    features = tf.reduce_mean(tf.nn.embedding_lookup(table, ids), axis=1)
    prediction = tf.matmul(features, kernel)[:, 0]
    loss = tf.reduce_mean(tf.square(prediction - target))
    train = v1.train.AdagradOptimizer(rate).minimize(loss)
    with v1.Session() as sess:
        sess.run(v1.global_variables_initializer())
        losses = []
        for epoch in range(3):
            for start in range(0, 96, 32):
                feed = {"ids:0": words[start : start + 32], "target:0": labels[start : start + 32], "rate:0": 0.1}
                _, value, rows = sess.run([train, loss, prediction], feed)
                losses.append(value)
            print("epoch", epoch, "loss %.6f" % losses[-1], "rows", rows.shape)
        weights = sess.run([table, kernel])
