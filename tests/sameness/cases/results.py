"""Steps and metrics that outside trials found wrong, each as a function that gives arrays.

With Keras 2 the usual cases are those of metrics and losses, which Keras 2 computes by other code. With Keras 3 these
are in metrics.py.
"""

from __future__ import annotations

import os
import tempfile

import corpus_run
import numpy as np
import tensorflow as tf

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
if LEGACY:
    import tf_keras as keras
else:
    import keras

L = keras.layers
keras.backend.set_floatx("float64")
random = np.random.default_rng(4)
X, Y = random.normal(size=[27, 6]), random.normal(size=[27, 2])
IMAGES, LABELS = random.normal(size=[27, 8, 8, 3]), random.integers(0, 3, [27])
BATCH = 16  # and a last batch of 11


def make_model(outputs=2, **compiled):
    model = keras.Sequential([L.Input((6,)), L.Dense(5, "tanh"), L.Dense(outputs)])
    model.compile(keras.optimizers.SGD(0.05), "mse", **compiled)
    return model


def list_logs(history):
    return [np.array(history.history[name]) for name in sorted(history.history)]


def gradnorm():
    """A gradient of weights that enters another loss (Chen et al., arXiv 1711.02257), by one persistent tape."""
    shared, first, second = (tf.Variable(random.normal(size=size)) for size in ([6, 4], [4, 2], [4, 2]))
    tasks = tf.Variable(np.ones(2))

    @tf.function
    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            hidden = tf.tanh(x @ shared)
            losses = [tf.reduce_mean(tf.square(hidden @ first - y)), tf.reduce_mean(tf.abs(hidden @ second - y))]
            norms = tf.stack([tf.norm(tape.gradient(tasks[at] * loss, shared)) for at, loss in enumerate(losses)])
            balance = tf.reduce_sum(tf.abs(norms - tf.stop_gradient(tf.reduce_mean(norms))))
            loss = tasks[0] * losses[0] + tasks[1] * losses[1]
        change = tape.gradient(balance, tasks)
        variables = [shared, first, second]
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.1 * gradient)
        tasks.assign_sub(0.1 * change)
        return loss, balance

    results = [one for start in range(0, 27, 9) for one in step(X[start : start + 9], Y[start : start + 9])]
    return [*(one.numpy() for one in results), tasks.numpy(), shared.numpy()]


def figure_of_a_batch():
    """A metric that gives one number of a batch: each batch counts once, as alone."""

    def f1(y, p):
        hits = tf.reduce_sum(tf.cast((y > 0) & (p > 0), "float64"))
        precise = hits / (tf.reduce_sum(tf.cast(p > 0, "float64")) + 1e-9)
        found = hits / (tf.reduce_sum(tf.cast(y > 0, "float64")) + 1e-9)
        return 2 * precise * found / (precise + found + 1e-9)

    model = make_model(metrics=[f1])
    return list_logs(model.fit(X, Y, batch_size=BATCH, epochs=2, validation_data=(X, Y), verbose=0))


def metrics_by_row_and_column():
    def columns(y, p):
        return tf.reduce_sum(tf.abs(y - p), axis=0)

    def means(y, p):
        return tf.reduce_mean(tf.abs(y - p), axis=0)

    def kept(y, p):
        return tf.reduce_mean(tf.abs(y - p), keepdims=True)[0]

    model = make_model(metrics=[columns, means, kept])
    found = list_logs(model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0))
    return [*found, np.array(model.evaluate(X, Y, batch_size=BATCH, verbose=0))]


def mean_of_rows():
    mean, called = keras.metrics.Mean(), keras.metrics.Mean()
    weights = tf.Variable(random.normal(size=[6, 2]))
    each = keras.losses.MeanSquaredError(reduction="none")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            rows = each(y, x @ weights)
            loss = tf.reduce_mean(rows)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        mean.update_state(rows)
        return called(rows)

    found = []
    for start in range(0, 27, 10):
        found += [step(X[start : start + 10], Y[start : start + 10]).numpy(), float(mean.result())]
    return [np.array(found), weights.numpy()]


