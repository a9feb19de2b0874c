"""Steps with gradient functions of their own (`tf.custom_gradient`, `RegisterGradient`): shared where they are proved.

Batches of 20 rows, and of a single row where it may matter.
"""

import corpus_run
import keras
import numpy as np
import tensorflow as tf

keras.backend.set_floatx("float64")
GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(41, 5)), GENERATOR.normal(size=(41, 3))
OPEN = [tf.TensorSpec([None, 3], tf.float64)]
results: dict = {}


class V:
    """The variables: a kernel, a bias, and a scale."""

    kernel, bias = tf.Variable(np.zeros((5, 3))), tf.Variable(np.zeros(3))
    scale = tf.Variable(np.float64(0.0))

    @classmethod
    def renew(cls):
        make = np.random.default_rng(1).normal
        cls.kernel.assign(make(size=(5, 3)))
        cls.bias.assign(make(size=3))
        cls.scale.assign(1.3)
        return [cls.kernel, cls.bias, cls.scale]


def own(back, forward=tf.identity):
    """`forward`, of one tensor, with `back` as its gradient function, which is given the tensor, too."""
    return tf.custom_gradient(lambda x: (forward(x), lambda upstream: back(upstream, x)))


reversed_gradient = own(lambda upstream, x: -0.7 * upstream)
straight_through = own(lambda upstream, x: upstream, tf.round)
clipped = own(lambda upstream, x: tf.clip_by_value(upstream, -0.01, 0.01))
clipped_rows = own(lambda upstream, x: tf.clip_by_norm(upstream, 0.05, axes=[1]))
clipped_batch = own(lambda upstream, x: tf.clip_by_norm(upstream, 0.05))
mixing = own(lambda upstream, x: 0.5 * upstream + tf.reduce_mean(upstream))
averaged = own(lambda upstream, x: upstream / tf.cast(tf.shape(x)[0], x.dtype))
by_shape = own(lambda upstream, x: upstream / float(x.shape[0]))
compared = own(lambda upstream, x: upstream * (2.0 if x.shape[0] == 20 else 1.0))
by_text = own(lambda upstream, x: upstream * (2.0 if "(20" in str(x.shape) else 1.0))
sorted_rows = own(lambda upstream, x: tf.sort(upstream, axis=0))
of_other_rows = own(lambda upstream, x: tf.reverse(upstream, [0]))
of_weights = own(lambda upstream, x: tf.clip_by_value(upstream, -0.02, 0.02))
constant = own(lambda upstream, x: tf.cast(tf.fill(tf.shape(x), 0.3), x.dtype))
aliased = tf.compat.v1.custom_gradient(lambda x: (tf.identity(x), lambda upstream: upstream * tf.reduce_mean(upstream)))


@tf.custom_gradient
def scaled(x, scale):
    def back(upstream):
        return upstream * scale, tf.reduce_mean(upstream * x)  # a mean where the derivative is a sum

    return x * scale, back


@tf.custom_gradient
def with_variables(x):
    def back(upstream, variables=None):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x @ V.kernel + V.bias)
        back_to_x, *parts = tape.gradient(y, [x, *variables], output_gradients=upstream)
        return back_to_x, [2.0 * part for part in parts]

    return tf.tanh(x @ V.kernel + V.bias), back


@tf.custom_gradient
def with_mixed_variables(x):
    def back(upstream, variables=None):
        return None, [tf.clip_by_value(tf.transpose(x) @ upstream, -0.02, 0.02) for _ in variables]

    return x @ V.kernel, back


@tf.custom_gradient
def recomputing(x):
    y = tf.exp(tf.minimum(x, 2.0))
    return y, lambda upstream: upstream * y * tf.cast(x < 2.0, x.dtype)


@tf.function(input_signature=OPEN)
def called(x):
    return mixing(x)


