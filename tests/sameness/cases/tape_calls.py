"""Calls of Keras models and of `tf.function`s in eager code while tapes record.

Ranks share calls of models and functions; all that the script sees is whole. Batches of 11 and 7 rows do not divide;
of 2 rows, by `--all`, a third rank has none.
"""

import re

import corpus_run
import keras
import numpy as np
import tensorflow as tf
import tf_keras

GENERATOR = np.random.RandomState(3)
X, Y = GENERATOR.randn(20, 5), GENERATOR.randn(20, 3)
WORDS = GENERATOR.randint(0, 6, (20, 4))
keras.backend.set_floatx("float64")
tf_keras.backend.set_floatx("float64")
PACKAGES = {"Keras 3": keras, "Keras 2": tf_keras}
results = {}


def batches(x=X):
    ends = ((0, 11), (11, 18), (18, 20))[: 3 if corpus_run.is_all() else 2]
    return [(tf.constant(x[a:b]), tf.constant(Y[a:b])) for a, b in ends]


def store(name, *values):
    found = [np.asarray(one.numpy() if hasattr(one, "numpy") else one) for one in values]
    results.update({f"{name} {place}": one for place, one in enumerate(found) if one.dtype != object})


def make_model(package, name, *, inner=(), width=3, **last):
    package.utils.set_random_seed(1)
    layers = package.layers
    dense = [layers.Dense(6, activation="tanh"), *inner, layers.Dense(width, **last)]
    return package.Sequential([layers.Input((5,)), *dense], name=name)


def mean_square(y, p):
    return tf.reduce_mean(tf.square(y - p))


def train(name, model, loss_of=mean_square, optimizer=None, data=None, epochs=2, before=None):
    """A loop as scripts write it; losses, norms, gradients, weights and variables of the optimizer are stored."""
    optimizer = optimizer or keras.optimizers.Adam(0.05)
    seen = []
    for turn in range(epochs):
        for x, y in data or batches():
            if before is not None:
                before(turn)
            with tf.GradientTape() as tape:
                predicted = model(x, training=True)
                loss = loss_of(y, predicted)
            gradients = tape.gradient(loss, model.trainable_variables)
            clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
            optimizer.apply_gradients(zip(clipped, model.trainable_variables))
            seen += [float(loss), float(norm)]
    own = optimizer.variables
    store(name, seen, *model.weights, *(own() if callable(own) else own))


def layers_of_each_kind():
    for name, package in PACKAGES.items():
        layers, kind = package.layers, f"of {name}"
        inner = [layers.BatchNormalization(), layers.Dropout(0.3, seed=4), layers.GaussianNoise(0.1, seed=5)]
        train(f"statistics and draws {kind}", make_model(package, f"draws{name[-1]}", inner=inner))
        train(
            f"statistics {kind}",
            make_model(package, f"statistics{name[-1]}", inner=[layers.BatchNormalization()]),
            optimizer=package.optimizers.SGD(0.1, momentum=0.9),
        )
        train(
            f"logits that hang on probabilities {kind}",
            make_model(package, f"logits{name[-1]}", activation="sigmoid", kernel_initializer="ones"),
            lambda y, p, package=package: (
                package.losses.BinaryCrossentropy()(tf.cast(y > 0, p.dtype), 1.0 * p)
                + package.losses.BinaryCrossentropy()(tf.cast(y > 0, p.dtype), p)
            ),
        )
        inputs = layers.Input((5,))
        hidden = layers.Dense(4, activity_regularizer="l2", name=f"regular{name[-1]}")(inputs)
        model = package.Model(inputs, layers.Dense(3, kernel_regularizer="l2")(hidden), name=f"added{name[-1]}")
        train(f"losses that layers add {kind}", model, lambda y, p, m=model: mean_square(y, p) + tf.add_n(m.losses))


def words():
    for name, package in PACKAGES.items():
        package.utils.set_random_seed(1)
        layers = package.layers
        texts = layers.Input((4,), dtype="int64")
        inner = layers.Embedding(6, 5, mask_zero=True)(texts)
        model = package.Model(texts, layers.Dense(3)(layers.LSTM(4)(inner)), name=f"words{name[-1]}")
        train(f"words of {name}", model, data=batches(WORDS), epochs=2)
    table = keras.Sequential([keras.layers.Embedding(6, 5, mask_zero=True)], name="table")
    table.build((None, 4))
    head = keras.Sequential([keras.layers.LSTM(3)], name="head")
    head.build((None, 4, 5))
    for x, y in batches(WORDS) * 2:
        with tf.GradientTape() as tape:
            loss = mean_square(y, head(table(x)))
        sparse, *rest = tape.gradient(loss, table.trainable_variables + head.trainable_variables)
        for weight, gradient in zip(table.trainable_variables + head.trainable_variables, [sparse, *rest]):
            weight.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    store("masks from model to model", loss, tf.convert_to_tensor(sparse), *table.weights, *head.weights)
    lookup = keras.Sequential([keras.layers.Embedding(6, 5), keras.layers.Dense(3)], name="lookup")
    lookup.build((None, 4))
    for x, _ in batches(WORDS) * 2:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(lookup(x)))
        sparse = tape.gradient(loss, lookup.trainable_variables)[0]
        lookup.trainable_variables[0].assign_sub(0.01 * tf.convert_to_tensor(sparse))
    store("rows of a sparse gradient", sparse.indices, sparse.values, tf.shape(sparse.indices))


