"""Steps in eager code see whole batches, whatever they ask.

Ranks share the calls of Keras models; what surrounds them sees whole batches. Batches of 20, 20 and 7 rows do and do
not divide, and one of 2 has fewer rows than 3 ranks.
"""

import threading

import corpus_run
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.backend.set_floatx("float64")
GENERATOR = np.random.RandomState(3)
X, Y = GENERATOR.randn(47, 5), (GENERATOR.rand(47, 3) > 0.4).astype(np.float64)
WORDS = GENERATOR.randint(0, 9, (47, 6))
COMPUTED = {"rows": 0}
SHAPES = keras.ops if hasattr(keras, "ops") else tf  # with TensorFlow 2.15, keras is Keras 2
results: dict = {}


class Counted(layers.Layer):
    """Notes the rows that pass it in Python, which a call that is shared runs with a slice."""

    def call(self, inputs):
        if tf.executing_eagerly():
            COMPUTED["rows"] += inputs.shape[0] or 0
        return inputs

    def compute_mask(self, inputs, mask=None):
        return mask


def batches(*arrays, size=20):
    arrays = arrays or (X, Y)
    few = tf.data.Dataset.from_tensor_slices(tuple(part[:2] for part in arrays)).batch(2)
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size).concatenate(few)


def dense(*, width=3, before=(), activation=None):
    keras.utils.set_random_seed(1)
    inner = [layers.Dense(6, activation="tanh"), *before, layers.Dense(width, activation=activation)]
    return keras.Sequential([keras.Input((5,)), Counted(), *inner])


def bce(y, p):
    return tf.reduce_mean(keras.losses.binary_crossentropy(y, tf.sigmoid(p)))


def steps(name, model, loss_of, data=None, optimizer=None, epochs=2, trained=None):
    """A loop with books of its own; stores losses, weights and counts, and how many rows this rank computed."""
    optimizer = optimizer or keras.optimizers.SGD(0.3, momentum=0.5)
    asked, total, losses, COMPUTED["rows"] = [0] * 8, 0.0, [], 0
    seen = 0
    for _ in range(epochs):
        for x, y in data or batches():
            with tf.GradientTape() as tape:
                predicted = model(x, training=True)
                loss = loss_of(y, predicted)
                inside = len(x)
            weights = trained() if trained else model.trainable_variables
            gradients = tape.gradient(loss, weights)
            gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
            optimizer.apply_gradients(zip(gradients, weights))
            n, *_ = x.shape
            counts = [
                n, len(x), tf.convert_to_tensor(x).shape.as_list()[0], int(tf.size(y)) // 3,
                int(SHAPES.shape(x)[0]), predicted.shape[0], inside, len(np.asarray(predicted)),
            ]  # fmt: skip
            asked = [a + b for a, b in zip(asked, counts)]
            total, seen = total + float(loss) * n, seen + n
            losses += [float(loss), float(norm), float(tf.reduce_sum(predicted))]
    results[name] = np.array([*losses, total, seen])
    results[f"{name}: asked"] = np.array(asked)
    results[f"{name}: weights"] = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    results[f"{name}: rows"] = np.array(COMPUTED["rows"])


ONLY_OF_ALL = {
    "added",
    "annealed",
    "arrays",
    "divided, if by anything",
    "frozen",
    "in NumPy",
    "masked",
    "of_inputs",
    "root and product",
    "rows that are chosen",
    "rows with rows",
    "saturated",
    "sum over a constant that equals a slice's rows",
    "sum times a constant",
    "words",
}
"""Cases that run hardly a line of the library which no other usual test runs."""


def is_due(name):
    return corpus_run.is_due(name, ONLY_OF_ALL)


LOSSES = {
    "mean": bce,
    "sum over a constant that equals a slice's rows": lambda y, p: tf.reduce_sum(tf.square(y - p)) / 10.0,
    "sum times a constant": lambda y, p: 0.1 * tf.reduce_sum(tf.square(y - p)),
    "masked": lambda y, p: (
        tf.reduce_sum(tf.where(y > 0, tf.square(p), 0.0)) / (tf.reduce_sum(tf.cast(y > 0, p.dtype)) + 1e-6)
    ),
    "rows that are chosen": lambda y, p: (
        tf.reduce_sum(tf.boolean_mask(tf.square(p), y > 0)) / (tf.reduce_sum(y) + 1e-6)
    ),
    "divided, if by anything": lambda y, p: tf.math.divide_no_nan(tf.reduce_sum(tf.square(p) * y), tf.reduce_sum(y)),
    "root and product": lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(y - p))) * bce(y, p),
    "rows with rows": lambda y, p: tf.reduce_mean(tf.square(p @ tf.transpose(p))),
    "in NumPy": lambda y, p: bce(y, p) * float(np.abs(p.numpy()).max()),
}


