"""Training in eager code, which every rank computes whole.

Other ranks than 0 begin with other values, where `RANK` is in them; rank 0 has what the script alone has, and so have
all in the end.
"""

import corpus_run
import keras
import numpy as np
import tensorflow as tf
import tf_keras

RANK = corpus_run.get_rank()
GENERATOR = np.random.RandomState(3)
X, Y = GENERATOR.randn(24, 4), GENERATOR.randn(24, 2)
keras.backend.set_floatx("float64")
tf_keras.backend.set_floatx("float64")
results = {}


def store(name, values):
    results.update({f"{name} {place}": np.asarray(value) for place, value in enumerate(values)})


def batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def weights():
    return tf.Variable(np.linspace(-1, 1, 8).reshape(4, 2) + 0.3 * RANK)


def compute_loss(w, x, y):
    return tf.reduce_mean(tf.square(tf.tanh(x @ w) - y))


def by_hand():
    """A step that updates a weight, and the weight."""
    w = weights()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = compute_loss(w, x, y)
        w.assign_sub(0.1 * tape.gradient(loss, w))

    return step, w


def train_by_hand():
    step, w = by_hand()
    for x, y in batches():
        step(x, y)
    store("updates by hand", [w])


def train_functions_eagerly():
    step, w = by_hand()
    tf.config.run_functions_eagerly(True)
    step = tf.function(step)
    for x, y in batches():
        step(x, y)
    tf.config.run_functions_eagerly(False)
    store("functions that run eagerly", [w])


def train_in_a_function_without_products():
    w, word = tf.Variable(np.array([0.5, -0.5]) + RANK), tf.Variable("a" * (1 + RANK))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x[:, :2] * w - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return tf.strings.length(word)

    lengths = [step(x, y) for x, y in batches()]
    store("a function without products", [w, *lengths])


def scale_loss(optimizer):
    if keras.__version__ < "3":  # with TensorFlow 2.15
        return keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=8.0)
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)


def train_with_optimizers():
    module = tf_keras.optimizers
    optimizers = {
        "Adam of Keras 3": keras.optimizers.Adam(0.05),
        "a loss that is scaled": scale_loss(keras.optimizers.SGD(0.1)),
        "Adam of Keras 2": module.Adam(0.05),
        "legacy momentum": module.legacy.SGD(0.05, momentum=0.9),
    }
    for name, optimizer in optimizers.items():
        w = weights()
        for x, y in batches():
            with tf.GradientTape() as tape:
                loss = compute_loss(w, x, y)
            gradient = tape.gradient(loss, w)
            optimizer.apply_gradients(grads_and_vars=zip([gradient], [w]))
        own = optimizer.variables
        store(name, [w, *(own() if callable(own) else own)])


def train_with_an_iterator():
    if keras.__version__ < "3":  # with TensorFlow 2.15: `apply` is of Keras 3
        return
    w, optimizer = weights(), keras.optimizers.SGD(0.1)
    for x, y in batches():
        with tf.GradientTape() as tape:
            loss = compute_loss(w, x, y)
        optimizer.apply([tape.gradient(loss, w)], iter([w]))
    store("an iterator of weights", [w])


def fit_eagerly():
    for package, name in ((keras, "fit of Keras 3"), (tf_keras, "fit of Keras 2")):
        package.utils.set_random_seed(1)
        layers = package.layers
        model = package.Sequential(
            [layers.Input((4,)), layers.Dense(3, "tanh"), layers.BatchNormalization(), layers.Dense(2)]
        )
        model.set_weights([value + 0.1 * RANK for value in model.get_weights()])
        model.compile(package.optimizers.Adam(0.01), "mse", metrics=["mae"], run_eagerly=True)
        history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, validation_data=(X, Y))
        store(name, [*model.get_weights(), *history.history.values()])


def change_one_rank():
    """Weights that one rank alone sets are those of rank 0 in `evaluate` and `predict`."""
    for package, name in ((keras, "Keras 3"), (tf_keras, "Keras 2")):
        package.utils.set_random_seed(1)
        model = package.Sequential([package.layers.Input((4,)), package.layers.Dense(2)])
        model.compile("sgd", "mse")
        model.evaluate(X, Y, verbose=0)
        if RANK == 0:
            model.set_weights([value + 1.0 for value in model.get_weights()])
        store(f"evaluate of {name}", [model.evaluate(X, Y, verbose=0)])
        if RANK == 0:
            model.set_weights([value + 1.0 for value in model.get_weights()])
        store(f"predict of {name}", [model.predict(X, verbose=0)])


def stop_on_one_rank():
    for package, name in ((keras, "Keras 3"), (tf_keras, "Keras 2")):

        class StopAtBatch(package.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 1 and RANK == 0:
                    self.model.stop_training = True

        class StopAtEpoch(package.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1 and RANK == 0:
                    self.model.stop_training = True

        for callback in (StopAtBatch(), StopAtEpoch()):
            package.utils.set_random_seed(1)
            model = package.Sequential([package.layers.Input((4,)), package.layers.Dense(2)])
            model.compile("sgd", "mse")
            model.fit(X, Y, batch_size=8, epochs=4, verbose=0, callbacks=[callback])
            store(f"{type(callback).__name__} of {name}", model.get_weights())


train_by_hand()
train_functions_eagerly()
train_in_a_function_without_products()
train_with_optimizers()
train_with_an_iterator()
fit_eagerly()
change_one_rank()
stop_on_one_rank()
notes = "\n".join(corpus_run.list_notes())
corpus_run.expect(notes.count("@tf.function") == 1, f"other advice than once to use a tf.function: {notes}")
corpus_run.expect("stopped training on rank 0" in notes, f"no line says who has stopped: {notes}")