class Smallest(keras.metrics.Metric):
    def __init__(self, name, start):
        super().__init__(name=name, dtype="float64")
        self.start = start
        self.least = self.add_weight(name="least", shape=(), initializer=keras.initializers.Constant(start))

    def update_state(self, y, p, sample_weight=None):
        self.least.assign(tf.minimum(tf.convert_to_tensor(self.least), tf.reduce_min(tf.cast(p, "float64"))))

    def result(self):
        return tf.convert_to_tensor(self.least)

    def reset_state(self):
        self.least.assign(self.start)


def state_that_does_not_begin_with_zeros():
    model = make_model(metrics=[Smallest("from_100", 100.0), Smallest("from_infinity", np.inf)])
    found = list_logs(model.fit(X, Y, batch_size=BATCH, epochs=2, validation_data=(X[:5], Y[:5]), verbose=0))
    return [*found, np.array(model.evaluate(X, Y, batch_size=BATCH, verbose=0))]


def counts_read_raw():
    """What a metric counted, read in callbacks and after `evaluate`, not by `result`."""
    iou = keras.metrics.MeanIoU(num_classes=3)
    model = keras.Sequential([L.Input((8, 8, 3)), L.Conv2D(4, 3), L.GlobalAveragePooling2D(), L.Dense(3)])

    class Classes(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="classes", dtype="float64")
            self.inner, self.mean = iou, keras.metrics.Mean(dtype="float64")

        def update_state(self, y, p, sample_weight=None):
            self.inner.update_state(y, tf.argmax(p, -1))
            self.mean.update_state(tf.reduce_max(p, -1))

        def result(self):
            return self.mean.result()

        def reset_state(self):
            self.mean.reset_state()
            self.inner.reset_state()

    metric = Classes()
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(np.concatenate([np.ravel(np.array(iou.total_cm)), [float(np.array(metric.mean.count))]]))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=[metric])
    model.fit(IMAGES, LABELS, batch_size=BATCH, epochs=2, verbose=0, callbacks=[Look()])
    model.evaluate(IMAGES, LABELS, batch_size=BATCH, verbose=0)
    return [np.array(seen), np.array(iou.total_cm), np.array(metric.mean.count)]


class Together(keras.layers.Layer):
    def call(self, x):
        return x + tf.reduce_sum(x, axis=0, keepdims=True) * tf.cast(tf.shape(x)[0], x.dtype)


def predict_whose_rows_meet():
    inputs = L.Input((6,))
    model = keras.Model(inputs, Together()(L.Dense(3)(inputs)))
    return [model.predict(X, batch_size=BATCH, verbose=0)]


def two_updates():
    """A conditional GAN's `train_step`: two updates, the second of a model with a convolution with bias."""
    critic = keras.Sequential([L.Input((8, 8, 4)), L.Conv2D(4, 3, strides=2), L.LeakyReLU(), L.Flatten(), L.Dense(1)])
    generator = keras.Sequential([L.Input((4,)), L.Dense(4 * 4 * 2), L.Reshape((4, 4, 2)),
                                  L.Conv2DTranspose(3, 3, strides=2, padding="same")])  # fmt: skip

    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.critic, self.generator = critic, generator
            self.losses_of = keras.losses.BinaryCrossentropy(from_logits=True)
            self.optimizers = [keras.optimizers.Adam(0.01, epsilon=1e-3) for _ in range(2)]

        def train_step(self, data):
            real, labels = data
            count = tf.shape(real)[0]
            labels = tf.cast(labels, real.dtype)[:, tf.newaxis]
            planes = tf.ones([1, 8, 8, 1], real.dtype) * labels[:, :, tf.newaxis, tf.newaxis]
            seeds = tf.concat([tf.reduce_mean(real, [1, 2]), labels], 1)
            both = tf.concat([tf.concat([self.generator(seeds), real], 0), tf.concat([planes, planes], 0)], -1)
            marks = tf.concat([tf.ones([count, 1], real.dtype), tf.zeros([count, 1], real.dtype)], 0)
            with tf.GradientTape() as tape:
                d_loss = self.losses_of(marks, self.critic(both))
            weights = self.critic.trainable_variables
            self.optimizers[0].apply_gradients(zip(tape.gradient(d_loss, weights), weights))
            with tf.GradientTape() as tape:
                made = tf.concat([self.generator(seeds), planes], -1)
                g_loss = self.losses_of(tf.zeros([count, 1], real.dtype), self.critic(made))
            weights = self.generator.trainable_variables
            self.optimizers[1].apply_gradients(zip(tape.gradient(g_loss, weights), weights))
            return {"d": d_loss, "g": g_loss}

    model = Gan()
    model.compile()
    found = list_logs(model.fit(IMAGES, LABELS, batch_size=BATCH, epochs=2, verbose=0))
    return [*found, *critic.get_weights(), *generator.get_weights()]


