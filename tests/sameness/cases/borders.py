"""Steps whose arguments become slices, and what is asked around them.

Each case stores losses, weights and what the eager code around the function saw. Batches do and do not divide, the last
one has a single row, and there are ranks without rows.
"""

import itertools
from pathlib import Path

import corpus_run
import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

keras.backend.set_floatx("float64")
GENERATOR = np.random.RandomState(3)
X, Y = GENERATOR.randn(41, 5), (GENERATOR.rand(41, 3) > 0.4).astype(np.float64)
WORDS = GENERATOR.randint(0, 9, (41, 6))
results: dict = {}
ONLY_OF_ALL = {
    "bce and dice",
    "by_hand",
    "embeddings",
    "fit, drawn by Python",
    "fit, rows and dice",
    "fit, masked",
    "fit, root",
    "fit, scalar",
    "fit, sum",
    "fit, weights by the batch",
    "largest of two",
    "less the mean of the batch",
    "masked",
    "mean and sum",
    "mean, fixed",
    "mean, generated",
    "mean, slices",
    "normalised",
    "normalised_otherwise",
    "product",
    "python that asks a computed number for an int",
    "python that asks for a type",
    "python that asks for an int",
    "python that catches what int() raises",
    "python that compares a whole shape",
    "python that compares the text of a shape",
    "python that swaps terms",
    "python that takes another constant of the step",
    "recomputed",
    "root",
    "rows with rows",
    "sum over a constant that equals a slice's rows",
    "sum over the rows",
    "sum times a constant",
    "tapes_that_change",
}
"""Cases that run no line of the library which no other usual test runs."""


def is_due(name):
    return corpus_run.is_due(name, ONLY_OF_ALL)


def model_of(activation="sigmoid"):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3, activation=activation)]
    )


def bce(y, p):
    return tf.reduce_mean(keras.losses.binary_crossentropy(y, p))


def dice(y, p):
    return 1 - (2 * tf.reduce_sum(y * p) + 1) / (tf.reduce_sum(y) + tf.reduce_sum(p) + 1)


def masked(y, p):
    mask = tf.cast(y > 0, p.dtype)
    return tf.reduce_sum(tf.square(p) * mask) / (tf.reduce_sum(mask) + 1e-6)


@tf.autograph.experimental.do_not_convert
def doubled(y, p):
    return bce(y, p) * (2.0 if y.shape[0] == 20 else 1.0)


def compared_by_autograph(y, p):
    factor = 1.0
    if tuple(y.shape) != (20, 3) or y.get_shape().as_list()[0] != 20:
        factor = 0.5
    return factor * bce(y, p)


def shapes_asked(y, p):
    rows, classes = y.shape
    assert y.shape == p.shape and p.shape[0] is not None
    noise = 0.0 * tf.reduce_sum(tf.random.normal(p.shape, dtype=p.dtype))
    return bce(y, p + tf.zeros([rows, classes], p.dtype)) / y.get_shape().as_list()[1] + noise


LOSSES = {
    "mean": bce,
    "sum over a constant that equals a slice's rows": lambda y, p: tf.reduce_sum(tf.square(y - p)) / 10.0,
    "sum times a constant": lambda y, p: 0.1 * tf.reduce_sum(tf.square(y - p)),
    "sum over the rows": lambda y, p: tf.reduce_sum(tf.square(y - p)) / tf.cast(tf.shape(p)[0], p.dtype),
    "mean and sum": lambda y, p: bce(y, p) + 0.01 * tf.reduce_sum(tf.abs(p)),
    "root": lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(y - p))),
    "bce and dice": lambda y, p: bce(y, p) + dice(y, p),
    "masked": masked,
    "product": lambda y, p: bce(y, p) * tf.reduce_mean(tf.square(p)),
    "largest of two": lambda y, p: tf.maximum(bce(y, p), dice(y, p)),
    "rows and a figure of the batch": lambda y, p: tf.reduce_mean(keras.losses.binary_crossentropy(y, p) + dice(y, p)),
    "less the mean of the batch": lambda y, p: tf.reduce_mean(tf.square(p - tf.reduce_mean(p, 0) - y)),
    "rows with rows": lambda y, p: tf.reduce_mean(tf.square(p @ tf.transpose(p))) + bce(y, p),
    "python that compares the rows": doubled,
    "python that asks for shapes": shapes_asked,
    "python that compares a whole shape": compared_by_autograph,
}


