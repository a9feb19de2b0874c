"""Pipelines as tutorials write them: slices of their batches are the script's, bit for bit; a row is worked on once.

One process makes the slices of all ranks, one after the other.
"""

import itertools
import statistics
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from matex_tf.input import shared_batches, splitting
from matex_tf.sharding import slice_bounds
from matex_tf.steps import batches

ROWS, BATCH, EPOCHS = 23, 5, 2
AUTO = tf.data.AUTOTUNE
CONSTANT = tf.constant([7, 8])
worked: list[int] = []


def count(number):
    worked.append(int(number))
    return np.int64(0)


def counted(number):
    """Notes that a row is worked on, by a function without state."""
    return tf.ensure_shape(tf.numpy_function(count, [number], tf.int64, stateful=False), [])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number in range(ROWS):
        (folder / f"{number % 3}").mkdir(exist_ok=True)
        image = generator.integers(0, 256, (9, 8, 3), np.uint8)
        tf.io.write_file(str(folder / f"{number % 3}" / f"{number:02}.png"), tf.io.encode_png(image))
    with tf.io.TFRecordWriter(str(folder / "rows.tfrecord")) as writer:
        for _ in range(ROWS):
            feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=generator.random(3)))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    (folder / "rows.txt").write_text("".join(f"{number},{number + 0.5}\n" for number in range(ROWS)))
    return folder


def paths(folder):
    found = sorted(str(one) for one in folder.glob("*/*.png"))
    return tf.data.Dataset.from_tensor_slices((found, np.arange(len(found))))


def load(path, number):
    image = tf.io.decode_png(tf.io.read_file(path), 3)
    return tf.image.resize(tf.cast(image, tf.float32), [6, 6]), number + counted(number)


def parse(record):
    return tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([3], tf.float32)})["x"]


def augment(image, number):
    return tf.image.random_brightness(tf.image.random_flip_left_right(image), 0.3), number


def rescale(image, number):
    return image / 255.0, number


def scale(image, number):
    return image * 3 * 1.7 + 1, number  # TensorFlow makes one product of these, within a map


def shift(image, number):
    return image + 0.1, number


def flip():
    layer = keras.layers.RandomFlip("horizontal", seed=5)
    return lambda image, number: (layer(image, training=True), number)


def records(folder):
    return tf.data.TFRecordDataset(str(folder / "rows.tfrecord"))


def from_directory(folder):
    return keras.utils.image_dataset_from_directory(folder, image_size=(6, 6), batch_size=BATCH, seed=1)


def vectorize(folder):
    layer = keras.layers.TextVectorization(vocabulary=list(map(str, range(10))), output_sequence_length=4)
    lines = tf.data.TextLineDataset(str(folder / "rows.txt")).map(lambda line: tf.strings.regex_replace(line, ",", " "))
    return lines.batch(BATCH).map(lambda line: layer(tf.expand_dims(line, -1)))


def words(folder):
    rows = tf.data.Dataset.range(ROWS).map(lambda number: (tf.range(number % 7), number))
    return rows.map(lambda row, number: (row * 2 + tf.cast(counted(number), tf.int64), number))


