"""What cannot be shared out is computed whole on every rank, bit for bit as alone, and said once."""

import numpy as np

import launch

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
x = np.random.rand(96, 4).astype("float32")
y = x.sum(axis=1, keepdims=True)
for epoch in range(2):
    for start in range(0, 96, 16):
        a, b = x[start:start + 16], y[start:start + 16]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
print(float(loss), [value.tobytes().hex() for value in model.get_weights()])

every, weights = tf.constant(x), tf.Variable(tf.zeros([4, 1]))

@tf.function
def train():  # it takes no batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((every @ weights - y) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))

for _ in range(3):
    train()
print(weights.numpy().tobytes().hex())

x = x[:8 * 8]
data = tf.data.Dataset.from_tensor_slices((x, y[:8 * 8])).batch(8)
print(sum(float(tf.reduce_sum(a)) for a, b in data.take(3)), [len(a) for a, b in data])

fixed = keras.Sequential([keras.Input(batch_shape=(8, 4)), keras.layers.Dense(1)])
fixed.compile("sgd", "mse")
fixed.fit(x, y[:64], batch_size=8, verbose=0)
model.compile("sgd", "mse")
for _ in range(2):
    model.fit(x[:8], y[:8], batch_size=2, verbose=0)  # fewer rows than there are ranks
print("SHARED", *np.concatenate([one.ravel() for one in (*fixed.get_weights(), *model.get_weights())]))
"""


def test_whole_batches_give_the_same_bits_and_are_said_once():
    env = {"TF_DETERMINISTIC_OPS": "1", "MATEX_EAGER": "whole"}  # the former refuses some ops
    alone = launch.run_alone(SCRIPT, env=env).check()
    together = launch.run(3, SCRIPT, env=env).check()
    (whole, _, shared), (wanted, _, close) = (one.stdout.partition("SHARED") for one in (together, alone))
    assert whole == wanted
    np.testing.assert_allclose([*map(float, shared.split())], [*map(float, close.split())], rtol=1e-4, atol=1e-6)
    assert together.stderr.count("a training step in eager code cannot be sharded: MATEX_EAGER=whole says so") == 1
    assert together.stderr.count("cannot be sharded: it takes no batch") == 1
    assert together.stderr.count("cannot be sharded") == 2, together.stderr
    assert "matex_tf:" not in alone.stderr
