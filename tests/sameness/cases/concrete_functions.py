"""ConcreteFunctions that a loop calls, and functions with an open number of rows: batches of several sizes."""

import corpus_run
import numpy as np
import tensorflow as tf

generator = np.random.RandomState(0)
x, y = generator.randn(21, 4), generator.randn(21, 3)
OPEN = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None, 3], tf.float64)]
w, mean = tf.Variable(generator.randn(4, 3) + corpus_run.get_rank()), tf.Variable(np.zeros((4, 3)), trainable=False)
compute_loss = tf.function(lambda x, y: tf.reduce_mean((tf.tanh(x @ w) - y) ** 2), input_signature=OPEN)


@tf.function(input_signature=OPEN)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
    mean.assign(0.9 * mean + tape.gradient(loss, w))
    w.assign_sub(0.1 * mean)
    return {"loss": loss, "rows": tf.shape(x)[0]}


def train(call):
    for at in range(0, 21, 8):
        found = call(x[at : at + 8], y[at : at + 8])
        losses.append(float(found["loss"]) * int(found["rows"]))


losses, concrete = [], step.get_concrete_function()
train(lambda *batch: concrete(*map(tf.constant, batch)))
train(step)
train(lambda x, y: concrete(tf.constant(x), y=tf.constant(y)))
with tf.GradientTape() as tape:  # now its graph has residuals, too
    tape.gradient(compute_loss(x, y), w)
losses += [float(compute_loss(x[at : at + 8], y[at : at + 8])) for at in range(0, 21, 8)]
for name, function in {"a concrete function": concrete, "step": step, "loss": compute_loss}.items():
    corpus_run.expect_shared(name, function)
results = {"losses": np.array(losses), "w": w.numpy(), "mean": mean.numpy()}