PIPELINES = {
    "directory, rescale": lambda at: from_directory(at).map(rescale),
    "directory, cache, shuffle": lambda at: from_directory(at).map(rescale).cache().shuffle(9, seed=4).prefetch(AUTO),
    "records, parse, shuffle, batch": lambda at: records(at).map(parse, AUTO).shuffle(9, seed=1).batch(BATCH),
    "records, shuffle, repeat": lambda at: records(at).shuffle(9, seed=1).repeat(2).map(parse, AUTO).batch(BATCH),
    "shuffle, load, repeat": lambda at: paths(at).shuffle(30, seed=1).map(load, AUTO).repeat(2).batch(BATCH),
    "shuffle, prefetch, repeat": lambda at: (
        paths(at).shuffle(9, seed=1).prefetch(2).repeat(2).shuffle(9, seed=2).repeat(2).map(load).batch(BATCH)
    ),
    "shuffled batches, map, repeat": lambda at: (
        paths(at).map(load).batch(BATCH).shuffle(9, seed=1).map(rescale).repeat(2)
    ),
    "names, repeat, names": lambda at: (
        tf.data.Dataset.list_files(str(at / "*" / "*.png"), seed=1)
        .repeat(2)
        .map(lambda path: load(path, tf.strings.to_hash_bucket_fast(path, 99)))
        .repeat(2)
        .batch(BATCH)
    ),
    "files, shuffle, load, augment": lambda at: paths(at).shuffle(30, seed=1).map(load, AUTO).map(augment).batch(BATCH),
    "files, load, cache, shuffle": lambda at: paths(at).map(load, AUTO).cache().shuffle(30, seed=1).batch(BATCH),
    "serial map": lambda at: paths(at).map(load).batch(BATCH),
    "map, cache, shuffle, batch, prefetch": lambda at: paths(at).map(load).cache().shuffle(9).batch(BATCH).prefetch(1),
    "zip": lambda at: tf.data.Dataset.zip((paths(at).map(load, AUTO), paths(at))).batch(BATCH),
    "padded": lambda at: words(at).padded_batch(BATCH),
    "padded, map": lambda at: words(at).padded_batch(BATCH).map(lambda a, b: {"y": tf.one_hot(b, 9), "x": a}),
    "batch, map": lambda at: paths(at).map(load).batch(BATCH).map(rescale),
    "text": lambda at: (
        tf.data.TextLineDataset(str(at / "rows.txt"))
        .map(lambda line: tf.strings.to_number(tf.strings.split([line], ",").values))
        .batch(BATCH)
    ),
    "text, batch, words": vectorize,
    "dropped remainder": lambda at: paths(at).map(load).batch(BATCH, drop_remainder=True).repeat(2),
    "take, skip, shard": lambda at: paths(at).shard(2, 1).map(load).skip(1).take(9).batch(2),
    "dictionary": lambda at: paths(at).map(load).map(lambda a, b: {"y": b, "x": a}).batch(BATCH, num_parallel_calls=2),
    "filter": lambda at: paths(at).filter(lambda path, number: number % 3 > 0).map(load).batch(BATCH),
    "enumerate": lambda at: paths(at).map(load).enumerate().batch(BATCH),
    "options": lambda at: paths(at).map(load).batch(BATCH).with_options(tf.data.Options()).prefetch(2),
    "a layer": lambda at: paths(at).map(load).batch(BATCH).map(lambda a, b: (keras.layers.Rescaling(2.0, 1.0)(a), b)),
    "batches are shuffled": lambda at: paths(at).map(load).batch(BATCH).shuffle(3, seed=2),
    "sums in a row": lambda at: paths(at).map(load).map(scale).map(shift).batch(BATCH).map(scale).map(shift),
    "a divisor": lambda at: paths(at).map(load).map(lambda a, b: (a / 255.0 - 0.3, b)).batch(BATCH),
    "a layer that draws": lambda at: paths(at).map(load).batch(BATCH).map(flip()).shuffle(3, seed=1),
    "generator, map": lambda at: (
        tf.data.Dataset.from_generator(lambda: iter(range(ROWS)), output_signature=tf.TensorSpec([], tf.int64))
        .map(lambda number: tf.cast(number + counted(number), tf.float32))
        .batch(BATCH)
    ),
    "numbers as seeds": lambda at: (
        tf.data.Dataset.zip((paths(at).map(load), tf.data.Dataset.counter()))
        .shuffle(9, seed=1)
        .map(lambda row, at: (tf.image.stateless_random_brightness(row[0], 0.3, tf.stack([at, at])), row[1]), AUTO)
        .batch(BATCH)
    ),
    "windows of a series": lambda at: (
        tf.data.Dataset.range(ROWS)
        .window(5, shift=1, drop_remainder=True)
        .flat_map(lambda rows: rows.batch(5))
        .map(lambda rows: (tf.sqrt(tf.cast(rows[:-1], tf.float64)), rows[-1]))
        .shuffle(9, seed=1)
        .batch(BATCH)
    ),
    "two mixed": lambda at: tf.data.Dataset.zip(
        tuple(tf.data.Dataset.range(ROWS).map(tf.square).shuffle(30, seed=seed).batch(BATCH) for seed in (1, 2))
    ).map(lambda one, two: (one * 2 + two) / 3),
    "two directories": lambda at: tf.data.Dataset.zip(
        tuple(
            keras.utils.image_dataset_from_directory(at, None, image_size=(size, 6), batch_size=BATCH, seed=1)
            for size in (6, 4)
        )
    ).map(lambda image, mask: (image / 255.0, mask > 9)),
    "datasets that are dropped": lambda at: tf.data.Dataset.zip(
        paths(at).map(load).batch(BATCH),
        tf.data.Dataset.range(ROWS).map(lambda i: tf.data.Dataset.range(i).filter(lambda k: k > 2)),
        tf.data.Dataset.range(ROWS).map(lambda i: tf.data.Dataset.range(i + 1).repeat()),
    ).map(lambda row, *dropped: (row[0] / 2, row[1])),
    "batches with their numbers": lambda at: words(at).padded_batch(BATCH).enumerate().prefetch(1),
    "batches of other lengths": lambda at: tf.data.Dataset.zip((paths(at).map(load).batch(6), paths(at).batch(4))),
    "a constant, a draw": lambda at: (
        tf.data.Dataset.range(ROWS)
        .map(lambda number: (number, CONSTANT))
        .map(lambda number, pair: (tf.cast(number + counted(number), tf.float32) + tf.random.uniform([], seed=1), pair))
        .batch(BATCH)
    ),
    "a draw of a draw, for batches": lambda at: (
        tf.data.Dataset.zip((paths(at).map(load).batch(BATCH), tf.data.Dataset.range(ROWS).batch(BATCH)))
        .map(lambda rows, number: (*rows, number, tf.random.uniform([], 1, 9, tf.int64, seed=1)))
        .cache()
        .map(lambda image, _, number, drawn: (image, number, tf.random.uniform([], 0, drawn, tf.int64, seed=2)))
    ),
    "arrays, batch, map": lambda at: tf.data.Dataset.from_tensor_slices(np.arange(5.0)).batch(2).map(tf.math.sin),
}


