"""Loops with less plain losses, metrics and batches."""

import corpus_run
import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
GENERATOR = np.random.RandomState(5)
X, Y = GENERATOR.randn(50, 5), GENERATOR.randn(50, 3)
WEIGHTS = GENERATOR.rand(50)


def dataset(*arrays, batch=16, **options):
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(batch, **options)


def model_of(units=3):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(units)])


def train(loss_of, compiled, data=None, around=lambda model, x: None):
    model, optimizer, seen = model_of(), keras.optimizers.SGD(0.01), []

    def step(x, y, w):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x), w, model)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    step = tf.function(step) if compiled else step
    for _ in range(2):
        for x, y, w in data or dataset(X, Y, WEIGHTS):
            around(model, x)
            loss = step(x, y, w)
            seen += [float(loss)] if loss.shape.rank == 0 else []
    return [*model.get_weights(), np.array(seen)]


def squares(y, p):
    return tf.square(y - p)


def keras_loss(reduction):
    return lambda y, p, w, m: keras.losses.MeanSquaredError(reduction=reduction)(y, p, sample_weight=w)


LOSSES = {
    "mean": lambda y, p, w, m: tf.reduce_mean(squares(y, p)),
    "sum": lambda y, p, w, m: tf.reduce_sum(squares(y, p)),
    "sum over a constant": lambda y, p, w, m: 0.5 * tf.reduce_sum(squares(y, p)) / 16.0,
    "average loss": lambda y, p, w, m: tf.nn.compute_average_loss(
        tf.reduce_sum(squares(y, p), axis=1), global_batch_size=16
    ),
    "vector": lambda y, p, w, m: keras.losses.mean_squared_error(y, p),
    "sum of means": lambda y, p, w, m: tf.reduce_sum([tf.reduce_mean(squares(y, p)), tf.reduce_mean(tf.abs(p))]),
    "sum of a mean over rows": lambda y, p, w, m: tf.reduce_sum(tf.reduce_mean(squares(y, p), axis=0)),
    "mean and penalty": lambda y, p, w, m: tf.reduce_mean(squares(y, p)) + tf.nn.l2_loss(m.weights[0]),
    "keras sum": keras_loss("sum"),
    "keras mean": keras_loss("sum_over_batch_size"),
}


def fetched_together():
    model, optimizer = model_of(), keras.optimizers.SGD(0.05)
    for (x, y), z in zip(dataset(X, Y), dataset(X[::-1].copy(), batch=13)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(y, model(x))) + tf.reduce_mean(tf.square(model(z)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return model.get_weights()


def validation_iterator():
    model, optimizer, seen = model_of(), keras.optimizers.SGD(0.05), []
    held_out = iter(dataset(X, Y, batch=10).repeat())
    for x, y in dataset(X, Y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(squares(y, model(x)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        a, b = next(held_out)
        seen.append(float(tf.reduce_mean(squares(b, model(a)))))
    return [*model.get_weights(), np.array(seen)]


def fit(loss, activity=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(6, activity_regularizer=activity), keras.layers.Dense(3)]
    )
    model.compile(keras.optimizers.SGD(0.01), loss)
    history = model.fit(X, Y, batch_size=16, epochs=2, verbose=0, sample_weight=None).history
    return [*model.get_weights(), np.array(history["loss"])]


def two_outputs():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    model = keras.Model(
        inputs, {"p": keras.layers.Dense(3, name="p")(inputs), "q": keras.layers.Dense(3, name="q")(inputs)}
    )
    model.compile("sgd", {"p": "mse", "q": "mae"})
    history = model.fit(
        X, {"p": Y, "q": Y}, batch_size=16, epochs=2, verbose=0, validation_data=(X[:7], {"p": Y[:7], "q": Y[:7]})
    ).history
    return [*model.get_weights(), *[np.array(history[name]) for name in sorted(history)]]


def masked():
    keras.utils.set_random_seed(1)
    words = GENERATOR.randint(0, 3, (50, 7))  # 0 is masked
    model = keras.Sequential(
        [keras.Input((7,)), keras.layers.Embedding(3, 4, mask_zero=True), keras.layers.LSTM(5, return_sequences=True)]
    )
    model.add(keras.layers.Dense(2))
    model.compile("sgd", "mse")
    history = model.fit(words, GENERATOR.rand(50, 7, 2), batch_size=16, epochs=2, verbose=0).history
    return [*model.get_weights(), np.array(history["loss"])]


USUAL = {
    "average loss, function",
    "fetched together",
    "fit, activity penalty",
    "fit, masked",
    "fit, two outputs",
    "sum of means, function",
    "vector, eager",
}
"""Those that run lines of their own, and of each kind one."""


def cases():
    found = {}
    for name, loss_of in LOSSES.items():
        for compiled in (False, True):
            found[f"{name}, {'function' if compiled else 'eager'}"] = lambda a=(loss_of, compiled): train(*a)
    predict = lambda model, x: model.predict(x, verbose=0)  # noqa: E731
    found["predict within the loop"] = lambda: train(LOSSES["mean"], True, around=predict)
    fixed = dataset(X, Y, WEIGHTS, drop_remainder=True)
    constant = lambda y, p, w, m: tf.reduce_mean(squares(tf.zeros((16, 3), tf.float64), p))  # noqa: E731
    found["a constant batch size"] = lambda: train(constant, False, fixed)
    found["fetched together"] = fetched_together
    found["validation iterator"] = validation_iterator
    found["fit, custom sum"] = lambda: fit(lambda y, p: tf.reduce_sum(squares(y, p)))
    found["fit, activity penalty"] = lambda: fit("mse", "l2")
    found["fit, two outputs"] = two_outputs
    found["fit, masked"] = masked
    return {name: case for name, case in found.items() if corpus_run.is_all() or name in USUAL}


results = {f"{name}|{index}": value for name, case in cases().items() for index, value in enumerate(case())}
