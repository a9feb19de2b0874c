"""TFRecord: every rank's rows are those of tf.data, wherever the bytes are cut; numbers, lists and bytes."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opened_csv import opened

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.rows import opening
from matex_tf.readers.typed import record_index
from matex_tf.readers.typed.tfrecord import TfRecord

ROWS = 130
random = np.random.default_rng(0)
IMAGES = random.integers(0, 256, (ROWS, 2, 3), np.uint8)
X = random.standard_normal((ROWS, 3)).astype("f4")
Y = np.arange(ROWS) * 7 % 5
NAMES = np.array(["b", "a", "é"])[np.arange(ROWS) % 3]


def make_example(**features):
    made = {}
    for name, value in features.items():
        values = value if isinstance(value, (list, np.ndarray)) else [value]
        if len(values) and isinstance(values[0], (bytes, str)):
            kept = [one.encode() if isinstance(one, str) else one for one in values]
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=kept))
        elif len(values) and isinstance(values[0], (float, np.floating)):
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def write_records(path, records, packing=None):
    with tf.io.TFRecordWriter(str(path), packing) as writer:
        for record in records:
            writer.write(record)
    return path


def write(path, examples, packing=None):
    return write_records(path, [make_example(**one) for one in examples], packing)


def rows(start=0, stop=ROWS):
    return [
        {"x": X[row], "image": IMAGES[row].tobytes(), "y": int(Y[row]), "name": str(NAMES[row])}
        for row in range(start, stop)
    ]


def alone(path, **options):
    return DataSet("TFRECORD", path, rank=0, size=1, **options)


def gathered(path, size, field="training_data", **options):
    shares = [DataSet("TFRECORD", path, rank=rank, size=size, **options) for rank in range(size)]
    found = [getattr(share, field) for share in shares]
    result = np.zeros((shares[0].global_size, *found[0].shape[1:]), found[0].dtype)
    for share, part in zip(shares, found, strict=True):
        result[share.local_slice] = part
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    write(folder / "one.tfrecord", rows())
    for number, (start, stop) in enumerate(((0, 9), (9, 9), (9, 10), (10, ROWS))):
        write(folder / f"part-{number}.tfrecord", rows(start, stop))
    write(folder / "packed.gz", rows(), "GZIP")
    write(folder / "packed.zlib", rows(), "ZLIB")
    return folder


@pytest.mark.parametrize("size", (1, 2, 3))
@pytest.mark.parametrize("name", ("one.tfrecord", "part-*.tfrecord", "packed.gz", "packed.zlib"))
def test_the_rows_of_all_ranks_are_those_of_tf_data(folder, name, size):
    features = {"x": tf.io.FixedLenFeature([3], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    read = tf.data.TFRecordDataset(str(folder / "one.tfrecord")).map(lambda one: tf.io.parse_example(one, features))
    (expected,) = read.batch(ROWS)
    path = str(folder / name)
    for distribution in ({}, {"distribution": "cyclic"}, {"distribution": "batch", "batch_size": 7}):
        found = gathered(path, size, columns="x", labels="y", **distribution)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected["x"])
        labels = gathered(path, size, "training_labels", columns="x", labels="y", **distribution)
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, expected["y"])
    images = {"columns": "image", "labels": "name", "dtype": {"image": "uint8"}, "shape": (2, 3)}
    found = gathered(path, size, **images)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, IMAGES)
    found = gathered(path, size, "training_labels", **images)
    np.testing.assert_array_equal(found, np.searchsorted(["a", "b", "é"], NAMES))
    stream = np.concatenate([x for x, _ in alone(path, **images, memory=0).as_dataset(7).as_numpy_iterator()])
    np.testing.assert_array_equal(stream, IMAGES)


def test_the_path_alone_tells_the_format(folder):
    assert alone(folder / "one.tfrecord", columns="x").training_data.shape == (ROWS, 3)
    assert DataSet(folder / "one.tfrecord", columns=["y", "x"], rank=0, size=1).training_data.shape == (ROWS, 4)


records = st.lists(st.one_of(st.binary(max_size=40), st.just(b"nested"), st.just(b"large")), max_size=30)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records, st.integers(1, 9), st.integers(1, 4))
def test_records_are_found_wherever_the_bytes_are_cut(tmp_path, found, size, stride):
    """Also where a record holds records: what looks like the begin of one there is none."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    nested = write_records(folder / "nested", [b"x", b"yy", b""]).read_bytes()
    found = [{b"nested": nested, b"large": b"\0" * 40_000}.get(one, one) for one in found]
    content = write_records(folder / "a", found).read_bytes()
    starts = np.cumsum([0, *(len(one) + record_index.FRAME for one in found)])
    ends = [len(content) * rank // size for rank in range(size + 1)]

    def look(number, start=0, stop=None):
        stop = len(content) if stop is None else stop
        return record_index.find_part(number, lambda a, b: content[a:b], start, stop, len(content))

    kept, record_index.STRIDE = record_index.STRIDE, stride
    try:
        parts = [look(0, start, stop) for start, stop in zip(ends, ends[1:], strict=False) if start < stop]
        index = record_index.Index([folder / "a"], parts, look)
    finally:
        record_index.STRIDE = kept
    assert index.count == len(found)
    for row in range(len(found)):
        number, file, at = index.find_near(row)
        assert file == 0 and 0 <= row - number < stride * max(1, size) and at == starts[number]


def test_ranks_that_open_it_together_read_each_record_once(folder):
    for size in (1, 2, 3, 7):
        for keep in (True, False):
            for name in ("one.tfrecord", "part-*.tfrecord", "packed.gz"):
                options = {"columns": ["x", "y"], "labels": "name", "keep": keep}
                ranks = opened(str(folder / name), size, kind=TfRecord, **options)
                assert {one.count("training") for one in ranks} == {ROWS}
                if keep:
                    held = [one.kept for one in ranks]
                    assert sum(held[0].counts) == ROWS and max(held[0].counts) - min(held[0].counts) <= 1
                    found = np.concatenate([row for one in held for row in one.rows["data"]])
                else:
                    found = ranks[0].read("training", "data", 0, ROWS)
                np.testing.assert_array_equal(found, np.concatenate([X, Y[:, None]], axis=1))
        assert not [name for name in os.listdir(tempfile.gettempdir()) if name.endswith(".tfrecord")]


def test_features_of_different_lengths_and_missing_ones(tmp_path):
    lists = [{"v": [1, 2], "w": 1.5}, {"v": [3], "t": "a"}, {"v": [4, 5, 6], "w": 2.5, "t": "b"}, {"w": 3.5, "t": "a"}]
    path = write(tmp_path / "a", lists)
    for size in (1, 2, 3):
        found = gathered(path, size, columns="v", missing=0)
        assert found.dtype == np.int64 and found.tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6], [0, 0, 0]]
        found = gathered(path, size, columns=["v", "w"], missing="nan", labels="t")
        expected = [[1, 2, np.nan, 1.5], [3, np.nan, np.nan, np.nan], [4, 5, 6, 2.5], [np.nan] * 3 + [3.5]]
        np.testing.assert_array_equal(found, expected)
        found = gathered(path, size, "training_labels", columns="v", labels="t", missing=7)
        assert found.tolist() == [7, 0, 1, 0]
    for columns, match in (
        ("v", "a, record 1, column 'v': expected 2 value.s., as in the first row, found 1. missing=0"),
        ("w", "a, record 1, column 'w': expected 1 value.s., as in the first row, found 0. missing=0"),
        ("t", "a, record 0, column 't': expected a number, found a missing value"),
    ):
        with pytest.raises(ReaderError, match=match):
            alone(path, columns=columns).training_data  # noqa: B018