def flat(element):
    return [one.numpy() for one in tf.nest.flatten(element)]


def same(got, want):
    return len(got) == len(want) and all(
        one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
        for one, other in zip(got, want)
    )


def pad_alike(slices, whole, pads):
    """The flat tensors of a slice, those in `pads` padded to the row sizes of the whole batch."""
    tensors = [tensor.numpy() for tensor in slices]
    for at in pads:
        missing = np.subtract(whole[at].shape[1:], tensors[at].shape[1:])
        tensors[at] = np.pad(tensors[at], [[0, 0], *([0, count] for count in missing)])
    return tensors


def make(name, folder):
    tf.random.set_seed(3)
    return PIPELINES[name](folder)


@pytest.mark.parametrize("name", PIPELINES)
def test_whole_batches_are_the_scripts(name, files):
    want, dataset = make(name, files), make(name, files)
    source = shared_batches.find_source(dataset)
    assert source is not None
    for _ in range(EPOCHS):
        expected = list(want)
        found = list(source.iterate(tf.data.Dataset.__iter__))
        assert len(found) == len(expected)
        assert all(same(flat(one), flat(other)) for one, other in zip(found, expected))


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.more)])
@pytest.mark.parametrize("name", PIPELINES)
def test_each_rank_works_on_its_rows(name, ranks, files):
    want = make(name, files)
    sources = [shared_batches.find_source(make(name, files)) for _ in range(ranks)]
    for rank, source in enumerate(sources):
        source.rows_ahead.set_numbers([1, rank, *[1] * ranks])
    for _ in range(2):
        iterators = [batches.find_shared_batches(source.iterate(tf.data.Dataset.__iter__)) for source in sources]
        expected = [flat(batch) for batch in want]
        of_ranks = [[iterator.take() for _ in expected] for iterator in iterators]
        for rank, (source, taken) in enumerate(zip(sources, of_ranks)):
            for batch, whole in zip(taken, expected):
                counts = [len(tensor) for tensor, is_rows in zip(whole, source.are_rows) if is_rows]
                if not batch.is_even:  # it has no slices
                    assert len(set(counts)) > 1 and same(flat(batch.element.rows), whole)
                    continue
                start, stop, _ = slice_bounds.find_slice_bounds(counts[0], rank, ranks)
                assert batch.element[:3] == (start, stop - start, counts[0])
                rows = [tensor[start:stop] if is_rows else tensor for tensor, is_rows in zip(whole, source.are_rows)]
                assert same(pad_alike(batch.element.rows, whole, source.pads), rows)
        digests = [[batch.element.digest for batch in taken] for taken in of_ranks]
        assert all(of_rank == digests[0] for of_rank in digests)


