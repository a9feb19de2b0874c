"""Records by index: tickets give what TensorFlow's own datasets give, in their order; errors name file and place."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from matex_tf.input import record_functions, record_index, records, shared_batches
from matex_tf.ops import record_files

T, L, F = tf.data.TFRecordDataset, tf.data.TextLineDataset, tf.data.FixedLengthRecordDataset
AUTOTUNE = tf.data.AUTOTUNE
PROPERTIES = settings(max_examples=12, deadline=None)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept indexes, a new one, in a process that knows no files."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr(record_index, "_find_folder", lambda: folder)
    monkeypatch.setattr(record_index, "_known", {})
    return folder


def write_tfrecord(path: Path, contents: list[bytes]) -> str:
    with tf.io.TFRecordWriter(str(path)) as file:
        for one in contents:
            file.write(one)
    return str(path)


def give(found: records.Records) -> list[bytes]:
    return list(found.tickets.map(found.read).as_numpy_iterator())


def check(dataset: tf.data.Dataset) -> None:
    """Tickets of a dataset give its records, each time that they are iterated."""
    found = records.make_tickets(dataset)
    assert isinstance(found, records.Records), found
    assert found.tickets.element_spec == tf.TensorSpec([3], tf.int64)
    want = list(dataset.as_numpy_iterator())
    assert give(found) == want
    assert give(found) == want


SIZES = st.one_of(st.integers(0, 40), st.integers(4000, 9000))
FILES = st.lists(st.lists(SIZES, max_size=12), min_size=1, max_size=5)
WAYS = st.sampled_from([None, 1, 2, 3, AUTOTUNE])


@PROPERTIES
@given(sizes=FILES, at_once=WAYS, seed=st.integers(0, 9))
def test_tfrecords_are_those_of_tensorflow(tmp_path_factory, sizes, at_once, seed):
    folder, generator = tmp_path_factory.mktemp("files"), np.random.default_rng(seed)
    names = [write_tfrecord(folder / f"{n}", [generator.bytes(size) for size in one]) for n, one in enumerate(sizes)]
    check(T(names, num_parallel_reads=at_once))


@PROPERTIES
@given(texts=st.lists(st.text("ab\r\n", max_size=60), min_size=1, max_size=5), at_once=WAYS)
def test_lines_are_those_of_tensorflow(tmp_path_factory, texts, at_once):
    folder = tmp_path_factory.mktemp("files")
    names = [str(folder / str(n)) for n in range(len(texts))]
    for name, text in zip(names, texts):
        Path(name).write_bytes(text.encode())
    check(L(names, num_parallel_reads=at_once))


@PROPERTIES
@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=5), record=st.integers(1, 9), header=st.integers(0, 5),
       footer=st.integers(0, 5), at_once=WAYS)  # fmt: skip
def test_records_of_fixed_length_are_those_of_tensorflow(tmp_path_factory, counts, record, header, footer, at_once):
    folder, generator = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    names = [str(folder / str(n)) for n in range(len(counts))]
    for name, count in zip(names, counts):
        Path(name).write_bytes(generator.bytes(header + record * count + footer))
    check(F(names, record, header, footer, num_parallel_reads=at_once))


TURNS = st.sampled_from(
    [(None, None), (None, 1), (None, AUTOTUNE), (1, None), (1, 1), (2, None), (2, 2), (4, 3), (4, AUTOTUNE)]
)
"""How many files are read in turn, and at once: TensorFlow refuses more at once than in turn."""
INSIDE = st.sampled_from(["", "take", "skip", "repeat", "shard", "shuffle", "concatenate", "twice", "prefetch"])


def change(dataset: tf.data.Dataset, way: str) -> tf.data.Dataset:
    """The dataset after an op that orders its elements."""
    return {
        "": lambda: dataset,
        "take": lambda: dataset.take(3),
        "skip": lambda: dataset.skip(2),
        "repeat": lambda: dataset.repeat(2),
        "shard": lambda: dataset.shard(2, 1),
        "shuffle": lambda: dataset.shuffle(4, seed=5),
        "concatenate": lambda: dataset.concatenate(dataset.take(1)),
        "twice": lambda: dataset.skip(1).take(4).repeat(2),
        "prefetch": lambda: dataset.prefetch(2),
    }[way]()


@PROPERTIES
@given(sizes=FILES, turns=TURNS, block=st.sampled_from([None, 1, 3, 16]), inside=INSIDE,
       at_once=st.sampled_from([None, 2, AUTOTUNE]), seed=st.integers(0, 9))  # fmt: skip
def test_files_in_turns_are_those_of_tensorflow(tmp_path_factory, sizes, turns, block, inside, at_once, seed):
    folder, generator = tmp_path_factory.mktemp("files"), np.random.default_rng(seed)
    names = [write_tfrecord(folder / f"{n}", [generator.bytes(size) for size in one]) for n, one in enumerate(sizes)]
    files = tf.data.Dataset.from_tensor_slices(names).shuffle(9, seed=seed, reshuffle_each_iteration=False).repeat(2)
    cycle, calls = turns
    check(files.interleave(lambda one: change(T(one, num_parallel_reads=at_once), inside), cycle, block, calls))


@pytest.mark.parametrize(
    "make",
    [
        lambda names, folder: tf.data.Dataset.from_tensor_slices(names).interleave(T, 2, 2),
        lambda names, folder: tf.data.Dataset.from_tensor_slices(names).flat_map(T),
        lambda names, folder: T(tf.data.Dataset.from_tensor_slices(names)),
        lambda names, folder: T([]),
        lambda names, folder: T([names, names]),
        lambda names, folder: tf.data.Dataset.from_tensor_slices((names, np.arange(3))).flat_map(
            lambda f, n: T(f).take(n)
        ),
        lambda names, folder: tf.data.Dataset.from_tensor_slices({"f": names}).flat_map(lambda one: T(one["f"])),
        lambda names, folder: tf.data.Dataset.list_files(f"{folder}/*.r", seed=2, shuffle=False).interleave(T, 3),
        lambda names, folder: tf.data.Dataset.range(3).map(tf.strings.as_string).flat_map(
            lambda number: T(tf.strings.join([str(folder), "/", number, ".r"]))
        ),
        lambda names, folder: tf.data.Dataset.from_tensors(names).flat_map(lambda all: T(all)),
        lambda names, folder: tf.data.Dataset.from_tensors(names).repeat(2).flat_map(
            lambda all: tf.data.Dataset.from_tensor_slices(all).interleave(
                lambda name: T(name, num_parallel_reads=2).skip(1).take(2), num_parallel_calls=AUTOTUNE
            )
        ),
        lambda names, folder: tf.data.Dataset.from_tensor_slices(names).apply(
            tf.data.experimental.parallel_interleave(T, 2, 2)
        ),
        lambda names, folder: tf.compat.v1.data.TFRecordDataset(names),
        lambda names, folder: T([Path(one) for one in names]),
        lambda names, folder: T(tf.data.Dataset.list_files(f"{folder}/*", shuffle=False).filter(
            lambda name: tf.strings.regex_full_match(name, r".*\.r")
        )),
    ],
)  # fmt: skip
def test_files_may_come_in_any_way(tmp_path, make):
    names = [write_tfrecord(tmp_path / f"{n}.r", [b"%d %d" % (n, k) for k in range(4 + n)]) for n in range(3)]
    check(make(names, tmp_path))


def parse(record: tf.Tensor, times: int = 2) -> dict[str, tf.Tensor]:
    return {"length": tf.strings.length(record) * times, "start": tf.strings.substr(record + b"xx", 0, 2)}


@pytest.mark.parametrize(
    "make",
    [
        lambda files, one: files.interleave(lambda f: T(f).map(parse, num_parallel_calls=AUTOTUNE).prefetch(1), 2),
        lambda files, one: files.flat_map(lambda f: T(f).skip(1).map(lambda r: (r, one + 1)).take(2).repeat(2)),
        lambda files, one: files.flat_map(lambda f: T(f).map(lambda r: (r, one)).map(lambda r, n: (n, parse(r)))),
        lambda files, one: files.map(lambda f: tf.stack([f, f])).flat_map(
            lambda all: tf.data.Dataset.from_tensor_slices(all).interleave(
                lambda f: T(f).map(lambda r: tf.strings.length(r) + one), 2
            )
        ),
    ],
)  # fmt: skip
def test_maps_where_files_are_read_are_done_when_tickets_are_read(tmp_path, make):
    names = [write_tfrecord(tmp_path / f"{n}.r", [b"%d %d" % (n, k) for k in range(4 + n)]) for n in range(3)]
    for one in (tf.Variable(3), tf.constant(4), 5):
        dataset = make(tf.data.Dataset.from_tensor_slices(names), one)
        found = records.make_tickets(dataset)
        assert isinstance(found, records.Records), found
        given = found.tickets.map(found.read)
        assert given.element_spec == dataset.element_spec
        want, got = list(dataset.as_numpy_iterator()), list(given.as_numpy_iterator())
        assert len(got) == len(want)
        assert all(np.array_equal(*pair) for pair in zip(tf.nest.flatten(got), tf.nest.flatten(want)))


def test_the_scripts_own_shuffle_goes_on_as_without_tickets(tmp_path):
    names = [write_tfrecord(tmp_path / str(n), [b"%d" % n]) for n in range(9)]

    def make() -> tuple[tf.data.Dataset, tf.data.Dataset]:
        files = tf.data.Dataset.from_tensor_slices(names).shuffle(9, seed=1)
        return files, files.flat_map(T)

    files, dataset = make()
    orders = [list(files.as_numpy_iterator()) for _ in range(2)]
    files, dataset = make()
    assert isinstance(records.make_tickets(dataset), records.Records)
    assert [list(files.as_numpy_iterator()) for _ in range(2)] == orders
    assert orders[0] != orders[1]


# What is not indexed


def name_python(names: list[str]) -> tf.data.Dataset:
    files = tf.data.Dataset.range(2)
    return files.flat_map(lambda one: T(tf.numpy_function(lambda at: names[at], [one], tf.string)))


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda names: T(names, "GZIP"), "compressed"),
        (lambda names: L(names, "ZLIB", num_parallel_reads=2), "compressed"),
        (lambda names: T(names).map(tf.strings.length), ""),
        (lambda names: tf.data.Dataset.range(3).flat_map(lambda n: tf.data.Dataset.range(n)), ""),
        (lambda names: T([f"gs://some/{name}" for name in names]), "another kind"),
        (lambda names: T([os.path.dirname(name) for name in names]), "no ordinary file"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(lambda f: T(f).batch(2)), "BatchDataset"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(lambda f: T(f).filter(lambda r: True)),
         "FilterDataset"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(lambda f: tf.data.Dataset.zip((T(f), L(f)))),
         "several formats"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(lambda f: tf.data.Dataset.zip((T(f), T(f)))),
         "ZipDataset"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(
            lambda f: T(f).concatenate(tf.data.Dataset.from_tensors(f))), "put together with other"),
        (lambda names: tf.data.Dataset.from_generator(
            lambda: iter(names), output_signature=tf.TensorSpec([], tf.string)).flat_map(T), "FlatMapDataset"),
        (name_python, "EagerPyFunc|PyFunc"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(lambda f: T(f).map(lambda r: (r, f))),
         "depends on the file"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(
            lambda f: T(f).map(lambda r: (r, tf.random.uniform([])))), "RandomUniform"),
        (lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(
            lambda f: T(f).map(lambda r: r).concatenate(T(f))), "put together with other"),
        (lambda names: tf.data.Dataset.range(2).flat_map(
            lambda n: T(tf.gather(names, tf.random.uniform([], 0, 2, tf.int32)))), "RandomUniformInt"),
        (lambda names: T(["/proc/self/fd/0"]), "no ordinary file|another kind"),
    ],
)  # fmt: skip
def test_what_is_not_indexed_says_why(tmp_path, make, reason):
    names = [write_tfrecord(tmp_path / str(n), [b"1"]) for n in range(2)]
    dataset = make(names)
    found = records.make_tickets(dataset)
    assert isinstance(found, str)
    assert any(one in found for one in reason.split("|")) if reason else not found, found


# Broken files


def break_file(path: Path, how: str) -> None:
    """Of records of 100 bytes each, the third one is broken."""
    data, third = bytearray(path.read_bytes()), 2 * 116
    if how == "length":
        data[third] ^= 1
    elif how == "data":
        data[third + 50] ^= 1
    elif how == "end":
        del data[third + 60 :]
    elif how == "header":
        del data[third + 7 :]
    elif how == "missing":
        path.unlink()
        return
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["length", "data", "end", "missing"])
def test_a_broken_file_is_an_error_where_its_record_is_read(tmp_path, how):
    whole = write_tfrecord(tmp_path / "whole", [b"x" * 100] * 3)
    broken = write_tfrecord(tmp_path / "broken", [b"y" * 100] * 5)
    break_file(Path(broken), how)
    dataset = T([whole, broken, whole])
    found = records.make_tickets(dataset)
    assert isinstance(found, records.Records), found
    got, want = [], []
    with pytest.raises(tf.errors.OpError) as alone:
        want.extend(dataset)
    with pytest.raises(type(alone.value)) as error:
        got.extend(map(found.read, found.tickets))
    assert [one.numpy() for one in got] == [one.numpy() for one in want]
    text = error.value.message
    assert broken in text and "rank 0" in text, text
    assert how == "missing" or "232" in text, text


def test_a_file_that_ends_within_a_header_is_read_as_alone_and_said(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(record_index.notes, "print_note", said.append)
    path = Path(write_tfrecord(tmp_path / "file", [b"y" * 100] * 5))
    break_file(path, "header")
    check(T([str(path)]))
    [text] = said
    assert str(path) in text and "at byte 232" in text


def test_a_part_of_a_record_of_fixed_length_is_an_error(tmp_path):
    path = tmp_path / "fixed"
    path.write_bytes(b"x" * 25)
    dataset = F([str(path)], 10)
    found = records.make_tickets(dataset)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    with pytest.raises(tf.errors.InvalidArgumentError, match="25 bytes between"):
        give(found)


def append(path: Path, file_format: str) -> None:
    if file_format == "tfrecord":
        other = path.with_name("other")
        write_tfrecord(other, [b"more"])
        data = other.read_bytes()
    else:
        data = b"line\nline\n"
    with path.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("file_format", ["tfrecord", "text", "fixed"])
def test_a_file_that_grows_is_an_error_until_it_is_indexed_anew(tmp_path, file_format):
    path = tmp_path / "file"
    if file_format == "tfrecord":
        write_tfrecord(path, [b"%d" % n for n in range(5)])
    else:
        path.write_bytes(b"abcd\n" * 5)
    dataset = {"tfrecord": T, "text": L, "fixed": lambda names: F(names, 5)}[file_format]([str(path)])
    found = records.make_tickets(dataset)
    tickets = list(found.tickets)
    assert len(give(found)) == 5
    append(path, file_format)
    with pytest.raises(tf.errors.FailedPreconditionError, match="has changed"):
        give(found)
    with pytest.raises(tf.errors.FailedPreconditionError, match="has changed"):
        found.read(tickets[-1])
    records.make_tickets(dataset)
    assert give(found) == list(dataset.as_numpy_iterator())
    assert len(give(found)) > 5


def test_a_file_that_another_replaces_is_an_error(tmp_path):
    path = Path(write_tfrecord(tmp_path / "file", [b"one", b"two"]))
    dataset = T([str(path)])
    found = records.make_tickets(dataset)
    assert give(found) == [b"one", b"two"]
    tickets = list(found.tickets)
    write_tfrecord(tmp_path / "next", [b"six", b"ten"])
    os.utime(tmp_path / "next", ns=(1, 1))
    (tmp_path / "next").replace(path)
    with pytest.raises(tf.errors.FailedPreconditionError, match=str(path)):
        give(found)
    records.make_tickets(dataset)
    assert give(found) == [b"six", b"ten"]
    assert [found.read(ticket).numpy() for ticket in tickets] == [b"one", b"two"], "of the former file, still open"


def test_cached_tickets_are_not_read_from_a_file_that_another_replaces(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a\nbcd\n")
    dataset = L([str(path)])
    found = records.make_tickets(dataset)
    cached = found.tickets.cache().map(found.read)
    assert list(cached.as_numpy_iterator()) == [b"a", b"bcd"]
    path.write_bytes(b"xyz\nu\nv\n")
    records.make_tickets(dataset)
    assert give(found) == [b"xyz", b"u", b"v"]
    with pytest.raises(tf.errors.FailedPreconditionError, match="has changed"):
        list(cached.as_numpy_iterator())


@pytest.mark.parametrize("replaces", [False, True])
def test_tickets_are_not_read_from_another_file_of_the_same_size_and_time(tmp_path, replaces):
    path = tmp_path / "file"
    path.write_bytes(b"ab\nc\n")
    os.utime(path, (1, 1))
    dataset = L([str(path)])
    found = records.make_tickets(dataset)
    cached = found.tickets.cache().map(found.read)
    assert list(cached.as_numpy_iterator()) == [b"ab", b"c"]
    path.chmod(0o600)
    records.make_tickets(dataset)
    assert list(cached.as_numpy_iterator()) == [b"ab", b"c"]
    other = tmp_path / "other" if replaces else path
    other.write_bytes(b"a\nbc\n")
    os.utime(other, (1, 1))
    other.replace(path)
    records.make_tickets(dataset)
    assert give(found) == [b"a", b"bc"]
    with pytest.raises(tf.errors.FailedPreconditionError, match="has changed"):
        list(cached.as_numpy_iterator())


def test_a_file_that_grows_while_it_is_indexed_is_an_error(tmp_path):
    path = Path(write_tfrecord(tmp_path / "file", [b"one"]))
    state = path.stat()
    append(path, "tfrecord")
    found = record_files.find_records(bytes(path), "tfrecord", state.st_size, state.st_mtime_ns)
    assert len(found.offsets) == 0 and found.code and "has changed" in found.problem


# What is read, and kept


def test_of_large_records_only_headers_are_read(tmp_path):
    name = write_tfrecord(tmp_path / "large", [bytes(100_000)] * 50)
    before = record_files.count_read_bytes()
    found = records.make_tickets(T([name]))
    indexed = record_files.count_read_bytes()
    assert indexed - before < 100_000
    give(found._replace(tickets=found.tickets.take(10)))
    assert record_files.count_read_bytes() - indexed == 10 * 100_004


@pytest.mark.parametrize("make", [tf.RaggedTensor.from_tensor, tf.sparse.from_dense])
def test_files_of_batches_that_are_no_dense_tensors_are_not_indexed(tmp_path, make):
    """Every rank runs such a pipeline whole, so an index is of no use."""
    path = write_tfrecord(tmp_path / "rows", [bytes(8)] * 10)
    rows = tf.data.TFRecordDataset(path).map(lambda record: tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), [8]))
    before = record_files.count_read_bytes()
    assert shared_batches.find_source(rows.batch(4).map(make)) is None
    assert record_files.count_read_bytes() == before
    assert shared_batches.find_source(rows.batch(4)) is not None
    assert record_files.count_read_bytes() > before


def test_names_of_a_variable_are_read_again(tmp_path):
    names = [write_tfrecord(tmp_path / name, [name.encode()] * 3) for name in ("one", "other")]
    chosen = tf.Variable(0)
    dataset = tf.data.Dataset.range(1).interleave(lambda _: T(tf.gather(names, chosen)))
    for number, name in enumerate((b"one", b"other")):
        chosen.assign(number)
        found = records.make_tickets(dataset)
        assert give(found) == [name] * 3 == list(dataset.as_numpy_iterator())


def test_an_index_is_kept_until_its_file_changes(tmp_path, kept, monkeypatch):
    path = Path(write_tfrecord(tmp_path / "file", [b"x" * 9] * 5))
    os.utime(path, (1, 1))
    link = tmp_path / "link"
    link.symlink_to(path)

    def count_indexed(name: Path) -> int:
        monkeypatch.setattr(record_index, "_known", {})
        before = record_files.count_read_bytes()
        found = records.make_tickets(T([str(name)]))
        indexed = record_files.count_read_bytes() - before
        assert give(found) == list(T([str(name)]).as_numpy_iterator())
        return indexed

    assert count_indexed(path) > 0
    assert count_indexed(path) == 0
    assert count_indexed(link) == 0
    for place in kept.iterdir():
        place.write_bytes(place.read_bytes()[:-8])
    assert count_indexed(path) > 0
    write_tfrecord(path, [b"y" * 9] * 6)
    assert count_indexed(path) > 0
    os.utime(path, (2, 2))
    assert count_indexed(path) > 0
    assert count_indexed(path) == 0
    write_tfrecord(path, [b"z" * 25] * 3 + [b"z" * 11])  # equally many bytes
    os.utime(path, (2, 2))
    assert count_indexed(path) > 0


def test_a_file_written_a_moment_ago_is_indexed_anew(tmp_path):
    """Where time is told in seconds, another file of the same size may have the same time."""
    path = tmp_path / "file"
    path.write_bytes(b"ab\nc\n")
    now = path.stat().st_mtime_ns
    check(L([str(path)]))
    path.write_bytes(b"a\nbc\n")
    os.utime(path, ns=(now, now))
    check(L([str(path)]))


def test_a_file_has_one_name_on_all_ranks_however_it_is_written(tmp_path, monkeypatch):
    """Rank 0 opens a relative path as it is; on the others it is that of a file below the same folder."""
    monkeypatch.chdir(tmp_path)
    ways = [b"a.tfrecord", b"./a.tfrecord", os.fsencode(tmp_path / "a.tfrecord")]
    assert {record_index.name_alike(way) for way in ways} == {f"{tmp_path.name}/a.tfrecord"}


@PROPERTIES
@given(sizes=st.lists(st.integers(0, 1000), max_size=8), ranks=st.integers(1, 9))
def test_each_byte_is_one_ranks_to_look_through(sizes, ranks):
    for kind in ("tfrecord", "text"):
        dealt = record_index.deal_parts(sizes, kind, ranks)
        covered = [np.zeros(size, int) for size in sizes]
        for part in (part for parts in dealt for part in parts):
            covered[part.file][part.first : part.last] += 1
        assert all((one == 1).all() for one in covered)
        if kind == "text":
            amounts = [sum(part.last - part.first for part in parts) for parts in dealt]
            assert max(amounts) - min(amounts) <= 1


@PROPERTIES
@given(text=st.text("a\r\n", max_size=80), ranks=st.integers(1, 7))
def test_lines_found_in_parts_are_those_of_the_file(tmp_path_factory, text, ranks):
    path = tmp_path_factory.mktemp("files") / "text"
    path.write_bytes(text.encode())
    state = path.stat()
    parts = [part for parts in record_index.deal_parts([state.st_size], "text", ranks) for part in parts]
    found = [
        record_files.find_records(bytes(path), "text", state.st_size, state.st_mtime_ns, part.first, part.last)
        for part in parts
    ]
    places = record_index._join_pieces(found, "text", state.st_size)
    lines = [text[at : at + length].replace("\r", "").encode() for at, length in zip(places.offsets, places.lengths)]
    assert lines == list(L([str(path)]).as_numpy_iterator())


def test_many_files_are_read_with_few_open(tmp_path):
    names = [write_tfrecord(tmp_path / str(n), [b"%d" % n]) for n in range(150)]
    found = records.make_tickets(tf.data.Dataset.from_tensor_slices(names).interleave(T, 150))
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 120, hard))
    try:
        assert sorted(give(found)) == sorted(b"%d" % n for n in range(150))
        assert len(os.listdir("/proc/self/fd")) <= before + (before + 120) // 4 + 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_how_many_files_are_read_in_turn_is_tensorflows_choice():
    choose, auto = record_functions.choose_cycle_length, record_functions.AUTOTUNE
    assert [choose(4, 2, 8), choose(auto, None, 8), choose(auto, 2, 8), choose(auto, 16, 8), choose(auto, auto, 8)] == [
        4, 8, 2, 8, 3,
    ]  # fmt: skip


def test_tickets_are_read_at_once(tmp_path):
    name = write_tfrecord(tmp_path / "file", [b"%d" % n for n in range(6)])
    found = records.make_tickets(T([name]))
    [tickets] = found.tickets.batch(6)
    assert found.read(tf.reshape(tickets, [2, 3, 3])).numpy().tolist() == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        found.read(tf.zeros([2, 2], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="number 99999"):
        found.read(tf.constant([99999, 0, 1], tf.int64))


def test_records_with_other_bytes_than_their_checksum_are_told_from_those_with_a_wrong_length(tmp_path):
    path = tmp_path / "none"
    path.write_bytes(struct.pack("<QI", 5, 0) + b"hello" + struct.pack("<I", 0))
    found = records.make_tickets(T([str(path)]))
    with pytest.raises(tf.errors.DataLossError, match="no TFRecord file"):
        give(found)