@tf.function(input_signature=[OPEN[0], OPEN[0]])
def training_by_itself(p, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((mixing(p * V.scale) - y) ** 2)
    V.scale.assign_sub(0.1 * tape.gradient(loss, V.scale))


def dense(x):
    return x @ V.kernel + V.bias


def mse(p, y):
    return tf.reduce_mean((p - y) ** 2)


def branching(x, y):
    return mse(tf.cond(tf.reduce_sum(V.scale) > 0, lambda: mixing(dense(x)), lambda: dense(x)), y)


def turning(x, y):
    return mse(tf.while_loop(lambda turn, p: turn < 2, lambda turn, p: (turn + 1, mixing(p)), (0, dense(x)))[1], y)


def second(x, y):
    with tf.GradientTape() as inner:
        inner.watch(x)
        loss = mse(recomputing(dense(x)), y)
    return loss + tf.reduce_sum(inner.gradient(loss, x) ** 2)


ONLY_OF_ALL = {
    "a constant for weights",
    "a mean for a weight",
    "by another name",
    "by keras",
    "clipped entries",
    "closing over what it made",
    "complex",
    "divided by the rows",
    "mixing",
    "passed through",
    "straight through",
    "swish",
    "weights clipped",
}
"""Cases that run no line of the library which others of this file do not."""


def is_due(name):
    return corpus_run.is_due(name, ONLY_OF_ALL)


LOSSES = {
    "reversed": lambda x, y: mse(reversed_gradient(dense(x)), y),
    "straight through": lambda x, y: mse(straight_through(dense(x)), y),
    "clipped entries": lambda x, y: mse(clipped(dense(x)), y),
    "clipped rows": lambda x, y: mse(clipped_rows(dense(x)), y),
    "clipped by the batch": lambda x, y: mse(clipped_batch(dense(x)), y),
    "mixing": lambda x, y: mse(mixing(dense(x)), y),
    "divided by the rows": lambda x, y: mse(averaged(dense(x)), y),
    "divided by a shape": lambda x, y: mse(by_shape(dense(x)), y),
    "a shape compared": lambda x, y: mse(compared(dense(x)), y),
    "the text of a shape": lambda x, y: mse(by_text(dense(x)), y),
    "sorted": lambda x, y: mse(sorted_rows(dense(x)), y),
    "other rows": lambda x, y: mse(of_other_rows(dense(x)), y),
    "weights clipped": lambda x, y: mse(x @ of_weights(V.kernel), y),
    "complex": lambda x, y: mse(x @ tf.math.real(constant(tf.complex(V.kernel, V.kernel))), y),
    "a constant for weights": lambda x, y: mse(x @ constant(V.kernel), y),
    "a constant for rows": lambda x, y: mse(constant(dense(x)), y),
    "a figure": lambda x, y: mse(dense(x), y) + reversed_gradient(tf.reduce_mean(dense(x) ** 2)),
    "made of a figure": lambda x, y: mse(dense(x), y) + clipped(tf.sqrt(tf.reduce_mean(dense(x) ** 2))),
    "a mean for a weight": lambda x, y: mse(scaled(dense(x), V.scale), y),
    "variables": lambda x, y: mse(with_variables(x), y),
    "variables clipped": lambda x, y: mse(with_mixed_variables(x), y),
    "closing over what it made": lambda x, y: mse(recomputing(dense(x)), y),
    "by another name": lambda x, y: mse(aliased(dense(x)), y),
    "by keras": lambda x, y: mse(keras.ops.custom_gradient(lambda z: (z * 1.0, lambda *args, upstream=None: (
        2.0 * (args[0] if upstream is None else upstream))))(dense(x)), y),
    "in a function": lambda x, y: mse(called(dense(x)), y),
    "in a branch": branching,
    "in a loop": turning,
    "passed through": lambda x, y: mse(tf.grad_pass_through(tf.round)(dense(x)), y),
    "computed again": lambda x, y: mse(tf.recompute_grad(lambda z: tf.tanh(z) * V.scale)(dense(x)), y),
    "swish": lambda x, y: mse(tf.nn.silu(dense(x)), y),
    "a second gradient": second,
}  # fmt: skip


ONE_ROW_AT_THE_END = {
    "reversed",
    "clipped by the batch",
    "divided by a shape",
    "a shape compared",
    "the text of a shape",
    "sorted",
}
"""Cases with a last batch of a single row; each number of rows is a trace more."""


def batches(name):
    ends = name in ONE_ROW_AT_THE_END or corpus_run.is_all()
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(20, drop_remainder=not ends)


def steps(name, loss_of, before=lambda x, y: None):
    trained, seen = V.renew(), []

    @tf.function
    def step(x, y):
        before(x, y)
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        gradients = tape.gradient(loss, trained, unconnected_gradients="zero")
        with tf.control_dependencies(gradients):  # else `tf.recompute_grad` may read what is assigned here, alone too
            for variable, gradient in zip(trained, gradients):
                variable.assign_sub(0.1 * gradient)
        return loss

    for _ in range(2):
        seen += [float(step(x, y)) for x, y in batches(name)]
    results[name] = np.concatenate([*(variable.numpy().ravel() for variable in trained), seen])
    corpus_run.expect_shared(name, step)


def called_before():
    """Functions that were traced, and gradients taken through them, before a step calls them."""
    V.renew()
    rows = tf.constant(Y[:4])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        loss = tf.reduce_sum(called(rows) ** 2)
    tape.gradient(loss, rows)
    training_by_itself(rows, rows)
    del tape


def fits(name, loss_layer, **more):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    outputs = keras.layers.Dense(3)(loss_layer(keras.layers.Dense(3, activation="silu")(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **more)
    history = model.fit(X, Y, batch_size=20, epochs=2, shuffle=False, validation_data=(X[:15], Y[:15]), verbose=0)
    found = [
        np.ravel(values) for values in (*model.get_weights(), *history.history.values(), model.predict(X, verbose=0))
    ]
    results[name] = np.concatenate(found)


class Own(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def session(name, back):
    """`tf.compat.v1`, where a gradient function has a name."""
    v1 = tf.compat.v1
    v1.RegisterGradient(name)(back)
    with tf.Graph().as_default() as graph, v1.Session() as run:
        x, y = v1.placeholder(tf.float64, [None, 5]), v1.placeholder(tf.float64, [None, 3])
        kernel = v1.get_variable("kernel", initializer=tf.constant(np.random.default_rng(1).normal(size=(5, 3))))
        with graph.gradient_override_map({"Identity": name}):
            p = tf.identity(x @ kernel)
        loss = tf.reduce_mean((p - y) ** 2)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        run.run(v1.global_variables_initializer())
        seen = [run.run([train, loss], {x: X[at : at + 20], y: Y[at : at + 20]})[1] for at in (0, 20, 40)]
        results[name] = np.concatenate([run.run(kernel).ravel(), seen])


def main():
    for name, loss_of in LOSSES.items():
        if is_due(name):
            steps(name, loss_of)
    called_before()
    steps("in a function called before", LOSSES["in a function"])
    steps("beside a function that trains", LOSSES["reversed"], lambda x, y: training_by_itself(dense(x), y))
    if corpus_run.is_all():
        fits("fit, reversed", Own(reversed_gradient))
        fits("fit, eager, by TensorFlow", Own(tf.nn.silu), run_eagerly=True)
    fits("fit, mixing", Own(mixing))
    fits("fit, eager", Own(averaged), run_eagerly=True)
    session("session_reversed", lambda op, upstream: -0.7 * upstream)
    session("session_mixing", lambda op, upstream: 0.5 * upstream + tf.reduce_mean(upstream))
    said = "is sharded: each rank computes its slice of every batch"
    corpus_run.expect(any(said in note for note in corpus_run.list_notes()), "no line says that a step is shared")


main()
