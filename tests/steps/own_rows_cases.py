"""Training on rows of which each rank holds its own, in every style; alone, on the ranks' batches put together.

`own_rows_cases.py RANKS FOLDER`: how many ranks the rows are dealt to. Each rank stores what it found in FOLDER.
"""

import functools
import os
import sys

import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.sharding import apportion

keras = tf.keras
keras.backend.set_floatx("float64")
ranks, folder = int(sys.argv[1]), sys.argv[2]
IS_KERAS_2 = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
alone = matex_tf.size() == 1
rank = matex_tf.rank()
generator = np.random.RandomState(0)
X = generator.rand(29, 5)
Y = X @ generator.rand(5, 1)
COUNTS = {2: [8, 21], 3: [8, 21, 0]}[ranks]
ENDS = np.cumsum([0, *COUNTS])
PARTS = [(X[start:end], Y[start:end]) for start, end in zip(ENDS, ENDS[1:])]
MINE = PARTS[rank]
EACH = 3
found = {}


def own(part):
    """This rank's rows of a case, marked."""
    return tuple(matex_tf.shard(array, own=True) for array in part)


def put_together(parts, each=EACH):
    """The batches of all ranks: of each rank its next `each` rows, one rank after the other."""
    steps = max(-(-len(x) // each) for x, _ in parts)
    return [
        tuple(np.concatenate([part[k][step * each : (step + 1) * each] for part in parts]) for k in (0, 1))
        for step in range(steps)
    ]


BATCHES = put_together(PARTS)


def make_dataset(batches):
    """A dataset of whole batches, which need not have one size."""
    specs = tuple(tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in batches[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def make_data():
    if alone:
        return make_dataset(BATCHES)
    return tf.data.Dataset.from_tensor_slices(own(MINE)).batch(EACH * ranks)


def make():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.BatchNormalization()]
    if not IS_KERAS_2:  # Keras 2 begins its random numbers anew for each number of rows
        layers.append(keras.layers.Dropout(0.2))
    model = keras.Sequential([keras.layers.Input((5,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02), "mse", metrics=["mae"])
    return model


@functools.cache
def make_common():
    """A model for several cases, and its variables with their first values."""
    model = make()
    model.optimizer.build(model.trainable_variables)
    return model, [(variable, variable.numpy()) for variable in (*model.variables, *model.optimizer.variables)]


def start_again():
    """The common model as it was at first: its step is traced once."""
    if IS_KERAS_2:
        return make()
    keras.utils.set_random_seed(3)
    model, values = make_common()
    for variable, value in values:
        variable.assign(value)
    return model


def train(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


def store(name, model, *numbers):
    weights = [np.asarray(value).ravel() for value in model.get_weights()] if model is not None else []
    found[name] = np.concatenate([*(np.ravel(np.asarray(one, np.float64)) for one in numbers), *weights])


def in_eager_loop(compiled, data):
    model, optimizer = make(), keras.optimizers.SGD(0.1)
    step = (tf.function if compiled else lambda one: one)(lambda x, y: train(model, optimizer, x, y))
    losses = [float(step(x, y)) for x, y in data]
    store("tf.function" if compiled else "eager", model, losses)


def take_next():
    model, optimizer = make(), keras.optimizers.SGD(0.1)

    @tf.function
    def step(iterator):
        x, y = next(iterator)
        return train(model, optimizer, x, y)

    losses = []
    for _ in range(2):
        iterator = iter(make_data())
        try:
            while True:
                losses.append(float(step(iterator)))
        except tf.errors.OutOfRangeError:
            pass
    store("next", model, losses)


def loop_inside(captured):
    model, optimizer = make(), keras.optimizers.SGD(0.1)
    data = make_data()

    @tf.function
    def epoch(batches):
        total = tf.constant(0.0, tf.float64)
        for x, y in data.prefetch(1) if captured else batches:
            total += train(model, optimizer, x, y)
        return total

    losses = [float(epoch(tf.data.Dataset.range(1) if captured else data)) for _ in range(2)]
    store("captured" if captured else "loop inside", model, losses)


def two_sources():
    """Of two iterators in one step, one gives the batch; what the other gives counts whole."""
    data = make_data()

    @tf.function
    def step(first, second, matrix):
        x, y = next(first)
        other, _ = next(second)
        return tf.reduce_sum(x @ matrix), tf.reduce_mean(other @ matrix), tf.shape(other)[0], tf.sort(y[:, 0])

    first, second = iter(data), iter(data)
    store("two sources", None, *step(first, second, tf.ones((5, 2), tf.float64)))


def without_work():
    """A step that would not pay to be shared is one on all rows all the same."""
    step = tf.function(lambda iterator: tf.reduce_max(next(iterator)[0], 0))
    store("without work", None, step(iter(make_data())))


def of_unknown_number():
    data = make_data().filter(lambda x, y: True)
    model = start_again()
    # One epoch: whether the seed of Dropout moves on where data end is a matter of time in TensorFlow itself.
    history = model.fit(data, epochs=1, verbose=0)
    store("unknown number", model, history.history["loss"])


def by_hand():
    """Marked rows given to a function, and to `train_on_batch`."""
    model, optimizer = make(), keras.optimizers.SGD(0.1)
    step = tf.function(lambda x, y: train(model, optimizer, x, y))
    losses, of_batches, other = [], [], start_again()
    for at in range(len(BATCHES)):
        rows = slice(at * EACH, (at + 1) * EACH)
        x, y = BATCHES[at] if alone else own([part[rows] for part in MINE])
        losses.append(float(step(x, y)))
        of_batches.append(other.train_on_batch(x, y)[0])
    store("by hand", model, losses)
    store("train_on_batch", other, of_batches)


def call_with_rows():
    """Marked rows given to a model while a tape records."""
    model, optimizer = make(), keras.optimizers.SGD(0.1)
    for at in range(len(BATCHES)):
        x = BATCHES[at][0] if alone else own([MINE[0][at * EACH : (at + 1) * EACH]])[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    store("call of a model", model)


def fit_dataset(name, **options):
    model = make() if options else start_again()
    if options:
        model.compile(keras.optimizers.SGD(0.02), "mse", metrics=["mae"], **options)
    weights = {0: 1.0, 1: 3.0} if name == "class_weight" else None
    data = make_data()
    if name == "class_weight":
        data = data.map(lambda x, y: (x, tf.cast(y > 1.2, tf.int64)))
    history = model.fit(data, epochs=2, verbose=0, class_weight=weights, validation_data=make_data())
    store(f"fit {name}", model, *(history.history[key] for key in sorted(history.history)))
    found[f"steps {name}"] = np.asarray([int(np.asarray(model.optimizer.iterations))])


def in_order(counts, batch_size, first=0):
    """The rows of all ranks as steps of `fit` take them from the ranks' arrays."""
    taken, batches = [0] * ranks, []
    for step in range(-(-sum(counts) // batch_size)):
        ends = apportion.apportion_rows(counts, (step + 1) * batch_size)
        batches.append(np.concatenate([ENDS[k] + np.arange(taken[k], ends[k]) for k in range(ranks)]).astype(int))
        taken = ends
    return batches


def fit_arrays():
    model, batches = start_again(), in_order(COUNTS, 8)
    if alone:
        history = model.fit(make_dataset([(X[rows], Y[rows]) for rows in batches]), epochs=2, verbose=0)
        tested = model.evaluate(make_dataset([(X[rows], Y[rows]) for rows in in_order(COUNTS, 4)]), verbose=0)
    else:
        x, y = own(MINE)
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        tested = model.evaluate(x, y, batch_size=4, verbose=0)
    store("fit arrays", model, history.history["loss"], tested)
    return model


def fit_split():
    """The last rows of each rank validate."""
    model = start_again()
    at = [int(np.floor(count * 0.75)) for count in COUNTS]
    if alone:
        rows = in_order(at, 8)
        rest = np.concatenate([np.arange(ENDS[k] + at[k], ENDS[k + 1]) for k in range(ranks)])
        data = make_dataset([(X[one], Y[one]) for one in rows])
        history = model.fit(data, verbose=0, validation_data=(X[rest], Y[rest]), validation_batch_size=32)
    else:
        history = model.fit(*own(MINE), batch_size=8, shuffle=False, verbose=0, validation_split=0.25,
                            validation_batch_size=32)  # fmt: skip
    store("fit split", model, history.history["loss"], history.history["val_loss"])


def other_batches():
    """The script's batch size counts the rows of all ranks, whatever makes batches."""
    rows = None if alone else tf.data.Dataset.from_tensor_slices(own(MINE))
    padded = BATCHES if alone else rows.padded_batch(EACH * ranks)
    rebatched = BATCHES if alone else rows.batch(ranks).rebatch(np.array(2 * [EACH * ranks]))
    store("padded_batch", None, *[x for x, _ in padded])
    store("rebatch", None, *[x for x, _ in rebatched])


def sharded_dataset():
    """`shard` of a dataset of batches, some of fewer rows than ranks."""
    data = matex_tf.shard(tf.data.Dataset.from_tensor_slices((X[:22], Y[:22])).batch(7))
    model = start_again()
    history = model.fit(data.map(lambda x, y: (x, y * 2)), epochs=2, verbose=0)
    store("shard of a dataset", model, history.history["loss"], *[x for x, _ in data])


if not IS_KERAS_2:
    for choice in (True, False):
        in_eager_loop(choice, make_data())
        loop_inside(choice)
    take_next()
    two_sources()
    without_work()
    of_unknown_number()
    fit_dataset("run_eagerly", run_eagerly=True)
    fit_dataset("steps_per_execution", steps_per_execution=2)
    sharded_dataset()
    other_batches()
by_hand()
call_with_rows()
fit_dataset("dataset")
fit_dataset("class_weight")
fit_split()
model = fit_arrays()
found["predict"] = np.asarray(model.predict(X if alone else own(MINE)[0], verbose=0))
data = tf.data.Dataset.from_tensor_slices(X).batch(4) if alone else make_data().map(lambda x, y: x)
found["predict dataset"] = np.asarray(model.predict(data, verbose=0))


def wrong(name, call):
    try:
        call()
        found[name] = np.asarray("nothing")
    except Exception as error:
        found[name] = np.asarray(f"{type(error).__name__}: {error}")


if not alone:
    rows = tf.data.Dataset.from_tensor_slices(own(MINE))
    wrong("wrong: single rows", lambda: next(iter(rows)))
    wrong("wrong: numbers", lambda: next(iter(rows.batch(6).map(lambda x, y: (x, y, tf.reduce_sum(y))))))
    longer = rows.batch(6).map(lambda x, y: (tf.repeat(x, 1 + rank, 1), y))
    wrong("wrong: other sizes", lambda: next(iter(longer)))
    uneven = rows.batch(6).map(lambda x, y: (x, y[1:]))
    wrong("wrong: other rows", lambda: next(iter(uneven)))
    reduce = tf.function(
        lambda batches: batches.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1) + next(iter(batches))[0]
    )
    iterator = iter(rows.batch(6))
    fixed = tf.function(lambda: tf.ones([next(iterator)[0].shape[0] + 1]))
    wrong("wrong: number of rows", fixed)
    wrong("wrong: compiled", lambda: tf.function(lambda: next(iterator)[0], jit_compile=True)())
    wrong("wrong: constant", tf.function(lambda: tf.constant(own(MINE)[0])))
    v1 = tf.compat.v1.data
    wrong("wrong: one shot", tf.function(lambda: v1.make_one_shot_iterator(make_data()).get_next()[0]))
    wrong("wrong: within", tf.function(lambda: next(iter(make_data()))[0]))
    old = v1.Iterator.from_structure(v1.get_output_types(make_data()), v1.get_output_shapes(make_data()))
    wrong("wrong: initializer", lambda: old.make_initializer(make_data()))
    wrong("wrong: reduce", lambda: reduce(rows.batch(6).map(lambda x, y: (tf.cast(y[:, 0], tf.int64), y))))
np.savez(f"{folder}/{'alone' if alone else rank}", **found)
