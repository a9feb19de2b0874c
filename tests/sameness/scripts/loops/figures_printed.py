"""Eager training that prints more than its loss: a loss computed anew, accuracies, parts, lists of them, sums; a bar."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train = rng.rand(150, 6)
y_train = (x_train.sum(1) > 3).astype("int64")
train_data = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(150, seed=1).batch(32)
test_data = tf.data.Dataset.from_tensor_slices((x_train[:40], y_train[:40])).batch(16)
W = tf.Variable(rng.randn(6, 2) * 0.3)
b = tf.Variable(np.zeros(2))
memory = tf.Variable(rng.rand(11))  # as many entries as a slice may have rows
optimizer = tf.keras.optimizers.SGD(0.3)


def model(x):
    return tf.matmul(x, W) + b


def cross_entropy(logits, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def accuracy(logits, y):
    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))


losses, best = [], np.inf
for epoch in range(2):
    batch_losses, batch_accuracies, right = [], [], 0
    for step, (x, y) in enumerate(train_data):
        with tf.GradientTape() as tape:
            logits = model(x)
            distance = tf.reduce_sum(tf.square(logits - tf.one_hot(y, 2, dtype=tf.float64))) / 32
            spread = tf.reduce_mean(tf.square(logits))
            penalty = 0.01 * tf.nn.l2_loss(W) + 0.01 * tf.reduce_sum(tf.square(memory))
            loss = distance + 0.5 * spread + penalty
        optimizer.apply_gradients(zip(tape.gradient(loss, [W, b, memory]), [W, b, memory]))
        again = cross_entropy(model(x), y)
        batch_losses.append(loss)
        batch_accuracies.append(accuracy(model(x), y))
        right += int(tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == y, tf.int32)))
        error = tf.sqrt(tf.reduce_mean(tf.square(model(x)[:, 1] - tf.cast(y, tf.float64))))
        if step % 2 == 0:
            print("step %d: loss %.5f, anew %.5f" % (step, loss, again), f"distance {distance:.5f} spread {spread:.5f}")
            print("accuracy %.4f" % batch_accuracies[-1].numpy(), "rmse", "%.5f" % error, "right", right)
            correct = 0
            for x_test, y_test in test_data:
                correct += int(tf.reduce_sum(tf.cast(tf.argmax(model(x_test), 1) == y_test, tf.int32)))
            print("test accuracy", correct / 40)
        losses += [float(again), float(distance), float(spread), float(error)]
        if again < best:
            best = float(again)
    losses += [float(tf.reduce_mean(batch_losses)), float(np.mean(batch_accuracies)), best]
    print("epoch", epoch, "loss %.5f accuracy %.4f" % (losses[-3], losses[-2]))

# A sum over rows that is divided by the number of the batch's rows, as `len` or the shape gives it.
for x, y in train_data:
    with tf.GradientTape() as tape:
        difference = model(x)[:, 0] - tf.cast(y, tf.float64)
        loss = tf.reduce_sum(difference**2) / x.shape[0] + tf.reduce_sum(tf.abs(difference)) / len(x)
    for variable, gradient in zip([W, b], tape.gradient(loss, [W, b])):
        variable.assign_sub(0.1 * gradient)
    losses.append(float(loss))
print("at last %.5f" % losses[-1])
for x, y in train_data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x)[:, 0] - tf.cast(y, tf.float64)))
    W.assign_sub(0.01 * tape.gradient(loss, W))
    losses += [float(loss), float(tf.reduce_sum(model(x)))]
print("sums %.5f %.5f" % tuple(losses[-2:]))

bar = tf.keras.utils.Progbar(5, verbose=2, stateful_metrics=["accuracy"])
for x, y in train_data:
    with tf.GradientTape() as tape:
        logits = model(x)
        loss = cross_entropy(logits, y)
    W.assign_sub(0.1 * tape.gradient(loss, W))
    bar.add(1, values=[("loss", loss), ("accuracy", accuracy(logits, y))])