def asked_for_its_kind(y, p):
    rows = p.shape[0]
    return bce(y, p) * (1.0 if isinstance(rows, int) else 0.5)


@tf.autograph.experimental.do_not_convert
def number_or_not(y, p):
    try:
        return bce(y, p) / int(p.shape[0])
    except TypeError:
        return bce(y, p) / 7


def of_type(y, p):
    return bce(y, p) if type(p.shape[0]) is int else tf.sqrt(bce(y, p))


def as_text(y, p):
    return bce(y, p) if str(p.shape) == "(20, 3)" else tf.sqrt(bce(y, p))


def computed(y, p):
    return bce(y, p) + (tf.reduce_mean(tf.square(p)) if isinstance(2 * p.shape[0], int) else 0)


def constant_of_the_step(y, p):
    factor = 0.5 if type(p.shape[0]) is int else 2.0
    return factor * bce(y, p) + 2.0 * tf.reduce_mean(tf.abs(p)) + 0.5 * tf.reduce_sum(p) / 7.0


def attribute_of_an_op(y, p):
    return tf.reduce_mean(tf.cumsum(p, axis=1, reverse=type(p.shape[0]) is int) * y)


def terms_in_another_order(y, p):
    first, second = bce(y, p), tf.reduce_mean(tf.abs(p))
    if type(p.shape[0]) is not int:
        first, second = second, first
    return 3.0 * first + second


LOSSES |= {
    "python that takes another constant of the step": constant_of_the_step,
    "python that gives an op another attribute": attribute_of_an_op,
    "python that swaps terms": terms_in_another_order,
    "python that asks for a type": of_type,
    "python that compares the text of a shape": as_text,
    "python that asks a computed number for an int": computed,
    "python that asks for an int": asked_for_its_kind,
    "python that asks for an int without AutoGraph": tf.autograph.experimental.do_not_convert(asked_for_its_kind),
    "python that catches what int() raises": number_or_not,
}


def loop(name, loss_of, batches):
    model, optimizer = model_of(), keras.optimizers.SGD(0.3, momentum=0.5)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x)
            loss = loss_of(y, predicted)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {"loss": loss, "predicted": predicted, "half": loss / 2, "norm": norm}

    seen, total, rows = [], 0.0, [0] * 7
    for _ in range(2):
        for x, y in batches():
            got = step(x, y)
            asked = [
                len(x), x.shape[0], int(tf.shape(x)[0]), list(x.shape)[0], int(tf.size(y)) // 3,
                got["predicted"].shape[0], len(np.asarray(x)),
            ]  # fmt: skip
            rows = [a + b for a, b in zip(rows, asked)]
            total += float(got["loss"]) * len(x)
            seen += [got["loss"].numpy(), got["half"].numpy(), got["norm"].numpy(), got["predicted"].numpy().sum()]
    results[name] = np.concatenate([*(one.ravel() for one in model.get_weights()), seen, [total], rows])
    corpus_run.expect_shared(name, step)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(20)


def slices():
    return [(X[at : at + 20], Y[at : at + 20]) for at in range(0, 41, 20)]


def generated():
    yield from slices()


def fixed():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(20, drop_remainder=True)


def adversarial():
    """A fast gradient sign step, and a penalty by the norm of the gradients with respect to the inputs."""
    model, optimizer = model_of(), keras.optimizers.SGD(0.3)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                first = bce(y, model(x))
            slopes = inner.gradient(first, x)
            moved = x + 0.1 * slopes / (tf.norm(slopes, axis=1, keepdims=True) + 1e-9)
            loss = bce(y, model(tf.stop_gradient(moved))) + tf.reduce_sum(tf.square(slopes))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss, slopes

    seen = [[float(loss), float(tf.reduce_sum(tf.abs(slopes)))] for x, y in dataset() for loss, slopes in [step(x, y)]]
    results["adversarial"] = np.concatenate([*(one.ravel() for one in model.get_weights()), np.ravel(seen)])