class Twofold(keras.Model):
    """Two results, of which one may stay unused; its Python goes by what changes from call to call."""

    def __init__(self, name):
        super().__init__(name=name)
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(2)
        self.calls, self.alpha, self.drawn = 0, 0.5, None

    def call(self, inputs, training=False):
        self.calls += 1
        if self.drawn is not None:
            inputs = inputs * self.drawn.uniform(0.5, 1.0)
        hidden = self.first(inputs)
        hidden = tf.tanh(hidden) if self.alpha > 0.5 else hidden
        return {"code": self.alpha * hidden, "unused": [self.second(inputs), None]}


def attributes():
    model = Twofold("changed")
    model(tf.constant(X))

    def change(turn):
        model.alpha = 0.5 + 0.5 * (turn > 1)

    train("attributes that change", model, lambda y, p: mean_square(y, p["code"]), epochs=4, before=change)
    store("Python of calls", model.calls)
    drawn = Twofold("drawn")
    drawn(tf.constant(X))
    drawn.drawn = np.random.RandomState(1)
    train("numbers that Python draws", drawn, lambda y, p: mean_square(y, p["code"]), epochs=8)
    dropout = keras.layers.Dropout(0.5, seed=2)
    model = make_model(keras, "rates", inner=[dropout, keras.layers.BatchNormalization()])

    def anneal(turn):
        dropout.rate = 0.1 + 0.1 * turn
        model.layers[2].trainable = turn != 2

    train("rates and frozen layers", model, epochs=4, before=anneal)
    dropped, seen = make_model(keras, "dropped", inner=[keras.layers.Dropout(0.5, seed=3)]), []
    for turn, (x, y) in enumerate(batches() * 4):
        with tf.GradientTape() as tape:
            loss = mean_square(y, dropped(x, training=np.bool_(turn % 4 < 2)))
        for weight, gradient in zip(dropped.weights, tape.gradient(loss, dropped.trainable_variables)):
            weight.assign_sub(0.1 * gradient)
        seen.append(float(loss))
    store("arguments that are NumPy's", seen, *dropped.weights)


class Reversed(keras.layers.Layer):
    """Its gradient is a function of its own, which goes by an attribute."""

    scale = 1.0

    def call(self, inputs):
        scale = self.scale

        @tf.custom_gradient
        def reverse(x):
            return tf.identity(x), lambda upstream: -scale * upstream

        return tf.cond(tf.shape(inputs)[0] > 0, lambda: reverse(inputs), lambda: inputs)


def gradients_of_its_own():
    model = make_model(keras, "reversed", inner=[Reversed(), keras.layers.Activation("silu")])

    def change(turn):
        model.layers[1].scale = 1.0 + turn

    train("a gradient of its own", model, epochs=3, before=change)


def gradients_of_inputs():
    model, seen = make_model(keras, "attacked"), []
    optimizer = keras.optimizers.SGD(0.1)
    for x, y in batches() * 2:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            predicted = model(x)
            loss, other = mean_square(y, predicted), tf.reduce_sum(predicted, 0)
        near = x + 0.1 * tf.sign(tape.gradient(loss, x))
        for of in (loss, other):
            optimizer.apply_gradients(zip(tape.gradient(of, model.trainable_variables), model.trainable_variables))
        seen += [float(loss), float(tf.reduce_sum(near))]
    store("gradients of inputs", seen, near, *model.weights)


def two_models():
    maker, critic, seen = make_model(keras, "maker", width=5), make_model(keras, "critic", width=1), []
    optimizers = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
    for x, _ in batches() * 2:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            made = maker(x[::-1])
            true, false = critic(x), critic(made)
            gain, loss = tf.reduce_mean(tf.nn.softplus(-false)), tf.reduce_mean(tf.nn.softplus(false - true))
        for tape, of, model, optimizer in zip((first, second), (gain, loss), (maker, critic), optimizers):
            optimizer.apply_gradients(zip(tape.gradient(of, model.trainable_variables), model.trainable_variables))
        seen += [float(gain), float(loss)]
    store("two tapes, two models", seen, *maker.weights, *critic.weights)


