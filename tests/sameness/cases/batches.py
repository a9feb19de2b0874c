"""Steps that take batches of iterators, each as a function that gives arrays.

An error of one rank's rows is raised on all, and tells the rank; it is the last one, which has the last rows.
"""

from __future__ import annotations

import corpus_run
import keras
import numpy as np
import tensorflow as tf

L = keras.layers
keras.backend.set_floatx("float64")
random = np.random.default_rng(4)
X, Y = random.normal(size=[27, 6]), random.normal(size=[27, 2])
W = random.normal(size=[6, 2])
LAST = corpus_run.get_size() - 1


def batch(array, rows, size=6):
    return tf.data.Dataset.from_tensor_slices(array[:rows]).batch(size)


def run_to_end(step, *iterators):
    """What a step gives until the data have ended."""
    found = []
    while True:
        try:
            found.append(step(*iterators))
        except tf.errors.OutOfRangeError:
            return [np.array(one) for one in found]


def end_of_data():
    """The error at the end is that of the iterator, as often as it is asked for; another iterator begins anew."""
    w, calls = tf.Variable(W), []

    @tf.function
    def step(iterator):
        x, y = next(iterator)
        loss = tf.reduce_mean(tf.square(x @ w - y))
        w.assign_sub(0.1 * tf.gradients(loss, w)[0])
        return loss

    for _ in range(2):
        iterator = iter(tf.data.Dataset.zip((batch(X, 27), batch(Y, 27))))
        calls += run_to_end(step, iterator)
        assert not run_to_end(step, iterator)
    return [*calls, w.numpy()]


def components_of_other_sizes():
    """Two datasets of other batch sizes, or of which one ends with fewer rows, zipped; and both in one epoch."""
    model_losses = []
    w = tf.Variable(W)

    @tf.function
    def step(iterator):
        x, (z, y) = next(iterator)
        hidden = tf.tanh(tf.concat([x, z], 0) @ w)
        loss = tf.reduce_mean(tf.square(hidden)) + tf.reduce_mean(tf.square(z @ w - y))
        w.assign_sub(0.1 * tf.gradients(loss, w)[0])
        return loss, tf.shape(hidden)[0], hidden[: tf.shape(z)[0]]

    for rows, size in ((15, 3), (14, 6), (14, 6)):
        data = tf.data.Dataset.zip((batch(X, 15), tf.data.Dataset.zip((batch(X, rows, size), batch(Y, rows, size)))))
        for loss, count, hidden in [step(iterator) for iterator in [iter(data)] for _ in range(3)]:
            model_losses += [loss.numpy(), count.numpy(), hidden.numpy()]
    return [*model_losses, w.numpy()]


def components_that_a_map_drops():
    """A map drops a component that has more rows, or fewer."""
    w = tf.Variable(W)

    @tf.function
    def loop(dataset):
        for x in dataset:
            w.assign_sub(0.1 * tf.gradients(tf.reduce_mean(tf.tanh(x @ w)), w)[0])

    step = tf.function(lambda iterator: tf.reduce_mean(tf.tanh(next(iterator) @ w)))
    losses = []
    for size in (4, 7):
        x, y = batch(X, 27), batch(Y, 27, size)
        for data in (tf.data.Dataset.zip(x, y).map(lambda x, _: 2 * x), tf.data.Dataset.zip(y, x).map(lambda _, x: -x)):
            losses.append(step(iter(data)))
            loop(data)
    return [*losses, w.numpy()]


class Both(keras.Model):
    def train_step(self, data):
        x, (z, y) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(tf.concat([x, z], 0)) ** 2) + tf.reduce_mean((self(z) - y) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"total": loss}


def fit_of_other_sizes():
    inputs = L.Input((6,))
    model = Both(inputs, L.Dense(2)(L.BatchNormalization()(inputs)))
    model.compile("adam")
    labeled = tf.data.Dataset.zip((batch(X, 14), batch(Y, 14)))
    history = model.fit(tf.data.Dataset.zip((batch(X, 15), labeled)), epochs=2, verbose=0)
    return [np.array(history.history["total"]), *model.get_weights()]


def captured_iterator():
    w = tf.Variable(W)
    iterator = iter(batch(X, 27))

    @tf.function
    def step():
        loss = tf.reduce_sum(tf.tanh(next(iterator) @ w))
        w.assign_sub(0.1 * tf.gradients(loss, w)[0])
        return loss

    return [*run_to_end(step), w.numpy()]


