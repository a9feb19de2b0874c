"""Moving statistics that each rank has of its own rows: not taken for weights that have drifted apart."""

import launch

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
keras.utils.set_random_seed(1)
layers = [keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
optimizer = keras.optimizers.SGD(0.1)


@tf.function
def step(a):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - a[:, :1]) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


for epoch in range(4):
    for a in tf.data.Dataset.from_tensor_slices(x).batch(8):
        step(a)
print("DONE")
"""


def test_a_loop_after_fit_goes_on():
    env = {"MATEX_SCALING": "weak", "MATEX_DRIFT_STEPS": "3"}
    result = launch.run(2, SCRIPT, env=env).check()
    assert result.stdout.count("DONE") == 1