def test_types_are_told_by_records_or_by_the_user(tmp_path):
    path = write(tmp_path / "a", [{"x": 1.5, "i": 7}])
    assert alone(path, columns="i").training_data.dtype == np.int64
    assert alone(path, columns="i", dtype="uint8").training_data.tolist() == [[7]]
    assert alone(path, columns=["i", "x"], dtype={"x": "float64"}).training_data.dtype == np.float64
    assert alone(path, columns="i", dtype={"i": str}).categories == {"i": ["7"]}
    late = write(tmp_path / "b", [{"x": 1.5}] * 40_000 + [{"late": 2.5}])
    with pytest.raises(ReaderError, match="expected a column 'late', found none"):
        alone(late, columns="late")
    found = alone(late, columns="late", dtype={"late": "float32"}, missing=0).training_data
    assert found[-1, 0] == 2.5 and not found[:-1].any()


def test_what_is_wrong_is_named(tmp_path):
    path = write(tmp_path / "a-1", [{"x": 1.5, "y": 7}, {"x": 2.5, "y": 7}])

    def failing(error, match, path, **options):
        with pytest.raises(error, match=match):
            alone(path, **options).training_data  # noqa: B018

    failing(ReaderError, "expected a column 'xx', found none; did you mean 'x'.*columns are x, y", path, columns="xx")
    failing(FileNotFoundError, "a-2: expected a file, found none.*near names", tmp_path / "a-2")
    failing(ReaderError, "test_tfrecord.py: expected a TFRecord file, which begins with a length", __file__)
    failing(TypeError, "has no option 'features'; its options are labels", path, features="x")
    failing(
        ReaderError,
        "a-1, record 1, column 'x': expected a number that int32 holds, found 2.5",
        write(tmp_path / "a-1", [{"x": 1.0}, {"x": 2.5}]),
        columns="x",
        dtype="int32",
    )
    (tmp_path / "empty").write_bytes(b"")
    failing(ReaderError, "empty: expected a record with features, found none", tmp_path / "empty")
    write(tmp_path / "other", [{"x": 1.5}] * 40_000 + [{"x": 1}])
    failing(
        ReaderError,
        r"other, record 40000: expected a tf.train.Example with.*Data types don't match",
        tmp_path / "other",
    )
    write(tmp_path / "mixed", [{"x": 1.5}, {"x": 1}])
    failing(ReaderError, "mixed, record 1: expected float_list in the feature 'x', as.*int64_list", tmp_path / "mixed")
    write(tmp_path / "twice", [{"x": 1.5, "t": ["a", "b"]}])
    failing(
        ReaderError, "twice, record 0, column 't': expected one value of bytes in a record, found 2", tmp_path / "twice"
    )
    sequence = tf.train.SequenceExample()
    sequence.feature_lists.feature_list["steps"].feature.add().int64_list.value.append(1)
    write_records(tmp_path / "sequence", [sequence.SerializeToString()])
    failing(
        ReaderError,
        r"sequence, record 0: expected a tf.train.Example, found a Sequence.*\(steps\)",
        tmp_path / "sequence",
    )
    write_records(tmp_path / "none", [b"\xff\xff\xff"])
    failing(ReaderError, "none, record 0: expected a tf.train.Example, found", tmp_path / "none")
    for packing in ("GZIP", "ZLIB"):
        whole = write(tmp_path / "whole", rows(), packing).read_bytes()
        (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
        match = f"cut: truncated or damaged: expected {packing.lower()} data"
        failing(ReaderError, match, tmp_path / "cut", columns="x")


@pytest.mark.parametrize("size", (1, 3))
def test_damage_is_found_and_its_place_is_told(tmp_path, size):
    content = write(tmp_path / "good", [{"x": [float(row)] * 4} for row in range(40)]).read_bytes()
    length = len(content) // 40
    path = tmp_path / "bad"

    def failing(match, data):
        path.write_bytes(data)
        with pytest.raises(ReaderError, match=match):
            for one in opened(path, size, kind=TfRecord, columns="x"):
                one.read("training", "data", 0, one.count("training"))

    failing(f"bad, at byte {39 * length}: truncated: expected a record of {length} bytes, found", content[:-3])
    failing(f"bad, at byte {39 * length}: truncated: expected a record, found 5 bytes", content[: 39 * length + 5])
    wrong = bytearray(content)
    wrong[30 * length] ^= 1
    failing(f"bad, at byte {30 * length}: damaged: expected a record, found no length", bytes(wrong))
    wrong = bytearray(content)
    wrong[30 * length + 20] ^= 1
    failing(f"bad, record 30, at byte {30 * length}: damaged: expected the data of a record with their", bytes(wrong))


def test_a_file_that_changes_while_it_is_in_use_is_an_error(tmp_path):
    path = write(tmp_path / "a", [{"x": 1.5}] * 6)
    data = DataSet("TFRECORD", path, rank=1, size=2)
    write(path, [{"x": 2.5}] * 6)
    with pytest.raises(ReaderError, match="a: the file has changed since this data set was opened"):
        data.training_data  # noqa: B018


def make_in_order(*features):
    """The bytes of an Example with its features in this order: (name, number) each."""
    entries = [
        tf.train.Features(
            feature={name: tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
        ).SerializeToString()
        for name, number in features
    ]
    inner = b"".join(entries)
    return b"\n" + bytes([len(inner)]) + inner


@pytest.mark.parametrize("packing", [None, "GZIP", "ZLIB"])
def test_features_in_another_order_are_the_same_to_the_ranks(tmp_path, packing):
    def describe(folder, *records):
        (tmp_path / folder).mkdir()
        return opening._describe_opened(TfRecord(write_records(tmp_path / folder / "a.tfrecord", records, packing)))

    first = describe("first", make_in_order(("x", 1), ("y", 2)), make_in_order(("x", 3), ("y", 4)))
    assert describe("second", make_in_order(("y", 2), ("x", 1)), make_in_order(("x", 3), ("y", 4))) == first
    assert describe("other", make_in_order(("y", 2), ("x", 1)), make_in_order(("x", 3), ("y", 5))) != first
    assert describe("shorter", make_in_order(("y", 2), ("x", 1))) != first