def two_batches_a_step():
    """Of one iterator, and of two, of which one ends before the other."""
    w = tf.Variable(W)

    def compute(x, z):
        loss = tf.reduce_sum(tf.tanh(x @ w)) + tf.reduce_mean(z @ w)
        w.assign_sub(0.1 * tf.gradients(loss, w)[0])
        return loss

    step_of_one = tf.function(lambda iterator: compute(next(iterator), next(iterator)))
    step_of_two = tf.function(lambda first, second: compute(next(first), next(second)))
    found = run_to_end(step_of_one, iter(batch(X, 24)))
    first, second = iter(batch(X, 27)), iter(batch(X, 10, 4))
    found += run_to_end(step_of_two, first, second)
    return [*found, w.numpy()]


def broken_element():
    """An element that raises an error is left out: the script goes on with the next."""
    w = tf.Variable(W)

    @tf.function
    def step(iterator):
        loss = tf.reduce_sum(tf.tanh(next(iterator) @ w))
        w.assign_sub(0.1 * tf.gradients(loss, w)[0])
        return loss

    def check(x):
        with tf.control_dependencies([tf.debugging.assert_none_equal(x[0, 0], X[6, 0])]):
            return tf.identity(x)

    iterator, found = iter(batch(X, 24).map(check)), []
    for _ in range(4):
        try:
            found.append(step(iterator).numpy())
        except tf.errors.InvalidArgumentError:
            found.append(np.array(-1.0))
    return [*found, w.numpy()]


def loops():
    w = tf.Variable(W)

    @tf.function
    def train(dataset, iterator):
        for x in dataset:
            w.assign_sub(0.1 * tf.gradients(tf.reduce_mean(tf.tanh(x @ w)), w)[0])
        for _ in tf.range(2):
            w.assign_sub(0.1 * tf.gradients(tf.reduce_mean(tf.tanh(next(iterator) @ w)), w)[0])

    for _ in range(2):
        train(batch(X, 27), iter(batch(X, 20)))
    return [w.numpy()]


def optionals():
    """The last batch has fewer rows: a function is traced once for the spec of the iterator."""
    traced = []

    @tf.function
    def compute(optional):
        traced.append(optional)
        return tf.tanh(optional.get_value() @ W)

    found, iterator = [], iter(batch(X, 27))
    while (optional := iterator.get_next_as_optional()).has_value():
        found.append(compute(optional))
    return [*map(np.array, found), np.array(len(traced))]


def fail(step, *given):
    """What an error of a step says."""
    try:
        step(*given)
    except tf.errors.InvalidArgumentError as error:
        text = str(error)
        corpus_run.expect(f"rank {LAST} (" in text and "outside" in text, f"the error tells no rank: {text}")
    else:
        raise AssertionError("the step raises no error")


def rows_that_fail():
    """The last row of a batch has a label that there is not: in a step, in a loop, in a tape."""
    w, labels = tf.Variable(W), np.arange(27) % 2

    def train(x, y):
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w)
        w.assign_sub(0.1 * tf.gradients(loss, w)[0])
        return tf.reduce_sum(loss)

    step = tf.function(train)
    step_of_iterator = tf.function(lambda iterator: train(*next(iterator)))

    @tf.function
    def loop(dataset):
        for x, y in dataset:
            train(x, y)

    @tf.function
    def compute_loss(x, y):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w))

    def record(x, y):
        with tf.GradientTape() as tape:
            loss = compute_loss(x, y)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    found = []
    for bad in (False, True, False, True):
        y = labels.copy()
        y[11] += 7 * bad
        data = tf.data.Dataset.from_tensor_slices((X[:18], y[:18])).batch(6)
        iterator = iter(data)
        found.append(step_of_iterator(iterator).numpy())
        second = tf.constant(X[6:12]), tf.constant(y[6:12])
        for one, *given in ((step_of_iterator, iterator), (loop, data.skip(1)), (step, *second), (record, *second)):
            before = w.numpy()
            fail(one, *given) if bad else one(*given)
            if bad and one is loop:  # alone, the turn that fails may have updated
                w.assign(before)
        found.append(step_of_iterator(iterator).numpy())
    return [*found, w.numpy()]


