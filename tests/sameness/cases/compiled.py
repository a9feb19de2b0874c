"""Training with `jit_compile=True` in every place where scripts have it, with the kernels of the library and without.

`MATEX_XLA=off` is without.
"""

import os
import re

import corpus_run
import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
GENERATOR = np.random.RandomState(5)
X, Y = GENERATOR.rand(53, 6, 6, 1), GENERATOR.randint(0, 3, 53)
BATCH = 16


def model_of():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="tanh"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def branches_of():
    """A model whose gradients become ready in any order."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 6, 1))
    flat = keras.layers.Flatten()(inputs)
    ends = [keras.layers.Dense(width, "tanh", activity_regularizer="l2")(flat) for width in (1, 3, 5)]
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(ends)))


def loss_of():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(53, seed=5).batch(BATCH)


def fit(model, arrays, **options):
    model.compile(keras.optimizers.Adam(0.01), loss_of(), metrics=["accuracy"], jit_compile=True, **options)
    data = {"x": X, "y": Y, "batch_size": BATCH} if arrays else {"x": dataset()}
    weights = {"sample_weight": GENERATOR.rand(53)} if arrays else {}
    history = model.fit(**data, **weights, epochs=3, verbose=0, validation_data=(X[:9], Y[:9])).history
    figures = [history[name] for name in sorted(history)]
    return [*figures, model.evaluate(X, Y, batch_size=10, verbose=0), model.predict(X, verbose=0), *model.get_weights()]


def loop(model, around):
    """What is compiled is the whole "step", the "forward" pass, or the step that an "epoch" in a function calls."""
    optimizer, loss_fn, accuracy = keras.optimizers.SGD(0.05), loss_of(), keras.metrics.SparseCategoricalAccuracy()
    compiled = tf.function(jit_compile=True)
    forward = compiled(model) if around == "forward" else lambda x: model(x, training=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = forward(x)
            loss = loss_fn(y, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(y, logits)
        return loss

    if around != "forward":
        step = compiled(step)

    @tf.function
    def epoch(batches):
        last = tf.constant(0.0, tf.float64)
        for x, y in batches:
            last = step(x, y)
        return last

    seen = []
    for _ in range(3):
        accuracy.reset_state()
        if around == "epoch":
            seen.append(float(epoch(dataset())))
        else:
            for x, y in dataset():
                seen.append(float(step(x, y)))
        seen.append(float(accuracy.result()))
    return [np.array(seen), *model.get_weights()]


def raw():
    """Plain TensorFlow: variables, updates by hand, and control flow in the compiled step."""
    w, b = tf.Variable(np.ones((36, 3)) / 36), tf.Variable(np.zeros(3))
    flat, wanted = X.reshape(53, 36), np.eye(3)[Y]

    @tf.function(jit_compile=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, tf.matmul(x, w) + b))
        first, second = tape.gradient(loss, [w, b])
        w.assign_sub(0.5 * first)
        for _ in tf.range(2):
            b.assign_sub(0.25 * second)
        return loss

    seen = []
    for x, y in tf.data.Dataset.from_tensor_slices((flat, wanted)).batch(BATCH).repeat(3):
        seen.append(float(step(x, y)))
    return [np.array(seen), w.numpy(), b.numpy()]


def cases():
    found = {
        "fit, arrays": lambda: fit(model_of(), True),
        "fit, dataset": lambda: fit(branches_of(), False, steps_per_execution=3),
        "raw": raw,
    }
    for around in ("step", "forward", "epoch"):
        found[f"loop, {around}"] = lambda around=around: loop(model_of(), around)
    return found


USUAL = ("fit, arrays", "loop, step", "loop, forward")


chosen = {name: case for name, case in cases().items() if corpus_run.is_all() or name in USUAL}
results = {f"{name}|{index}": value for name, case in chosen.items() for index, value in enumerate(case())}
notes = "\n".join(corpus_run.list_notes())
turned_off = dict(re.findall(r"XLA .* is turned off for the function '(\w+)': (.*); the results", notes))
if os.environ.get("MATEX_XLA") == "off":
    # Keras' step of `predict` gathers what the ranks predicted, and XLA cannot know the shape of that. A compiled
    # forward pass has no collective and stays as it is.
    named = {name for name, reason in turned_off.items() if reason != "XLA has no kernel for MatexAllgather"}
    corpus_run.expect("step" in named and len(named) == 2, f"XLA is turned off for other functions: {notes}")
else:
    corpus_run.expect(not turned_off, f"XLA is turned off: {notes}")