def gradients_of_gradients():
    model, optimizer, seen = make_model(keras, "penalized"), keras.optimizers.SGD(0.1), []
    for turn, (x, y) in enumerate(batches() * 3):
        with tf.GradientTape() as outer:
            loss = mean_square(y, model(x))
            if turn % 3 == 2:  # now and then: shared calls have gone before
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    score = model(x)
                loss += tf.reduce_mean(tf.square(inner.gradient(score, x)))
        optimizer.apply_gradients(zip(outer.gradient(loss, model.trainable_variables), model.trainable_variables))
        seen.append(float(loss))
    store("gradients of gradients", seen, *model.weights)
    model = make_model(keras, "jacobian")
    for x, _ in batches() * 2:
        with tf.GradientTape(persistent=True) as tape:
            result = model(x)
        found = tape.jacobian(result, model.trainable_variables)
        model.trainable_variables[0].assign_sub(0.01 * tf.reduce_sum(found[0], [0, 1]))
        tape.gradient(result, model.trainable_variables)
    store("jacobians", *found)


def functions():
    w, total = tf.Variable(GENERATOR.randn(5, 3)), tf.Variable(np.zeros([]), trainable=False)
    outside = tf.constant(GENERATOR.randn(200))

    @tf.function
    def forward(x, scale=1.0):
        total.assign_add(tf.reduce_sum(x))
        result = tf.tanh(x @ w) * scale + outside[0]
        while tf.reduce_sum(tf.square(result)) > 1.0:
            result = result * 0.5
        return result, tf.shape(x)[0]

    seen = []
    for x, y in batches() * 2:
        with tf.GradientTape() as tape:
            result, count = forward(x, scale=0.5)
            loss = mean_square(y, result) + forward(x[:1])[0][0, 0]
        w.assign_sub(0.1 * tape.gradient(loss, w))
        seen += [float(loss), int(count), float(total)]
    store("functions under tapes", seen, w)


def one_row():
    model, seen = make_model(keras, "agent"), []
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(model(x[None])) for x in tf.constant(X)])
        for weight, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            weight.assign_sub(0.001 * gradient)
        seen.append(float(loss))
    store("one row", seen, *model.weights)


def results_of_a_call():
    """A result of a call has gradients of results made of it, also in tapes that do not know the call."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    features = keras.layers.Dense(4, activation="tanh")(inputs)
    model = keras.Model(inputs, [features, keras.layers.Dense(2)(features)], name="inner")
    frozen = keras.models.clone_model(model)
    frozen.trainable = False
    x, unrelated, seen = tf.constant(X[:8]), tf.zeros([2], tf.float64), []
    for _ in range(3):
        with tf.GradientTape(persistent=True) as tape:
            made, result = model(x)
            loss = tf.reduce_sum(tf.square(result)) + tf.reduce_sum(made)
        with tf.GradientTape() as of_results:
            of_results.watch(made)
            cubes = tf.reduce_sum(made**3)
        with tf.GradientTape() as of_frozen:
            unknown, _ = frozen(x)
            of_frozen.watch(unknown)
            squares = tf.reduce_sum(unknown**2)
        seen += [
            tape.gradient(loss, made),
            tape.gradient(loss, {"made": [made, unrelated]}, unconnected_gradients="zero")["made"][0],
            of_results.gradient(cubes, made),
            of_frozen.gradient(squares, unknown),
        ]
        for weight, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            weight.assign_sub(0.01 * gradient)
    store("results of a call", *seen)


def batch_of_an_iterator():
    """The call takes a batch by itself; its argument is a tensor of unknown rank, with other rows."""
    iterator, w = iter(tf.data.Dataset.from_tensor_slices(X).batch(10).repeat()), tf.Variable(Y[:5])
    optimizer, seen = keras.optimizers.SGD(0.01), []

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)])
    def taking(more):
        made = tf.tanh(tf.stop_gradient(next(iterator)) @ w)
        return tf.reduce_sum(made**2) + tf.reduce_sum(more), tf.nn.relu(made)

    for _ in range(4):
        with tf.GradientTape() as tape:
            loss, made = taking(tf.constant(Y[:6, 0]))
            loss += tf.reduce_sum(made**3)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        seen.append(float(loss))
    store("a batch that the call takes", seen, w)


batch_of_an_iterator()
layers_of_each_kind()
words()
attributes()
gradients_of_its_own()
gradients_of_inputs()
two_models()
gradients_of_gradients()
functions()
one_row()
results_of_a_call()
SHARED = {
    *("draws3", "statistics3", "logits3", "words3", "statistics2", "logits2", "words2", "head", "lookup", "changed"),
    *("drawn", "rates", "attacked", "maker", "critic", "penalized", "forward"),
}
if keras.__version__ < "3":  # with TensorFlow 2.15: Keras 2 counts the numbers that Dropout draws
    SHARED -= {"draws3", "rates"}
shared = set(re.findall(r"the call of '(\w+)' is sharded", "\n".join(corpus_run.list_notes())))
shared -= {"dropped"}  # Keras 3.15 cannot be traced with a boolean of NumPy, 3.16 can
corpus_run.expect(shared == SHARED, f"shared are other calls: {shared ^ SHARED}")