def uneven_batches_that_are_lost():
    """One rank cannot take a batch whose components have other numbers of rows, which the others compute whole."""
    w = tf.Variable(W)

    def read(number, x):
        if number == 1 and corpus_run.get_rank() == LAST:
            raise ValueError("a file is outside of this host")
        return x

    def pair(number, x):
        return tf.ensure_shape(tf.py_function(read, [number, x], tf.float64), [None, 6]), x[:-1]

    @tf.function
    def train(iterator):
        x, z = next(iterator)
        w.assign_sub(0.1 * tf.gradients(tf.reduce_sum(tf.tanh(x @ w)) + tf.reduce_sum(z), w)[0])

    @tf.function
    def predict(iterator):
        x, z = next(iterator)
        return tf.tanh(x @ w), z @ w

    found = []
    for step in (train, predict):
        iterator = iter(batch(X, 27).enumerate().map(pair))
        found.append(step(iterator))
        fail(step, iterator)
        found.append(step(iterator))
    return [*map(np.array, tf.nest.flatten(found[2:])), w.numpy()]


def fit_of_rows_that_fail():
    model = keras.Sequential([L.Input((6,)), L.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    labels = np.arange(27) % 2
    labels[-1] = 5
    fail(lambda: model.fit(X, labels, batch_size=9, shuffle=False, verbose=0))
    history = model.fit(X[:24], labels[:24], batch_size=9, shuffle=False, verbose=0)
    return [history.history["loss"][0], *model.get_weights()]


def session_that_fails():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = v1.placeholder("float64", [None, 6]), v1.placeholder("int64", [None])
        w = v1.get_variable("w", initializer=tf.constant(W), use_resource=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x @ w)
        train = v1.assign_sub(w, 0.1 * tf.gradients(loss, w)[0])
        session.run(v1.global_variables_initializer())
        labels = np.arange(8) % 2
        for add in (0, 6, 0):
            feed = {x: X[:8], y: labels + add * (np.arange(8) == 7)}
            if add:
                fail(session.run, train, feed)
            else:
                session.run(train, feed)
        return [session.run(w)]


def seeds_of_ops():
    """Seeds of ops, where the script has set no other."""
    w = tf.Variable(W)

    @tf.function
    def step(x):
        noise = tf.random.normal(tf.shape(x), seed=3, dtype=x.dtype)
        w.assign_sub(0.1 * tf.gradients(tf.reduce_mean(tf.tanh((x + noise) @ w)), w)[0])
        return tf.random.uniform([2], seed=4)

    shuffled = tf.data.Dataset.range(9).shuffle(9, seed=5)
    drawn = [step(X[:6]).numpy(), step(X[6:12]).numpy(), tf.random.uniform([3], seed=6).numpy()]
    return [*drawn, np.array(list(shuffled.as_numpy_iterator())), w.numpy()]


def sequences():
    """Draws over batches of several sizes: TensorFlow has a sequence for each trace."""
    w = tf.Variable(W)

    def step(x):
        x = x + tf.random.normal(tf.shape(x), dtype=x.dtype)
        w.assign_sub(0.1 * tf.gradients(tf.reduce_mean(tf.tanh(x @ w)), w)[0])
        return tf.random.uniform([2])

    of_any_size = [tf.TensorSpec([None, 6], tf.float64)]
    found = []
    for options in ({}, {"reduce_retracing": True}, {"input_signature": of_any_size}):
        function = tf.function(step, **options)
        found += [function(tf.constant(X[:rows])).numpy() for rows in (8, 5, 8, 5, 3, 8, 3)]
        found.append(w.numpy())
    of_batches = tf.function(lambda iterator: step(next(iterator)))
    return [*found, *run_to_end(of_batches, iter(batch(X, 27))), w.numpy()]


CASES = [
    end_of_data,
    components_of_other_sizes,
    components_that_a_map_drops,
    fit_of_other_sizes,
    captured_iterator,
    two_batches_a_step,
    broken_element,
    loops,
    optionals,
    sequences,
    rows_that_fail,
    uneven_batches_that_are_lost,
    fit_of_rows_that_fail,
    session_that_fails,
]
results = {f"seeds_of_ops {place}": np.asarray(one) for place, one in enumerate(seeds_of_ops())}
for case in CASES:
    tf.keras.utils.set_random_seed(7)
    results |= {f"{case.__name__} {place}": np.asarray(one) for place, one in enumerate(case())}
notes = corpus_run.list_notes()
corpus_run.expect(any("is sharded" in note for note in notes), "nothing is sharded")
whole = [note for note in notes if ") cannot be sharded" in note]
corpus_run.expect(not whole, f"not shared: {whole}")
