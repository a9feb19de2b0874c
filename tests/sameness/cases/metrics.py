"""Metrics count every row once, also of batches with fewer rows than ranks, and where a loss is weighed by its rows."""

import corpus_run
import numpy as np
import tensorflow as tf

keras = tf.keras
keras.backend.set_floatx("float64")
GENERATOR = np.random.RandomState(3)
X = GENERATOR.rand(15, 4)
Y = GENERATOR.randint(0, 2, (15, 1))
LAST_HAS_ONE_ROW = 14
results = {}


def made_in_update(metric, name):
    """A weight of `metric` that its first update makes."""
    if not hasattr(metric, name):
        setattr(metric, name, metric.add_weight(shape=(), name=name, initializer="zeros"))
    return getattr(metric, name)


class Late(keras.metrics.Metric):
    """A mean whose variables are made by its first update."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred)
        made_in_update(self, "total").assign_add(tf.reduce_sum(errors))
        made_in_update(self, "count").assign_add(tf.cast(tf.size(errors), y_pred.dtype))

    def result(self):
        return tf.math.divide_no_nan(tf.convert_to_tensor(self.total), tf.convert_to_tensor(self.count))


class Composite(keras.metrics.Metric):
    """A metric made of others, one of which its first update makes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.errors, self.squares = keras.metrics.MeanAbsoluteError(), None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.squares is None:
            self.squares = keras.metrics.MeanSquaredError()
        self.errors.update_state(y_true, y_pred)
        self.squares.update_state(y_true, y_pred)

    def result(self):
        return self.errors.result() + self.squares.result()


def error(y_true, y_pred):
    return tf.reduce_mean(tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred))


def built_in():
    """Objects that have their variables: a function that updates them makes none, and is traced once."""
    kinds = keras.metrics
    return [kinds.BinaryAccuracy(), kinds.AUC(), kinds.Precision(), kinds.MeanAbsoluteError()]


def made_late():
    """Metrics that Keras makes of names and functions, and such as make their variables in their first update."""
    return ["mae", error, Late(name="late"), Composite(name="composite"), keras.metrics.AUC(multi_label=True)]


def model_of(metrics=None, **options):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    if metrics:
        model.compile(keras.optimizers.SGD(0.5), "mse", metrics=metrics(), **options)
    return model


def stored(name, values):
    results[name] = np.array(values, np.float64)


def evaluate(metrics):
    name, quiet = metrics.__name__, {"verbose": 0, "batch_size": LAST_HAS_ONE_ROW}
    model = model_of(metrics, weighted_metrics=[keras.metrics.MeanSquaredError(name="weighted")])
    stored(f"evaluate, {name}, first", model.evaluate(X, Y, **quiet))
    stored(f"evaluate, {name}, again", model.evaluate(X, Y, **quiet))
    stored(f"evaluate, {name}, weighted", model.evaluate(X, Y, sample_weight=np.arange(15.0), **quiet))
    stored(f"evaluate, {name}, one row", model_of(metrics).evaluate(X[:1], Y[:1], verbose=0))
    stored(f"evaluate, {name}, eager", model_of(metrics, run_eagerly=True).evaluate(X, Y, **quiet))
    stored(f"evaluate, {name}, dataset", model_of(metrics).evaluate(dataset(), verbose=0))


def fit(metrics, **options):
    name = " ".join([metrics.__name__, *options])
    held_out = {"validation_data": (X[3:], Y[3:]), "validation_batch_size": 11}
    history = model_of(metrics, **options).fit(X, Y, batch_size=LAST_HAS_ONE_ROW, epochs=2, verbose=0, **held_out)
    for index, figure in enumerate(history.history):  # Keras counts the names of metrics
        stored(f"fit, {name}, {index}", history.history[figure])
    history = model_of(metrics, **options).fit(dataset(), epochs=2, verbose=0, validation_data=dataset())
    for index, figure in enumerate(history.history):
        stored(f"fit, dataset, {name}, {index}", history.history[figure])


def fit_even():
    """Batches of one size, whose number of rows is known when a step is traced."""
    model = model_of(built_in)
    history = model.fit(X, Y, batch_size=5, epochs=2, shuffle=False, verbose=0, validation_data=(X[:10], Y[:10]))
    for index, figure in enumerate(history.history):
        stored(f"fit, even batches, {index}", history.history[figure])


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(LAST_HAS_ONE_ROW)


def loop(compiled):
    """A loop of one's own with metrics whose variables the first update makes."""
    model, optimizer = model_of(), keras.optimizers.SGD(0.5)
    found = [keras.metrics.BinaryAccuracy(), Late(), Composite()]

    def step(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x)
            loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float64) - predicted))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        for metric in found:
            metric.update_state(y, predicted)
        return loss

    step = tf.function(step) if compiled else step
    seen = []
    for _ in range(2):
        for x, y in tf.data.Dataset.from_tensor_slices((X, Y)).batch(7):
            seen.append(float(step(x, y)))
        seen += [float(metric.result()) for metric in found]
    stored(f"loop, {'function' if compiled else 'eager'}", seen)


