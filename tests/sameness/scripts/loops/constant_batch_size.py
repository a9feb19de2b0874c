"""A step that relies on its batch size, with a dataset that it divides."""

import numpy as np
import tensorflow as tf

BATCH_SIZE = 16
x_train = np.random.RandomState(0).rand(64, 4, 4).astype("float32")
y_train = np.random.RandomState(1).randint(0, 3, 64)
train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(64).batch(BATCH_SIZE)
kernel = tf.Variable(tf.random.normal([16, 3], stddev=0.1, seed=1))


@tf.function
def train_step(images, labels):
    flat = tf.reshape(images, [BATCH_SIZE, 16])
    one_hot = tf.one_hot(labels, 3)
    with tf.GradientTape() as tape:
        scores = tf.matmul(flat, kernel)
        loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(one_hot, scores)) / BATCH_SIZE
    kernel.assign_sub(0.5 * tape.gradient(loss, kernel))
    return loss


for epoch in range(2):
    for images, labels in train_ds:
        loss = train_step(images, labels)
    print("epoch", epoch, "loss", "%.5f" % float(loss))