def test_rows_are_work_though_a_draw_takes_a_draw(files):
    assert splitting.find_batches(make("a draw of a draw, for batches", files)).is_work


@pytest.mark.parametrize("sizes", [(8, 5), (5, 8)])
@pytest.mark.parametrize("kept", [0, 1])
def test_components_that_a_map_drops_do_not_count(sizes, kept):
    kinds = (tf.TensorSpec([None], tf.int64),) * 2
    data = tf.data.Dataset.from_generator(lambda: iter([tuple(map(np.arange, sizes))]), output_signature=kinds)
    source = shared_batches.find_source(data.map(lambda *components: components[kept] * 2))
    source.rows_ahead.set_numbers([1, 1, 1, 1])  # rank 1 of 2
    taken = batches.find_shared_batches(source.iterate(tf.data.Dataset.__iter__)).take()
    assert taken.is_even and taken.total == len(taken.take_whole()[0]) == sizes[kept]


OF_COUNTS = {
    "mean": lambda x, y: (x / tf.cast(tf.shape(x)[0], x.dtype), y / tf.cast(tf.shape(y)[0], y.dtype)),
    "new rows": lambda x, y: (tf.ones([tf.shape(x)[0], 3]), tf.ones([tf.shape(y)[0], 3])),
    "new shape": lambda x, y: (tf.reshape(x, [tf.shape(x)[0], 1]), tf.reshape(y, [tf.shape(y)[0], 1])),
}


@pytest.mark.parametrize("sizes", [(8, 5), (5, 8), (1, 8), (6, 6)])
@pytest.mark.parametrize("name", OF_COUNTS)
def test_a_map_gets_the_number_of_rows_of_each_component(name, sizes):
    kinds = (tf.TensorSpec([None], tf.int64),) * 2
    data = tf.data.Dataset.from_generator(lambda: iter([tuple(map(np.arange, sizes))]), output_signature=kinds)
    for kept in (slice(0, 1), slice(1, 2), slice(0, 2)):
        mapped = data.map(lambda x, y, kept=kept: OF_COUNTS[name](x, y)[kept])
        source = shared_batches.find_source(mapped)
        source.rows_ahead.set_numbers([1, 1, 1, 1])  # rank 1 of 2
        batch = batches.find_shared_batches(source.iterate(tf.data.Dataset.__iter__)).take()
        assert batch.is_even == (len(set(sizes[kept])) == 1) and batch.total == max(sizes[kept])
        assert (batch.element.count == batch.total) == (len(set(sizes)) > 1)
        want = flat(next(iter(mapped)))
        assert same(flat(batch.take_whole()), want) and same(flat(next(iter(source.whole))), want)


DIGESTED = {
    "a draw": lambda batch: batch.map(lambda row: (row, tf.random.uniform([], seed=3))),
    "a draw, cached": lambda batch: batch.map(lambda row: (row, tf.random.uniform([], seed=3))).cache(),
    "zipped": lambda batch: tf.data.Dataset.zip(tf.data.Dataset.range(ROWS).batch(BATCH), batch.cache()),
}


