"""Statistics that each rank has of its own rows, as asked for: not taken for weights that have drifted apart."""

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


HALVES = """
import sys
import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
generator = np.random.default_rng(0)
x, y = generator.normal(size=(32, 6)), generator.normal(size=(32, 1))


def built():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers]), keras.optimizers.SGD(0.1)


def show(model):
    print(" ".join(f"{value:.10f}" for weight in model.trainable_variables for value in np.ravel(weight)))


def gradients(model, a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
    return tape.gradient(loss, model.trainable_variables)


def alone(model, optimizer):  # the mean of what each half of a batch gives, normalised by itself
    for at in range(0, 32, 8):
        halves = [gradients(model, x[low : low + 4], y[low : low + 4]) for low in (at, at + 4)]
        mean = [sum(parts) / 2 for parts in zip(*halves)]
        optimizer.apply_gradients(zip(mean, model.trainable_variables))
    return model


def by_fit(model, optimizer):
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return model


def by_step(model, optimizer):
    @tf.function
    def step(a, b):
        optimizer.apply_gradients(zip(gradients(model, a, b), model.trainable_variables))

    step(x[:8], y[:8])  # the first call is the script's own, on the whole batch
    for variable, value in zip(model.variables, kept):
        variable.assign(value)
    for at in range(0, 32, 8):
        step(x[at : at + 8], y[at : at + 8])
    return model


kept = built()[0].get_weights()
for way in (alone,) if len(sys.argv) > 1 else (by_fit, by_step):
    show(way(*built()))
"""


def test_each_rank_normalises_its_slice_where_that_is_asked_for():
    want = launch.run_alone(HALVES, "alone").check().stdout
    result = launch.run(2, HALVES, env={"MATEX_SYNC_BATCHNORM": "off", "MATEX_EXPLAIN": "1"}).check()
    assert result.stdout == 2 * want
    assert result.output.count("is sharded: each rank computes its slice of every batch\n") == 2
    assert "MATEX_SYNC_BATCHNORM=off: the result is not that of the script alone" in result.output