def normalised():
    """A layer's statistics are those of all rows, also in a step in which rows meet later."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    )
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = tf.reduce_mean(tf.square(predicted @ tf.transpose(predicted) - y @ tf.transpose(y)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    seen = [float(step(x, y)) for x, y in dataset()]
    results["normalised"] = np.concatenate([*(one.ravel() for one in model.get_weights()), seen])


def views():
    """Two views of each row are told from all others, and a metric is given what has met."""
    model, optimizer, metric = model_of("tanh"), keras.optimizers.SGD(0.1), keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            one, other = (tf.math.l2_normalize(model(part), 1) for part in (x, x[:, ::-1]))
            rows, count = tf.concat([one, other], 0), tf.shape(one)[0]
            alike = tf.matmul(rows, rows, transpose_b=True) / 0.2 - 1e9 * tf.eye(2 * count, dtype=rows.dtype)
            labels = tf.concat([tf.range(count, 2 * count), tf.range(count)], 0)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, alike))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        metric.update_state(labels, alike)
        return loss

    seen = [float(one) for x, y in dataset() for one in (step(x, y), metric.result())]
    results["views"] = np.concatenate([*(one.ravel() for one in model.get_weights()), seen])
    corpus_run.expect_shared("views", step)


def trained(name, model, loss_of, variables=None):
    """Steps of `loss_of(tape, x, y)`, with the weights that they leave."""
    optimizer, variables = keras.optimizers.SGD(0.1), variables or model.trainable_variables

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(tape, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    seen = [float(step(x, y)) for x, y in dataset()]
    results[name] = np.concatenate([*(np.ravel(one) for one in model.get_weights()), *map(np.ravel, variables), seen])


def tapes_that_change():
    """The same product of rows with rows, first while the tape does not record, or does not watch them yet."""
    model, square = model_of("tanh"), lambda rows: rows @ tf.transpose(rows)

    def stopped(tape, x, y):
        rows = model(x)
        with tape.stop_recording():
            before = square(rows)
        return tf.reduce_mean(tf.square(square(rows) - 0.5 * before - square(y)))

    def watched(tape, x, y):
        rows = model(x)
        before = square(rows)
        with tf.GradientTape() as inner:
            inner.watch(rows)
            mean = tf.reduce_mean(tf.square(square(rows)))
        slope = inner.gradient(mean, rows)
        return tf.reduce_mean(tf.square(rows - y)) + tf.reduce_mean(slope * rows) + 0.1 * tf.reduce_mean(before)

    def paused(tape, x, y):
        rows = model(x)
        with record.stop_recording():  # as TensorFlow does it
            before = square(rows)
        return tf.reduce_mean(tf.square(square(rows) - 0.5 * before - square(y)))

    trained("tape that stops", model, stopped)
    trained("tape that is paused", model, paused)
    trained("tape that watches later", model, watched)


def recomputed():
    """What is computed anew on the way back is what was computed before: nothing is made whole within it."""
    model = model_of("tanh")
    centred = tf.recompute_grad(keras.layers.Lambda(lambda rows: tf.tanh(rows - 1.5 * tf.reduce_mean(rows, 0))))
    trained("recomputed", model, lambda tape, x, y: tf.reduce_mean(tf.square(centred(model(x)) - y)))


def gains_nothing():
    """Rows meet before the work, and the script is told."""
    model = model_of("tanh")

    def loss_of(tape, x, y):
        mixed = tf.nn.softmax(x @ tf.transpose(x)) @ x
        return bce(y, tf.sigmoid(model(mixed)))

    trained("gains nothing", model, loss_of)


def normalised_otherwise():
    """Batch normalization of a figure of the rows, and outside of the model in a step that is not sharded."""
    for name in ("figure", "rows that have met"):
        model, layer = model_of("tanh"), keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 3))

        def loss_of(tape, x, y, model=model, layer=layer, name=name):
            rows = model(x, training=True)
            met = tf.transpose(rows) @ y / 20.0 if name == "figure" else tf.nn.softmax(rows @ tf.transpose(rows)) @ y
            return tf.reduce_mean(tf.abs(layer(met, training=True) - 0.3)) + tf.reduce_mean(tf.square(rows - y))

        trained(f"normalised {name}", model, loss_of, model.trainable_variables + layer.trainable_variables)
        results[f"normalised {name}, moving"] = np.concatenate([np.ravel(one) for one in layer.get_weights()])


def of_weights():
    """Penalties on gradients of a mean and of a root, of weights and of rows, and MAML: gradients of gradients."""
    for name in ("penalty", "maml", "penalty of a root", "penalty of a root by rows"):
        v, optimizer = tf.Variable(np.ones((5, 3)) / 3), keras.optimizers.SGD(0.1)

        @tf.function
        def step(x, y, name=name, v=v, optimizer=optimizer):
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    made = tf.tanh(x @ v)
                    loss = tf.reduce_mean(tf.square((made if "root" in name else x @ v) - y))
                    loss = tf.sqrt(loss) if "root" in name else loss
                inside = inner.gradient(loss, made if "rows" in name else v)
                if name == "maml":
                    loss = tf.reduce_mean(tf.square(x @ (v - 0.1 * inside) - y))
                else:
                    loss += tf.reduce_sum(tf.square(inside))
            optimizer.apply_gradients([(tape.gradient(loss, v), v)])
            return loss

        seen = [float(step(x, y)) for x, y in fixed()]
        results[name] = np.concatenate([v.numpy().ravel(), seen])


def embeddings():
    """Sparse gradients of words and of positions, with an optimizer for which rows that occur twice matter."""
    keras.utils.set_random_seed(1)
    words, places = keras.layers.Embedding(9, 4), keras.layers.Embedding(6, 4)
    words.build(), places.build()
    optimizer = keras.optimizers.Adam(0.05)
    of = [words.embeddings, places.embeddings]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            vectors = tf.nn.embedding_lookup(of[0].value, x) + tf.nn.embedding_lookup(of[1].value, tf.range(6))
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(vectors, 1)[:, :3] - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, of), of))
        return loss

    seen = [float(step(WORDS[at : at + 20], Y[at : at + 20])) for _ in range(2) for at in range(0, 41, 20)]
    results["embeddings"] = np.concatenate([*(np.ravel(one) for one in of), seen])


def by_hand():
    """Gradients that the script computes itself, given to the optimizer."""
    v, optimizer = tf.Variable(np.ones((5, 3)) / 3), keras.optimizers.SGD(0.1)

    @tf.function
    def step(x, y):
        off = x @ v - y
        gradient = 2 * tf.transpose(x) @ off / tf.cast(tf.shape(x)[0], x.dtype)
        optimizer.apply_gradients([(gradient, v)])
        return tf.reduce_mean(tf.square(off))

    seen = [float(step(x, y)) for x, y in dataset()]
    results["by hand"] = np.concatenate([v.numpy().ravel(), seen])


def annealed():
    """What Python reads while a step is traced it reads when the script alone traces it: in its first call."""
    for name, of_rows in (("annealed", bce), ("annealed, whole", LOSSES["less the mean of the batch"])):
        settings, model, optimizer = {"weight": 1.0}, model_of(), keras.optimizers.SGD(0.3)

        @tf.function
        def step(x, y, settings=settings, model=model, optimizer=optimizer, of_rows=of_rows):
            with tf.GradientTape() as tape:
                loss = settings["weight"] * of_rows(y, model(x)) + np.random.rand()
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        np.random.seed(5)
        seen = []
        for x, y in fixed():
            seen.append(float(step(x, y)))
            settings["weight"] *= 0.5
        results[name] = np.concatenate([*(one.ravel() for one in model.get_weights()), seen, [np.random.rand()]])

    weight = {"now": 1.0}
    model = model_of()
    model.compile(keras.optimizers.SGD(0.3), lambda y, p: weight["now"] * keras.losses.binary_crossentropy(y, p))
    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: weight.update(now=0.1 * (epoch + 1)))
    history = model.fit(dataset(), epochs=2, verbose=0, callbacks=[begin]).history
    results["annealed by a callback"] = np.concatenate([*(one.ravel() for one in model.get_weights()), history["loss"]])


def counting():
    """Python that counts how often it is traced."""

    def made(of_rows):
        traced, model, optimizer = {"times": 0}, model_of(), keras.optimizers.SGD(0.3)

        @tf.function
        def step(x, y):
            traced["times"] += 1
            with tf.GradientTape() as tape:
                loss = (1 + 0.3 * traced["times"]) * of_rows(y, model(x))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        seen = [float(step(x, y)) for _ in range(2) for x, y in fixed()]
        return np.concatenate([*(one.ravel() for one in model.get_weights()), seen])

    results["counting"], results["counting, whole"] = made(bce), made(LOSSES["rows with rows"])


def forwards():
    """A product with the Hessian, by a forward accumulator."""
    v, optimizer = tf.Variable(np.ones((5, 3)) / 3), keras.optimizers.SGD(0.1)

    @tf.function
    def step(x, y):
        with tf.autodiff.ForwardAccumulator(v, tf.ones_like(v)) as accumulator:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.tanh(x @ v) - y))
            gradient = tape.gradient(loss, v)
        product = accumulator.jvp(gradient)
        optimizer.apply_gradients([(gradient - 0.01 * product, v)])
        return loss, tf.norm(product)

    seen = [[float(one) for one in step(x, y)] for x, y in fixed()]
    results["forward accumulator"] = np.concatenate([v.numpy().ravel(), np.ravel(seen)])


def branching():
    """A branch gives a sum over rows or a replicated tensor, which counts once in the sum over ranks."""
    v, turns, optimizer = tf.Variable(np.ones((5, 3)) / 3), tf.Variable(0), keras.optimizers.SGD(0.1)

    @tf.function
    def step(x, y):
        turns.assign_add(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ v - y))
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])
        return loss, tf.cond(turns > 1, lambda: tf.reduce_sum(x, 0), lambda: tf.ones([5], x.dtype))

    seen = [np.append(total, loss) for x, y in fixed() for loss, total in [step(x, y)]]
    results["branching"] = np.concatenate([v.numpy().ravel(), *seen])


def fixed_by_hand():
    """A number of rows that Python gives a tensor."""
    v, optimizer = tf.Variable(np.ones((5, 3)) / 3), keras.optimizers.SGD(0.1)

    @tf.function
    def step(x, y):
        x.set_shape([20, 5])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ v - y))
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])
        return loss

    seen = [float(step(x, y)) for x, y in fixed()]
    results["rows set by hand"] = np.concatenate([v.numpy().ravel(), seen])


def fits():
    """Losses of one's own in `fit`, of which some give a number for each row."""
    for name, loss in {
        "fit, rows and dice": lambda y, p: keras.losses.binary_crossentropy(y, p) + dice(y, p),
        "fit, root": lambda y, p: keras.losses.binary_crossentropy(y, p) + LOSSES["root"](y, p),
        "fit, weights by the batch": lambda y, p: keras.losses.binary_crossentropy(y, p) / tf.reduce_mean(y),
        "fit, scalar": lambda y, p: bce(y, p) + dice(y, p),
        "fit, masked": masked,
        "fit, sum": "sum",
        "fit of fixed batches, compared": doubled,
        "fit, drawn by Python": lambda y, p: keras.losses.binary_crossentropy(y, p) * np.random.rand() + dice(y, p),
    }.items():
        if not is_due(name):
            continue
        np.random.seed(3)
        model = model_of()
        loss = keras.losses.MeanSquaredError(reduction="sum") if loss == "sum" else loss
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=[keras.metrics.BinaryAccuracy(), keras.metrics.AUC()])
        data = {"x": fixed()} if "fixed" in name else {"x": X, "y": Y, "batch_size": 20}
        history = model.fit(
            **data, epochs=2, verbose=0, shuffle=False, validation_data=(X[:15], Y[:15]),
            validation_batch_size=14,
        ).history  # fmt: skip
        results[name] = np.concatenate(
            [
                *(one.ravel() for one in model.get_weights()),
                *(np.ravel(history[key]) for key in sorted(history)),
                [np.random.rand()],
            ]
        )