@pytest.mark.parametrize("name", DIGESTED)
def test_other_rows_of_a_padded_batch_have_another_digest(name):
    def digest(first):
        tf.random.set_seed(3)
        rows = tf.data.Dataset.range(first, first + BATCH).map(
            lambda at: tf.ones([at % 5 + 1]) * tf.cast(at, tf.float32)
        )
        source = shared_batches.find_source(DIGESTED[name](rows.padded_batch(BATCH)))
        return batches.find_shared_batches(source.iterate(tf.data.Dataset.__iter__)).take().element.digest

    assert digest(0) == digest(0) != digest(5)


def test_python_in_a_parallel_map_of_batches_is_called_in_order():
    """It takes nothing of the batch, so results would depend on the order of calls, and differ between ranks."""
    begun, second_begins = itertools.count(), threading.Event()

    def number():
        mine = next(begun)
        if mine == 1:
            second_begins.set()
        if mine == 0 and second_begins.wait(1):
            time.sleep(0.1)  # the second call, which runs at the same time, ends first
        ended.append(mine)
        return np.int64(mine)

    ended, options = [], tf.data.Options()
    options.threading.private_threadpool_size = 4
    rows = tf.data.Dataset.range(16).map(tf.square).batch(2)
    dataset = rows.map(lambda row: (row, tf.numpy_function(number, [], tf.int64)), 4).with_options(options)
    source = shared_batches.find_source(dataset)
    assert [int(at) for _, at in source.iterate(tf.data.Dataset.__iter__)] == list(range(8))
    assert ended == list(range(8))


def measure_core_seconds(function):
    seconds = []
    for _ in range(7):
        began = time.process_time()
        function()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def test_an_iterator_that_is_not_used_costs_less_than_that_of_the_script(files):
    """Keras makes two for each epoch, and uses one."""
    dataset = PIPELINES["text"](files)
    source = shared_batches.find_source(dataset)
    own = measure_core_seconds(lambda: source.iterate(tf.data.Dataset.__iter__))
    assert own < measure_core_seconds(lambda: tf.data.Dataset.__iter__(dataset))


def make_views(x, _):
    """Two views of one row."""
    row = x + tf.cast(counted(tf.cast(x[0] * 2**24, tf.int64)), tf.float32)
    return row + 1, row * 2


def make_views_of_records(at):
    """The first of the two maps of records has a result that the second does not take."""
    names = tf.data.Dataset.from_tensors(str(at / "rows.tfrecord"))
    return names.interleave(
        lambda name: tf.data.TFRecordDataset(name).map(lambda one: (parse(one), tf.strings.length(one))).map(make_views)
    )


@pytest.mark.parametrize("make_rows", [lambda at: paths(at).map(load), make_views_of_records], ids=["images", "views"])
def test_each_row_is_worked_on_by_one_rank(make_rows, files):
    source = shared_batches.find_source(make_rows(files).batch(BATCH))
    for rank in range(2):
        source.rows_ahead.set_numbers([1, rank, 1, 1])
        del worked[:]
        shares = batches.find_shared_batches(source.iterate(tf.data.Dataset.__iter__))
        for _ in range(-(-ROWS // BATCH)):
            shares.take()
        assert len(worked) == (14, 9)[rank] == len(set(worked))


def test_an_iterator_stays_as_it_is_if_a_state_has_other_shuffles(monkeypatch):
    source = shared_batches.find_source(tf.data.Dataset.range(ROWS).map(lambda one: one * 2).batch(BATCH))
    other, own = (batches.find_shared_batches(source.iterate(tf.data.Dataset.__iter__)) for _ in range(2))
    other.take()
    with monkeypatch.context() as patch:
        patch.setattr(other, "_count_draws", lambda: [1])
        state = other.save()
    with pytest.raises(tf.errors.NotFoundError, match="shuffles"):
        own.restore(state)
    assert own.take().take_whole()[0].numpy()[0] == 0