class Twofold(keras.Model):
    """Attributes that Python changes between calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.counted = layers.Dense(3), layers.Dense(3), Counted()
        self.alpha, self.twice = 0.0, False

    def call(self, inputs, training=False):
        inputs = self.counted(inputs)
        result = (1 - self.alpha) * self.first(inputs) + self.alpha * self.second(inputs)
        return tf.tanh(result) if self.twice else result


def annealed():
    keras.utils.set_random_seed(1)
    model = Twofold()

    def loss_of(y, p):
        model.alpha, model.twice = min(model.alpha + 0.1, 1.0), model.alpha > 0.45
        return tf.reduce_mean(tf.square(y - p))

    steps("attributes that change", model, loss_of)


def words():
    keras.utils.set_random_seed(1)

    class Positions(layers.Layer):
        def build(self, shape):
            self.table = layers.Embedding(6, 4)
            self.table.build(None)

        def call(self, inputs):
            return inputs + self.table(tf.range(6))

    texts = keras.Input((6,), dtype="int64")
    inner = Positions()(layers.Embedding(9, 4, mask_zero=True)(Counted()(texts)))
    model = keras.Model(texts, layers.Dense(3)(layers.LSTM(5)(inner)))
    data = batches(WORDS, Y)
    steps("embeddings and positions with Adam", model, bce, data, keras.optimizers.Adam(0.05))
    recurrent = layers.LSTM(3, return_sequences=True)
    sequence = keras.Sequential([Counted(), layers.Embedding(9, 4, mask_zero=True), recurrent])
    sequence.build((None, 6))
    loss = keras.losses.MeanSquaredError()
    steps("masks that losses read", sequence, lambda y, p: loss(tf.repeat(y[:, None], 6, 1), p), data)


def of_inputs():
    """Adversarial examples; a model of two inputs; two models, one after the other; a tape that persists."""
    model, optimizer, seen = dense(), keras.optimizers.SGD(0.1), []
    for x, y in batches():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = bce(y, model(x))
        near = x + 0.1 * tf.sign(tape.gradient(loss, x))
        with tf.GradientTape(persistent=True) as tape:
            loss = bce(y, model(near)) + 0.01 * tf.add_n([tf.nn.l2_loss(one) for one in model.trainable_variables])
            other = tf.reduce_mean(tf.square(model(near)))
        for of in (loss, other):
            optimizer.apply_gradients(zip(tape.gradient(of, model.trainable_variables), model.trainable_variables))
        seen += [float(loss), float(other), float(tf.reduce_sum(near))]
    results["gradients of inputs"] = np.array(seen + [np.abs(one).sum() for one in model.get_weights()])

    encoder, decoder = dense(width=2), keras.Sequential([keras.Input((2,)), layers.Dense(5)])
    optimizer, seen, distance = keras.optimizers.SGD(0.1), [], keras.metrics.MeanSquaredError()
    for _ in range(2):
        for x, _ in batches():
            with tf.GradientTape() as tape:
                code = encoder(x)
                again = decoder(code + 0.1 * tf.reduce_mean(code, 0))
                loss = tf.reduce_mean(tf.square(x - again))
            weights = encoder.trainable_variables + decoder.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            distance.update_state(x, again)
            seen.append(float(loss))
    results["two models"] = np.array([*seen, float(distance.result()), *(float(tf.norm(one)) for one in weights)])


def of_gradients():
    """A penalty on gradients, and a step inside of a step (MAML): two tapes record."""
    model, optimizer, seen = dense(), keras.optimizers.SGD(0.1), []
    for x, y in batches():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = bce(y, model(x))
            first = tape.gradient(loss, model.trainable_variables)
            total = loss + tf.add_n([tf.reduce_sum(tf.square(one)) for one in first])
        gradients = outer.gradient(total, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        seen += [float(total), float(tf.linalg.global_norm(first))]
    slow, optimizer = tf.Variable(np.ones((5, 3)) / 3), keras.optimizers.SGD(0.1)
    for x, y in batches():
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean(tf.square(x @ slow - y))
            fast = slow - 0.1 * tape.gradient(loss, slow)
            loss = tf.reduce_mean(tf.square(x @ fast - y))
        optimizer.apply_gradients([(outer.gradient(loss, slow), slow)])
        seen += [float(loss), float(tf.norm(slow))]
    results["gradients of gradients"] = np.array(seen + [np.abs(one).sum() for one in model.get_weights()])


def added():
    """Losses that layers add: of rows, and of weights."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    hidden = layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.1))(Counted()(inputs))
    model = keras.Model(inputs, layers.Dense(3, kernel_regularizer="l2")(hidden))
    steps("losses that layers add", model, lambda y, p: bce(y, p) + tf.add_n(model.losses))