def two_inputs_and_a_loss_by_hand():
    if not LEGACY:
        return []
    x, t = L.Input((6,)), L.Input((2,))
    out = L.Dense(2)(x)
    model = keras.Model([x, t], out)
    model.add_loss(tf.reduce_mean(tf.square(out - t)))
    model.compile(keras.optimizers.SGD(0.1))
    return [*list_logs(model.fit([X, Y], None, batch_size=BATCH, epochs=2, verbose=0)), *model.get_weights()]


def saved_module():
    """A module that holds its training function is saved and loaded as alone."""

    class Line(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(np.ones([6, 2]))

        @tf.function
        def train(self, x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ self.w - y))
            self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
            return loss

    line = Line()
    found = [line.train(tf.constant(X), tf.constant(Y)).numpy()]
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(line, os.path.join(folder, "line"))
        loaded = tf.saved_model.load(os.path.join(folder, "line"))
        found += [loaded.w.numpy(), line.train(tf.constant(X), tf.constant(Y)).numpy()]
    return found


def masked_statistics():
    """BatchNormalization of a masked batch."""
    words = random.integers(0, 6, [27, 5])
    model = keras.Sequential([L.Input((5,)), L.Embedding(6, 4, mask_zero=True), L.BatchNormalization(),
                              L.GlobalAveragePooling1D(), L.Dense(2)])  # fmt: skip
    model.compile(keras.optimizers.SGD(0.1), "mse")
    found = list_logs(model.fit(words, Y, batch_size=BATCH, epochs=4, shuffle=False, verbose=0))
    return [*found, *model.get_weights()]


def jacobians_of_batches():
    """A gradient for each row, of batches that a step takes by itself; its loop goes over numbers of rows alone."""
    weights = tf.Variable(random.normal(size=[6, 2]))

    def train(x, y):
        with tf.GradientTape() as tape:
            each = tf.reduce_sum(tf.square(tf.tanh(x @ weights) - y), 1)
        clipped = tf.clip_by_norm(tape.jacobian(each, weights), 0.5, axes=[1, 2])
        weights.assign_sub(tf.reduce_mean(clipped, 0))
        return tf.reduce_mean(each)

    @tf.function
    def step(iterator):
        return train(*next(iterator))

    @tf.function
    def run_epoch(batches):
        last = tf.constant(0.0, tf.float64)
        for x, y in batches:
            last = train(x, y)
        return last

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    iterator = iter(dataset)
    return [step(iterator).numpy(), step(iterator).numpy(), run_epoch(dataset).numpy(), weights.numpy()]


