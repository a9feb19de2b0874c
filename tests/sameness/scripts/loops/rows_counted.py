"""Loops that weigh by the rows of a batch, count them, leave out small batches: books of the script's own."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train = rng.rand(150, 6)
y_train = (x_train.sum(1) > 3).astype("int64")
train_data = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(150, seed=1).batch(32)
test_data = tf.data.Dataset.from_tensor_slices((x_train[:40], y_train[:40])).batch(16)
W = tf.Variable(rng.randn(6, 2) * 0.3)
b = tf.Variable(np.zeros(2))
optimizer = tf.keras.optimizers.SGD(0.3)
losses = []


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = x @ W + b
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    optimizer.apply_gradients(zip(tape.gradient(loss, [W, b]), [W, b]))
    return loss, tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == y, tf.int32))


for epoch in range(2):
    total_loss, correct, seen = 0.0, 0, 0
    for x, y in train_data:
        loss, right = train_step(x, y)
        total_loss += loss.numpy() * x.shape[0]
        correct += int(right)
        seen += len(y)
    print("epoch %d: loss %.5f, accuracy %.4f of %d" % (epoch, total_loss / len(x_train), correct / seen, seen))
    losses += [total_loss / len(x_train), total_loss / seen, correct / seen]


class Average:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


average, batches, sizes = Average(), [], []
for step, batch in enumerate(train_data):
    x, y = batch
    if x.shape[0] < 32:
        continue
    n = tf.cast(tf.shape(x)[0], tf.float64)
    y = tf.cast(y, tf.int32)
    with tf.GradientTape() as tape:
        per_row = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x @ W + b)
        loss = tf.reduce_sum(per_row)
    gradients = [g / n for g in tape.gradient(loss, [W, b])]
    optimizer.apply_gradients(zip(gradients, [W, b]))
    average.update(float(loss) / len(x), len(y))
    batches.append((float(loss), len(x)))
    size = y.get_shape()[0]
    sizes.append(size)
    losses += [float(loss / n), float(tf.reduce_sum(per_row) / size)]
print("average %.5f of %d rows in batches of %s" % (average.sum / average.count, average.count, sizes))
losses += [average.sum / average.count, sum(loss for loss, _ in batches) / sum(rows for _, rows in batches)]

for x, y in train_data:
    noise = tf.reshape(tf.range(x.shape[0] * 6), [x.shape[0], 6])
    first = x[: len(x) // 2]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ W + b) ** 2 * tf.ones([tf.shape(x)[0], 1], tf.float64))
    W.assign_sub(0.1 * tape.gradient(loss, W))
    losses.append(float(loss))
print("at last %.5f" % losses[-1])
