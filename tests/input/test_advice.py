"""What `--explain` advises: of each pipeline that keeps work on every rank, the advised one keeps none."""

import re

import numpy as np
import pytest
import tensorflow as tf

from matex_tf.input import advice, splitting

ROWS = 8


def load(number):
    return tf.cast([number, number, number], tf.float32) / 2


def numbers():
    return tf.data.Dataset.range(ROWS)


def rows():
    return numbers().map(load)


def generate():
    for number in range(ROWS):
        yield np.float32([number] * 3)


def call_python(number, **options):
    return tf.ensure_shape(tf.numpy_function(lambda one: np.float32([one] * 3), [number], tf.float32, **options), [3])


def draw(seed, row):
    return row + tf.random.stateless_uniform([3], [seed, 7])


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Names of files of records, compressed and not, and of a file of lines."""
    found = {}
    for kind in ("GZIP", ""):
        found[kind] = str(tmp_path_factory.mktemp("records") / "rows.tfrecord")
        with tf.io.TFRecordWriter(found[kind], tf.io.TFRecordOptions(kind)) as writer:
            for row in generate():
                writer.write(row.tobytes())
    found["csv"] = str(tmp_path_factory.mktemp("lines") / "rows.csv")
    np.savetxt(found["csv"], list(generate()), delimiter=",")
    return found


def parse(record):
    return tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [3])


def read(names, kind=""):
    return tf.data.TFRecordDataset(names[kind], kind).map(parse).batch(4)


def stack(*row):
    return tf.stack(row)


def split(line):
    return tf.stack(tf.io.decode_csv(line, [0.0] * 3))


def assign(counter):
    return lambda number: load(counter.assign_add(number))


PIPELINES = {
    "Filter": (lambda _: rows().filter(lambda row: row[0] > 1).batch(4),
               lambda _: numbers().filter(lambda number: number > 2).map(load).batch(4)),
    "a cache in a file": (lambda names: rows().cache(names[""] + ".cache").batch(4),
                          lambda _: rows().cache().batch(4)),
    "a generator": (lambda _: tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([3])).batch(4),
                    lambda _: rows().batch(4)),
    "Batch": (lambda _: rows().batch(2).batch(2), lambda _: rows().batch(4)),
    "Unbatch": (lambda _: rows().batch(2).unbatch().batch(4),
                lambda _: numbers().batch(2).unbatch().map(load).batch(4)),
    "Concatenate": (lambda _: rows().concatenate(rows()).batch(4),
                    lambda _: numbers().concatenate(numbers()).map(load).batch(4)),
    "Interleave": (lambda _: numbers().interleave(lambda one: tf.data.Dataset.range(one).map(load)).batch(4),
                   lambda _: numbers().interleave(tf.data.Dataset.range).map(load).batch(4)),
    "TFRecord": (lambda names: read(names, "GZIP"), read),
    "Csv": (lambda names: tf.data.experimental.CsvDataset(names["csv"], [0.0] * 3).map(stack).batch(4),
            lambda names: tf.data.TextLineDataset(names["csv"]).map(split).batch(4)),
    "a map of padded batches": (lambda _: rows().map(lambda row: row[: tf.cast(row[0], tf.int32)])
                                .padded_batch(4).map(lambda batch: 2 * batch),
                                lambda _: rows().map(lambda row: 2 * row[: tf.cast(row[0], tf.int32)]).padded_batch(4)),
    "a map that needs the whole batch": (lambda _: rows().batch(4).map(lambda batch: batch - tf.reduce_mean(batch)),
                                         lambda _: rows().batch(4)),
    "PyFunc": (lambda _: numbers().map(call_python).batch(4),
               lambda _: numbers().map(lambda number: call_python(number, stateful=False)).batch(4)),
    "RandomUniform": (lambda _: rows().map(lambda row: row + tf.random.uniform([3]), 2).batch(4),
                      lambda _: rows().enumerate().map(draw, 2).batch(4)),
    "AssignAddVariableOp": (lambda _: numbers().map(assign(tf.Variable(0, dtype=tf.int64))).batch(4),
                            lambda _: numbers().enumerate().map(lambda count, number: load(count + number)).batch(4)),
    "elements that are no batches": (lambda _: rows(), lambda _: rows().batch(4)),
    "ragged elements": (lambda _: rows().batch(4).map(tf.RaggedTensor.from_tensor),
                        lambda _: numbers().map(lambda number: tf.ragged.range(tf.stack([number, 2])).to_tensor())
                        .padded_batch(4)),
    "sparse elements": (lambda _: rows().batch(4).map(tf.sparse.from_dense),
                        lambda _: rows().map(tf.sparse.from_dense).map(tf.sparse.to_dense).padded_batch(4)),
    "elements that are no tensors": (lambda _: rows().batch(4).map(tf.experimental.Optional.from_value),
                                     lambda _: rows().batch(4)),
    "DenseToRagged": (lambda _: rows().map(lambda row: row[: tf.cast(row[0], tf.int32)]).ragged_batch(4),
                      lambda _: rows().map(lambda row: row[: tf.cast(row[0], tf.int32)]).padded_batch(4)),
}  # fmt: skip
"""By what keeps work: a pipeline that has it, and the one that is advised."""


def explain(dataset):
    """What `--explain` says of causes."""
    causes = splitting.find_batches(dataset).causes
    return advice.explain_causes(dataset, [*advice.explain_composites(dataset.element_spec), *causes])


@pytest.mark.parametrize("kept", PIPELINES)
def test_the_advised_pipeline_keeps_no_work(kept, records):
    has_it, advised = (make(records) for make in PIPELINES[kept])
    assert re.search(rf"{kept}.*instead: ", explain(has_it))
    assert explain(advised) == "" and splitting.find_batches(advised).is_work


def test_steps_without_work_before_them_keep_none():
    assert explain(numbers().filter(lambda number: number > 2).batch(4)) == ""
    assert explain(numbers().concatenate(numbers()).shuffle(4).batch(2).prefetch(1)) == ""


@pytest.mark.parametrize("kind", [*advice.OF_STAGES, *advice.OF_OPS], ids=lambda kind: kind[0][:30])
def test_no_advice_is_hidden_by_one_before_it(kind):
    """Each has a word that it is the first to match."""
    table = advice.OF_STAGES if kind in advice.OF_STAGES else advice.OF_OPS
    words = [one.replace("(", "").replace(")", "").replace(".*", "x") for one in kind[0].split("|")]
    assert advice.find_advice(words[0], table) == kind[1]