def frozen():
    model = dense(before=[layers.BatchNormalization()])
    norm = model.layers[2]
    turns = iter(range(100))

    def loss_of(y, p):
        norm.trainable = next(turns) % 5 < 3
        return bce(y, p)

    steps("layers that are frozen now and then", model, loss_of)


def saturated():
    """Probabilities of 0 and 1, of which Keras' losses take the logits; in a `tf.function` and in `fit`, too."""
    for activation, loss_of in (
        ("sigmoid", keras.losses.BinaryCrossentropy()),
        ("softmax", keras.losses.CategoricalCrossentropy()),
    ):
        model = dense(activation=activation)
        model.set_weights([100 * weight for weight in model.get_weights()])
        steps(f"saturated {activation}", model, lambda y, p, loss_of=loss_of: loss_of(y, p))
        model.compile(keras.optimizers.SGD(0.1), lambda y, p, loss_of=loss_of: loss_of(y, p) + tf.reduce_max(p, 0)[0])
        seen = model.fit(X, Y, batch_size=20, epochs=2, shuffle=False, verbose=0).history["loss"]
        weights = [np.abs(one).sum() for one in model.get_weights()]
        results[f"saturated {activation} in fit"] = np.array([*seen, *weights])


def numbers():
    rng = np.random.RandomState(2)
    while True:
        yield rng.rand()


def numbers_of_all():
    """Of the generator that everyone has: on one rank only something draws from it."""
    while True:
        yield np.random.rand() if not corpus_run.has_ranks() or corpus_run.get_rank() else 0.0


class Waiting(layers.Layer):
    """Meanwhile another thread draws a number, as those of tf.data that fill a buffer."""

    def __init__(self, source):
        super().__init__()
        self._source = source()

    def call(self, inputs):
        thread = threading.Thread(target=next, args=(self._source,))
        thread.start()
        thread.join()
        return inputs


def threads():
    steps("a thread draws its own", dense(before=[Waiting(numbers)]), bce)
    steps("a thread draws everyone's", dense(before=[Waiting(numbers_of_all)]), bce)


def on_batches():
    """`train_on_batch` and `test_on_batch` in a loop over a dataset."""
    model, seen = dense(before=[layers.BatchNormalization()], activation="sigmoid"), []
    model.compile(keras.optimizers.SGD(0.3), lambda y, p: bce(y, p) + tf.reduce_mean(tf.square(p)), metrics=["mse"])
    for x, y in batches():
        seen += [*model.train_on_batch(x, y), len(x), *model.test_on_batch(x, y)]
    results["train_on_batch"] = np.concatenate([seen, *(np.ravel(weight) for weight in model.get_weights())])


def main():
    for name, loss_of in LOSSES.items():
        if is_due(name):
            steps(name, dense(), loss_of)
    steps("batch normalisation", dense(before=[layers.BatchNormalization()]), bce)
    if is_due("arrays"):
        steps("arrays", dense(), bce, [(X[i : i + 12], Y[i : i + 12]) for i in range(0, 47, 12)])
    for case in (annealed, words, of_inputs, of_gradients, added, frozen, saturated, threads, on_batches):
        if is_due(case.__name__):
            case()


main()