def alternating():
    """Python that does something else each second time that it is traced, where rows meet."""
    traced, model = itertools.count(), model_of()

    def loss(y, p):
        return (1.3 + 0.4 * (next(traced) % 2)) * keras.losses.binary_crossentropy(y, p) + dice(y, p)

    model.compile(keras.optimizers.SGD(0.1), loss)
    history = model.fit(X, Y, batch_size=20, epochs=2, verbose=0, shuffle=False).history
    results["fit, alternating"] = np.concatenate([*(one.ravel() for one in model.get_weights()), history["loss"]])


def main():
    loops = [(name, loss_of, dataset) for name, loss_of in LOSSES.items()]
    loops += [(f"mean, {batches.__name__}", bce, batches) for batches in (slices, generated, fixed)]
    for one in loops:
        if is_due(one[0]):
            loop(*one)
    for case in (
        adversarial,
        normalised,
        views,
        tapes_that_change,
        recomputed,
        gains_nothing,
        normalised_otherwise,
        of_weights,
        embeddings,
        by_hand,
        annealed,
        counting,
        forwards,
        branching,
        fixed_by_hand,
        fits,
        alternating,
    ):
        if is_due(case.__name__):
            case()
    lines = Path(__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.strip().startswith("mixed = ")]
    named = [note for note in corpus_run.list_notes() if f"(borders.py line {line})" in note]
    corpus_run.expect(named, "the line where rows meet before the work is not named")


main()
