"""Records by index on two ranks: each reads the records of its tickets, and finds its part of where records begin."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import launch

SCRIPT = """
import hashlib, json, os, sys
import tensorflow as tf
import matex_tf
from matex_tf.input import records
from matex_tf.ops import record_files

folder, rank, size = sys.argv[1], matex_tf.rank(), matex_tf.size()
names = [f"{folder}/{n}.tfrecord" for n in range(8)]
tf.random.set_seed(1)

def shuffle_files():
    return tf.data.Dataset.from_tensor_slices(names).shuffle(8, seed=3)

datasets = {
    "tfrecord": shuffle_files().interleave(tf.data.TFRecordDataset, 4, 2),
    "as it suits": shuffle_files().interleave(tf.data.TFRecordDataset),
    "parallel": shuffle_files().interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE),
    "text": tf.data.TextLineDataset(f"{folder}/text"),
    "fixed": tf.data.FixedLengthRecordDataset(f"{folder}/fixed", 1000, 7, 9),
}

def read_characters():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])

found = {}
for name, dataset in datasets.items():
    start = record_files.count_read_bytes()
    made = records.make_tickets(dataset)
    indexed = record_files.count_read_bytes()
    share = made.tickets.shard(size, rank).map(made.read)
    before = read_characters()
    mine = [list(share.as_numpy_iterator()) for _ in range(2)]
    found[name] = {
        "records": [[hashlib.md5(one).hexdigest() for one in epoch] for epoch in mine],
        "bytes": sum(map(len, mine[0])),
        "indexed": indexed - start,
        "read": record_files.count_read_bytes() - indexed,
        "characters": read_characters() - before,
    }

# Files that the script writes itself: each rank has its own.
with tf.io.TFRecordWriter(f"{folder}/own") as file:
    for n in range(5):
        file.write(b"%d" % n)
made = records.make_tickets(tf.data.TFRecordDataset(f"{folder}/own"))
found["own"] = [one.decode() for one in made.tickets.map(made.read).as_numpy_iterator()]

# As on hosts that have a copy each, of which one changes.
copy = f"{folder}/{rank}/data/copy"
copies = tf.data.TFRecordDataset(copy)
found["copies"] = []
for changing in (None, 1, 0):
    if rank == changing:
        os.utime(copy, (2, 2))
    made = records.make_tickets(copies)
    found["copies"].append([one.tolist() for one in made.tickets.as_numpy_iterator()])

other = tf.data.TFRecordDataset(f"{folder}/{rank}.tfrecord")
found["other"] = records.make_tickets(other)
order = ["first", "second"] if rank == 0 else ["second", "first"]  # of the same size
order = tf.data.TextLineDataset([f"{folder}/{name}" for name in order])
found["order"] = records.make_tickets(order)
with open(f"{folder}/own broken", "wb") as file:
    file.write(b"no records")
    file.write(bytes(50))
for name in ("broken", "own broken"):
    broken = records.make_tickets(tf.data.TFRecordDataset(f"{folder}/{name}"))
    try:
        list(broken.tickets.map(broken.read).as_numpy_iterator())
    except tf.errors.DataLossError as error:
        found[name] = error.message
with open(f"{sys.argv[2]}/{rank}.json", "w") as file:
    json.dump(found, file)
