"""TensorBoard in the old style: scalars, histograms and images of a training step, written at each step."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(3)
rng = np.random.RandomState(0)
images = rng.rand(96, 8, 8, 1).astype("float32")
labels = np.eye(3, dtype="float32")[rng.randint(0, 3, 96)]

x = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
y = tf.placeholder(tf.float32, [None, 3], name="labels")
W = tf.Variable(tf.truncated_normal([64, 3], stddev=0.1), name="W")
logits = tf.matmul(tf.reshape(x, [-1, 64]), W)
loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1)), tf.float32))
train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
tf.summary.scalar("loss", loss)
tf.summary.scalar("accuracy", accuracy)
tf.summary.histogram("logits", logits)
tf.summary.histogram("images", x)
tf.summary.image("first", x, 2)
merged = tf.summary.merge_all()

losses = []
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    writer = tf.summary.FileWriter("logs", sess.graph)
    for step in range(8):
        rows = rng.choice(96, 20)
        _, text = sess.run([train_op, merged], feed_dict={x: images[rows], y: labels[rows]})
        writer.add_summary(text, step)
        for value in tf.Summary.FromString(text).value:
            if value.HasField("histo"):
                losses += [value.histo.num, value.histo.sum]
            elif value.HasField("simple_value"):
                losses.append(value.simple_value)
                print("%d %s %.4f" % (step, value.tag, value.simple_value))
    writer.close()
    weights = sess.run(W)

losses = [float(value) for value in losses]