def ends_of_unknown_length():
    """Where batches end within a step, ops that need no batch run once more: of Adam's counter, of Dropout's seed."""

    def give():
        for start in range(0, 27, BATCH):
            yield X[start : start + BATCH], Y[start : start + BATCH, :1] > 0

    kinds = tf.TensorSpec([None, 6], "float64"), tf.TensorSpec([None, 1], "bool")
    dataset = tf.data.Dataset.from_generator(give, output_signature=kinds)
    model = keras.Sequential([L.Input((6,)), L.Dense(8, "tanh"), L.Dropout(0.4), L.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    found = list_logs(model.fit(dataset, epochs=3, verbose=0))
    turns, weights, state = tf.Variable(0.0), tf.Variable(X[:6]), tf.Variable(Y[:8])

    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weights))
        change = tape.gradient(loss, weights)
        for _ in range(5):  # so many that ops are put together
            turns.assign_add(1.0)
            state.assign(tf.tanh(state) + 0.1 * tf.cast(turns, "float64"))
            weights.assign_sub(0.01 * change)
        return loss

    @tf.function
    def step(batches):
        return train(next(batches)[0])

    @tf.function
    def turn(batches):
        for _ in tf.range(8):
            train(next(batches)[0])

    for function in (step, turn):
        batches = iter(dataset)
        try:
            while True:
                function(batches)
        except tf.errors.OutOfRangeError:
            found += [turns.numpy(), state.numpy(), weights.numpy()]
    return [*found, *model.get_weights()]


def sizes_that_python_reads():
    """The Python of a step sees the sizes that it sees alone, and runs as often; it makes a variable."""
    weights, seen, made = tf.Variable(X[:6, :2]), [], []

    @tf.function
    def step(x):
        seen.append(x.shape[0])
        if not made:
            made.append(tf.Variable(np.ones(2)))
        scale = 2.0 if x.shape[0] == BATCH else 3.0
        with tf.GradientTape() as tape:
            flat = tf.reshape(x[:, None], [x.shape.as_list()[0], 6])
            flat += tf.random.uniform(x.shape, dtype=x.dtype)  # alone, a sequence of numbers for each number of rows
            loss = scale * tf.reduce_sum(tf.tanh(flat @ weights + made[0])) / len(x)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    dataset = tf.data.Dataset.from_tensor_slices(X).batch(BATCH)
    found = [float(step(x)) for _ in range(2) for x in dataset]

    @tf.function
    def next_step(batches):
        return step(next(batches))

    batches = iter(dataset.unbatch().batch(9, drop_remainder=True))
    found += [float(next_step(batches)) for _ in range(3)]
    return [found, seen, weights.numpy()]


def hits_of_rows_from_a_loop():
    """The rank of `a == b` is unknown if one size is: TensorFlow gives False for shapes that do not match."""
    weights = tf.Variable(random.normal(size=[6, 6]) / 6)

    @tf.function
    def step(x, labels):
        with tf.GradientTape() as tape:
            logits = x
            for _ in tf.range(2):
                tf.autograph.experimental.set_loop_options(shape_invariants=[(logits, tf.TensorShape([None, 6]))])
                logits = tf.tanh(x @ weights + logits)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights.assign_sub(tape.gradient(loss, weights))
        return loss, tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == labels, tf.int32))

    found = [step(*batch) for batch in tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(BATCH).repeat(2)]
    return [*np.transpose([[float(one) for one in pair] for pair in found]), weights.numpy()]


OF_EACH_KERAS = [figure_of_a_batch, metrics_by_row_and_column, mean_of_rows, state_that_does_not_begin_with_zeros,
                 counts_read_raw, predict_whose_rows_meet]  # fmt: skip
CASES = [hits_of_rows_from_a_loop, ends_of_unknown_length, sizes_that_python_reads, counts_read_raw, two_updates,
         saved_module, masked_statistics]  # fmt: skip
MORE = [jacobians_of_batches, gradnorm, two_inputs_and_a_loss_by_hand]
"""Lines of the library that scripts/loops/jacobians, and rewrite/test_steps, run too."""
if corpus_run.is_all():
    CASES = [*dict.fromkeys([*CASES, *OF_EACH_KERAS, *MORE])]
elif LEGACY:
    CASES = [*OF_EACH_KERAS, two_inputs_and_a_loss_by_hand]


results = {}
for case in CASES:
    keras.utils.set_random_seed(3)
    results |= {f"{case.__name__} {place}": np.asarray(one, np.float64) for place, one in enumerate(case())}
whole = [note for note in corpus_run.list_notes() if "cannot be" in note]
corpus_run.expect(not whole, f"not shared: {whole}")
