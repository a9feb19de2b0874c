"""What eager code and `fit` see of pipelines that keep a state, or that fail; stores it by the names of the cases.

Arguments: the folder for what is stored.
"""

import os
import pickle
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
stored = Path(sys.argv[1])
(stored / str(rank)).mkdir()
os.chdir(stored / str(rank))  # so that files have the same names on all ranks
keras.utils.set_random_seed(1)
keras.backend.set_floatx("float64")
CASES = {}
NUMBERS = tf.data.Dataset.range(23)


def case(function):
    CASES[function.__name__] = function
    return function


def see(dataset, epochs=1):
    return [[one.numpy() for one in tf.nest.flatten(element)] for _ in range(epochs) for element in dataset]


def double(number):
    return tf.cast(number, tf.float64) * 2


def twice(x):
    return x, x


def fit(dataset, **settings):
    model = keras.Sequential([keras.Input(()), keras.layers.Reshape([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    history = model.fit(dataset.map(twice).prefetch(1), verbose=0, **settings).history
    return {
        **{name: np.array(all_epochs) for name, all_epochs in history.items()},
        "kernel": model.layers[1].kernel.numpy(),
    }


def name_error(function, *args):
    try:
        function(*args)
    except tf.errors.OpError as error:
        return type(error).__name__
    return "no error"


@case
def rows_are_seen_before_they_are_batched():
    rows = NUMBERS.shuffle(23, seed=1)
    mapped = rows.map(double).shuffle(5, seed=2)
    seen = see(rows.take(2)) + see(mapped.take(2)) + see(mapped.batch(4), 2)
    return seen + see(mapped.filter(lambda x: x > 9).batch(4)) + see(rows.skip(9).batch(4)) + see(mapped.batch(4))


@case
def the_rank_of_a_row_is_unknown():
    by_python = NUMBERS.map(lambda i: tf.numpy_function(lambda one: np.full(3, one / 2), [i], tf.float64)).map(tf.sin)
    by_ops = NUMBERS.map(lambda i: tf.io.parse_tensor(tf.io.serialize_tensor(double(i)), tf.float64))
    mixed = tf.data.Dataset.zip((by_python, NUMBERS)).batch(4)
    known = mixed.map(lambda x, i: (tf.ensure_shape(x, [None, 3]), i))
    return see(by_python.batch(4), 2) + see(by_ops.batch(4).cache(), 2) + see(mixed, 2) + see(known, 2)


@case
def rows_without_work_have_another_structure_than_their_tickets():
    vectors = tf.data.Dataset.from_generator(
        lambda: (np.full(3, i) for i in range(23)), output_signature=tf.TensorSpec([None], tf.int64)
    )
    by_name = tf.data.Dataset.zip({"rows": vectors, "number": NUMBERS})
    by_place = tf.data.Dataset.zip((vectors, vectors.skip(1), NUMBERS)).map(lambda one, other, i: (other, one, i))

    def double_number(row):
        return {**row, "number": row["number"] * 2}

    def double_last(one, other, i):
        return one, other, i * 2

    return [
        see(by_name.padded_batch(4).map(double_number), 2),
        see(by_place.batch(4).map(double_last), 2),
        see(by_place.padded_batch(4).map(double_last), 2),
    ]


@case
def batches_are_reduced_and_saved_between_epochs():
    batches = NUMBERS.map(double).shuffle(23, seed=1).batch(4)
    total = batches.reduce(tf.constant(0, tf.float64), lambda before, x: before / 2 + tf.reduce_sum(x))
    batches.save("saved")
    return [[total.numpy()], *see(batches)]


@case
def an_endless_dataset_is_left():
    rows = NUMBERS.map(double).shuffle(23, seed=1).batch(4).repeat().prefetch(1)
    validation = NUMBERS.map(double).shuffle(23, seed=2).batch(4).repeat()
    seen = [batch.numpy() for _ in range(3) for batch, _ in zip(rows, range(3))]
    return [
        seen,
        fit(rows, epochs=4, steps_per_epoch=4, validation_data=validation.map(twice).prefetch(1), validation_steps=3),
    ]


@case
def a_cached_map_reads_a_variable():
    factor, seen = tf.Variable(1.0, dtype=tf.float64), []
    rows = NUMBERS.map(lambda number: double(number) * factor).cache().shuffle(23, seed=1).batch(4)
    for _ in range(3):
        seen += see(rows)
        factor.assign_add(1.0)
    return seen


@case
def a_cache_of_random_elements_is_iterated_in_two_ways():
    def draw(number):
        return double(number) + tf.random.uniform([], dtype=tf.float64, seed=4)

    seen = []
    for order in ((0, 1, 0), (1, 0, 3, 1), (2, 1, 2), (3, 0)):
        rows = NUMBERS.shuffle(23, seed=1).map(draw).cache()
        ways = rows, rows.map(tf.sin).batch(4), rows.filter(lambda x: x > 9).batch(4), rows.skip(1).map(tf.cos)
        seen += [see(ways[number]) for number in order]
    return seen


def count_by(change):
    """Batches of rows that a map makes of a counter, which `change` puts before or behind it in the pipeline."""
    counter = tf.Variable(0, dtype=tf.int64)
    return see(change(counter).batch(4), 2)


@case
def a_map_reads_what_the_one_before_changed():
    return count_by(
        lambda counter: NUMBERS.map(lambda i: i + 0 * counter.assign_add(1)).map(lambda i: i * 100 + counter)
    )


@case
def a_map_reads_what_the_next_one_changes():
    return count_by(
        lambda counter: NUMBERS.map(lambda i: i * 100 + counter).map(lambda i: i + 0 * counter.assign_add(1))
    )


@case
def a_map_reads_what_a_filter_changed():
    return count_by(
        lambda counter: NUMBERS.filter(lambda i: counter.assign_add(1) > i % 2).map(lambda i: i * 100 + counter)
    )


@case
def a_function_within_a_map_reads_what_the_map_changed():
    def make(counter):
        read = tf.function(lambda: counter * 1)

        def count(number):
            counter.assign_add(1)
            return number * 100 + read()

        return NUMBERS.map(count)

    return count_by(make)


@case
def a_map_looks_up_what_it_has_put_in_a_table():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    def note(number):
        before = table.lookup(number % 4)
        table.insert(number % 4, number)
        return before * 100 + table.lookup(number % 4)

    return see(NUMBERS.map(note).batch(4), 2)


@case
def python_writes_the_file_that_a_map_reads():
    def write(number):
        Path("one").write_text(str(int(number)))
        return "one"

    def load(number):
        return tf.strings.to_number(tf.io.read_file(tf.ensure_shape(tf.py_function(write, [number], tf.string), [])))

    return see(NUMBERS.map(load).batch(4))


@case
def iterators_are_saved():
    seen = []
    for rows in (NUMBERS.map(double).cache().shuffle(9, seed=1), NUMBERS.map(double)):
        iterator = iter(rows.batch(4).repeat(2))
        checkpoint = tf.train.Checkpoint(iterator=iterator)
        seen += [[next(iterator).numpy()] for _ in range(3)]
        path = checkpoint.save("checkpoint")
        seen += [[next(iterator).numpy()] for _ in range(5)]
        checkpoint.restore(path)
        seen += see(iterator)
        unused = iter(rows.batch(4).repeat(2))
        tf.train.Checkpoint(iterator=unused).restore(path)
        seen += see(unused)
    return seen


@case
def iterators_go_on_in_the_next_passes():
    """Restored, an iterator shuffles as the saved one goes on to do, wherever in a pass it was saved."""

    def make():
        return NUMBERS.shuffle(23, seed=1).map(double, num_parallel_calls=2).batch(4).repeat(3)

    seen = []
    for taken in range(1, 8):
        iterator = iter(make())
        for _ in range(taken):
            next(iterator)
        path = tf.train.Checkpoint(iterator=iterator).save("checkpoint")
        restored = iter(make())
        tf.train.Checkpoint(iterator=restored).restore(path)
        seen += see(restored) + see(iterator)
    return seen


@case
def one_row_cannot_be_read():
    rows = tf.data.Dataset.from_tensor_slices(["no file" if at == 6 else "file" for at in range(9)])
    for name in ("file", "lost later"):
        Path(name).write_text("1")
    numbers = rows.map(lambda path: tf.strings.to_number(tf.io.read_file(path), tf.float64)).batch(4)
    later = tf.data.Dataset.from_tensor_slices(["file", "file", "lost later"])
    later = later.map(lambda path: tf.strings.to_number(tf.io.read_file(path), tf.float64)).batch(3)
    lose = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: os.remove("lost later"))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    iterator = iter(numbers)
    seen = [name_error(next, iterator) for _ in range(3)]
    seen += [name_error(fit, numbers), name_error(fit, numbers.skip(1)), name_error(list, numbers.skip(1))]
    seen += [name_error(model.predict, numbers), name_error(lambda: fit(later, epochs=2, callbacks=[lose]))]
    return [seen, fit(numbers.take(1))]  # all go on


@case
def strings_and_all_types():
    types = tf.int8, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.float16, tf.bfloat16, tf.complex64, tf.bool
    rows = NUMBERS.map(lambda i: (tf.strings.as_string(i * 2), tf.zeros([2, 0]), *(tf.cast(i, one) for one in types)))
    words = NUMBERS.map(lambda i: tf.strings.join([tf.repeat("a", i % 5), "b"])).padded_batch(4, padding_values="none")
    return see(rows.batch(4)) + see(words)


found = {name: function() for name, function in CASES.items()}
with open(stored / f"rank-{rank}.pickle", "wb") as file:
    pickle.dump(found, file)
