"""Loops that look at the rows of their batches in NumPy, or use their number for more than one thing."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train = rng.rand(150, 6)
y_train = (x_train.sum(1) > 3).astype("int64")
W = tf.Variable(rng.randn(6, 2) * 0.3)
losses = []


def dataset():
    return tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(32)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = x @ W
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    W.assign_sub(0.3 * tape.gradient(loss, W))
    return loss, logits


for epoch in range(2):
    correct, seen = 0, 0
    for x, y in dataset():
        loss, logits = train_step(x, y)
        correct += np.sum(np.argmax(logits.numpy(), axis=1) == y.numpy())
        seen += len(y)
    print("epoch %d: accuracy %.4f of %d" % (epoch, correct / seen, seen))
    losses += [correct / seen, float(loss)]

total, seen = 0.0, 0
for x, y in dataset():
    rows = x.shape[0]
    x = x + 0.01 * tf.reshape(tf.range(rows * 6, dtype=tf.float64), [rows, 6]) / 6
    loss, _ = train_step(x, y)
    total += float(loss) * rows
    seen += rows
print("loss %.5f of %d" % (total / seen, seen))
losses.append(total / seen)


def weighed(loss, x):
    return float(loss) * len(x)


total = 0.0
for x, y in dataset():
    total += weighed(train_step(x, y)[0], x)
print("loss %.5f" % (total / len(x_train)))
losses.append(total / len(x_train))

total = 0.0
for x, y in dataset():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(x, W)[:, 0] - tf.cast(y, tf.float64)) ** 2)
    W.assign_sub(0.1 * tape.gradient(loss, W))
    for row, label in zip(x, y):
        total += float(row[0]) * int(label)
print("rows %.5f" % total)
losses.append(total)

total, seen = 0.0, 0
for x, y in dataset():
    loss, logits = train_step(x, y)
    total += float(loss) * len(logits)
    seen += len(logits)
print("loss %.5f of %d" % (total / seen, seen))
losses.append(total / seen)
