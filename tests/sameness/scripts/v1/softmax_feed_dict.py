"""MNIST for beginners, as it was: placeholders, feed_dict, an InteractiveSession."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rng = np.random.RandomState(0)
images, labels = rng.rand(150, 20), np.eye(4)[rng.randint(0, 4, 150)]


def next_batch(step, size):
    start = step * size % len(images)
    return images[start : start + size], labels[start : start + size]


x = tf.placeholder(tf.float32, [None, 20])
y_ = tf.placeholder(tf.float32, [None, 4])
W = tf.Variable(tf.zeros([20, 4]))
b = tf.Variable(tf.zeros([4]))
y = tf.nn.softmax(tf.matmul(x, W) + b)
cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y), reduction_indices=[1]))
train_step = tf.train.GradientDescentOptimizer(0.5).minimize(cross_entropy)
correct_prediction = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
accuracy = tf.reduce_mean(tf.cast(correct_prediction, tf.float32))

sess = tf.InteractiveSession()
tf.global_variables_initializer().run()
for step in range(12):
    batch_xs, batch_ys = next_batch(step, 25)
    _, loss = sess.run([train_step, cross_entropy], feed_dict={x: batch_xs, y_: batch_ys})
    if step % 4 == 0:
        print("step", step, "loss %.5f" % loss)
print("accuracy", sess.run(accuracy, feed_dict={x: images, y_: labels}))
weights = sess.run([W, b])
sess.close()