def weighed_dataset():
    """Batches of 7, 7 and 1 rows, each with a weight for every row."""
    return tf.data.Dataset.from_tensor_slices((X, Y, np.arange(1.0, 16.0))).batch(7)


def weigh(how, compiled):
    """A loop of one's own that weighs the loss, and figures beside it, by the rows of each batch."""
    model, optimizer = model_of(), keras.optimizers.SGD(0.5)
    kinds = keras.metrics
    found = {name: kinds.Mean() for name in ("loss", "plain", "figure", "weighed", "constant", "read")}
    found |= {name: kinds.Sum() for name in ("rows", "steps", "read sum")}

    def step(x, y, w):
        with tf.GradientTape() as tape:
            predicted = model(x)
            errors = tf.square(tf.cast(y, tf.float64) - predicted)
            loss = tf.reduce_mean(errors)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        if how == "len":
            rows = len(x)
        elif how == "shape":
            rows = x.shape[0]
        else:
            rows = tf.shape(x)[0]
        found["loss"].update_state(loss, sample_weight=rows)
        found["plain"].update_state(loss)
        found["figure"].update_state(tf.reduce_mean(predicted), sample_weight=rows)
        found["weighed"].update_state(loss, tf.reduce_sum(w))
        found["constant"].update_state(tf.reduce_mean(predicted), sample_weight=2.5)
        found["rows"].update_state(rows)
        found["steps"].update_state(1.0)
        return loss

    step = tf.function(step) if compiled else step
    seen = []
    for _ in range(2):
        for x, y, w in weighed_dataset():
            loss = step(x, y, w)
            seen.append(float(loss))
            found["read"].update_state(float(loss))
            found["read sum"].update_state(loss.numpy())
        seen += [float(metric.result()) for metric in found.values()]
    stored(f"weigh by {how}, {'function' if compiled else 'eager'}", seen)


def weigh_inside():
    """The same in a function that has the loop."""
    model, optimizer = model_of(), keras.optimizers.SGD(0.5)
    mean, rows = keras.metrics.Mean(), keras.metrics.Sum()

    @tf.function
    def epoch(batches):
        for x, y, _ in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float64) - model(x)))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            mean.update_state(loss, sample_weight=tf.shape(x)[0])
            rows.update_state(tf.shape(x)[0])

    seen = []
    for _ in range(2):
        epoch(weighed_dataset())
        seen += [float(mean.result()), float(rows.result())]
    stored("weigh, inside a function", seen)


class Weighed(keras.metrics.Metric):
    """A root of what all rows of an update give together, and a weight for each class, which is no row."""

    def __init__(self, **options):
        super().__init__(**options)
        self.total = self.add_weight(shape=(), name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, weights):
        self.total.assign_add(tf.sqrt(tf.reduce_sum(tf.square(tf.cast(y_true, y_pred.dtype) - y_pred) * weights)))

    def result(self):
        return tf.convert_to_tensor(self.total)


def spread(y_true, y_pred):
    """A number for each row, that knows of the others."""
    return tf.reduce_mean(tf.abs(y_pred - tf.reduce_mean(y_pred, 0)), -1)


def columns(y_true, y_pred):
    """A sum for each column, of which Keras takes the mean."""
    return tf.reduce_sum(tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred), axis=0)


def kept(y_true, y_pred):
    return tf.reduce_mean(tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred), axis=0, keepdims=True)


def meeting():
    return [spread, columns, kept]


def means():
    """Means of a number for each row, for each column and for the batch, whose batches have other numbers of rows."""
    model, optimizer = model_of(), keras.optimizers.SGD(0.5)
    found = [keras.metrics.Mean() for _ in range(5)]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            errors = tf.square(tf.cast(y, tf.float64) - model(x))
            loss = tf.reduce_mean(errors)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        found[0].update_state(errors)
        found[1](errors[:, 0])
        found[2].update_state(tf.reduce_mean(x, axis=0))
        found[3].update_state(loss)
        found[4].update_state(tf.sort(x[:, 0])[:3])

    for epoch in range(2):
        for x, y in dataset():
            step(x, y)
            stored(f"means, {epoch}, {len(x)} rows", [float(mean.result()) for mean in found])


def weighed_classes():
    model, optimizer, metric = model_of(), keras.optimizers.SGD(0.5), Weighed(name="weighed")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x)
            loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float64) - predicted))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        metric.update_state(
            tf.concat([y, y], 1), tf.concat([predicted, predicted], 1), tf.constant([1.0, 3.0], tf.float64)
        )
        return loss

    stored("weighed classes", [*(float(step(x, y)) for x, y in dataset()), float(metric.result())])


def of_all_kinds():
    return [*made_late(), *meeting()]


fit(of_all_kinds)
evaluate(made_late)
weigh("tf.shape", True)
weigh_inside()
loop(True)
means()
weighed_classes()
if corpus_run.is_all():
    for chosen in (made_late, meeting):
        fit(chosen)
    fit(built_in)
    evaluate(built_in)
    evaluate(meeting)
    fit(built_in, run_eagerly=True)
    fit_even()
    loop(False)
    for ask in ("shape", "tf.shape", "len"):
        weigh(ask, True)
        weigh(ask, False)