"""
RANKS = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for number in range(8):
        with tf.io.TFRecordWriter(f"{folder}/{number}.tfrecord") as file:
            for size in generator.integers(19_000, 21_000, 10 + number):
                file.write(generator.bytes(size))
    lines = b"\n".join(generator.bytes(500).replace(b"\n", b"").replace(b"\r", b"") for _ in range(2000))
    (folder / "text").write_bytes(lines)
    (folder / "fixed").write_bytes(generator.bytes(7 + 1000 * 1000 + 9))
    (folder / "first").write_bytes(b"a\nbc\n")
    (folder / "second").write_bytes(b"ab\nc\n")
    whole = (folder / "0.tfrecord").read_bytes()
    (folder / "broken").write_bytes(whole[:-1000])
    for rank in range(RANKS):
        (folder / str(rank) / "data").mkdir(parents=True)
        (folder / str(rank) / "data" / "copy").write_bytes(whole)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))  # what was written a moment ago is indexed again
    return folder


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    results = tmp_path_factory.mktemp("results")
    launch.run(RANKS, SCRIPT, data, results, env=launch.ALL_FILES, timeout=250).check()
    return [json.loads((results / f"{rank}.json").read_text()) for rank in range(RANKS)]


def read_alone(data: Path) -> dict[str, list[list[bytes]]]:
    def make(interleave) -> tf.data.Dataset:
        names = [f"{data}/{n}.tfrecord" for n in range(8)]
        return interleave(tf.data.Dataset.from_tensor_slices(names).shuffle(8, seed=3))

    tf.random.set_seed(1)
    T = tf.data.TFRecordDataset
    datasets = {
        "tfrecord": make(lambda files: files.interleave(T, 4, 2)),
        "as it suits": make(lambda files: files.interleave(T)),
        "parallel": make(lambda files: files.interleave(T, num_parallel_calls=tf.data.AUTOTUNE)),
        "text": tf.data.TextLineDataset(f"{data}/text"),
        "fixed": tf.data.FixedLengthRecordDataset(f"{data}/fixed", 1000, 7, 9),
    }
    return {name: [list(one.as_numpy_iterator()) for _ in range(2)] for name, one in datasets.items()}


def test_ranks_together_give_the_records_of_the_script_alone_in_order(data, found):
    for name, epochs in read_alone(data).items():
        for epoch, want in enumerate(epochs):
            hashes = [hashlib.md5(one).hexdigest() for one in want]
            got = [None] * len(hashes)
            for rank in range(RANKS):
                got[rank::RANKS] = found[rank][name]["records"][epoch]
            assert got == hashes, name


def test_a_rank_reads_what_it_takes_and_no_more(data, found):
    """TFRecord has 4 bytes of checksum for each record; /proc counts all that the process reads."""
    for one in found:
        for name in ("tfrecord", "as it suits", "parallel", "text", "fixed"):
            facts = one[name]
            total = sum(len(record) for record in read_alone(data)[name][0])
            assert facts["bytes"] <= total * (1 / RANKS + 0.05)
            assert facts["read"] <= 2 * facts["bytes"] * 1.05
            assert facts["characters"] <= 2 * facts["bytes"] * 1.05 + 100_000, name


def test_ranks_find_where_records_begin_together(data, found):
    indexed = {name: [one[name]["indexed"] for one in found] for name in ("tfrecord", "as it suits", "text", "fixed")}
    assert min(indexed["tfrecord"]) > 0 and max(indexed["tfrecord"]) < 12 * 70
    assert indexed["as it suits"] == indexed["fixed"] == [0, 0]
    size = (data / "text").stat().st_size
    assert sum(indexed["text"]) == size and max(indexed["text"]) <= size / 2 + 1


def test_files_that_the_script_writes_are_indexed_where_each_rank_has_them(found):
    assert [one["own"] for one in found] == [["0", "1", "2", "3", "4"]] * RANKS


def test_a_file_whose_copy_changes_on_one_rank_has_the_same_tickets_on_all(found):
    """Ranks compare hashes of tickets."""
    assert found[0]["copies"] == found[1]["copies"]
    numbers = [ticket[0][0] for ticket in found[0]["copies"]]
    assert numbers[0] < numbers[1] < numbers[2], numbers


def test_files_that_differ_between_ranks_are_not_indexed(found):
    for what, names in (("other", ("0.tfrecord", "1.tfrecord")), ("order", ("first", "second"))):
        assert found[0][what] == found[1][what] and "see different files" in found[0][what]
        assert all(name in found[0][what] for name in names), found[0][what]


def test_a_broken_file_is_an_error_of_the_rank_that_reads_it(data, found):
    for rank, one in enumerate(found):
        assert f"rank {rank} of {RANKS}" in one["broken"] and f"{data}/broken" in one["broken"]
    # Who finds it may be another rank, with a file of its own.
    assert f": {data}/own broken: record 0" in found[0]["own broken"], found[0]["own broken"]
