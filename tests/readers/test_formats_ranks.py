"""Parquet, Zarr and TFRecord under mpirun: each rank reads its share, and what is wrong on one is raised on all."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import zarr

import launch

ROWS, WIDTH = 3000, 512

SCRIPT = """
import gzip, json, os, sys
import numpy as np
import matex_tf
from matex_tf.runtime import objects
from matex_tf.steps import own_data
from matex_tf.readers import DataSet, ReaderError

folder = sys.argv[1]
rank, size = matex_tf.rank(), matex_tf.size()
said = {}
whole = dict(np.load(f"{folder}/whole.npz"))
OPTIONS = {
    "PARQUET": ("table.parquet", {"columns": "x", "labels": "y"}),
    "ZARR": ("table.zarr", {"data": "x", "labels": "y"}),
    "TFRECORD": ("table.tfrecord", {"columns": "x", "labels": "y"}),
}

def count_bytes():
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar"))

def measure_size(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(path) for name in names)

def same(data, rows):
    x, y = data.training_data, data.training_labels
    return [np.array_equal(x, whole["x"][rows]), np.array_equal(y, whole["y"][rows]), x.dtype == whole["x"].dtype]

for name, (file, options) in OPTIONS.items():
    path = f"{folder}/{file}"
    DataSet(name, f"{folder}/few.{file.split('.')[1]}", **options).training_data  # imports what it needs
    before = count_bytes()
    data = DataSet(name, path, **options)
    rows = data.local_slice
    fine = same(data, rows)
    read = count_bytes() - before
    said[f"{name} bytes"] = [read < measure_size(path) * (1 / size + 0.05)]
    for how in ({"distribution": "cyclic"}, {"distribution": "batch", "batch_size": 75}, {"window": 3}):
        data = DataSet(name, path, **options, **how)
        if "window" in how:
            windows = np.lib.stride_tricks.sliding_window_view(whole["x"][:-1], 3, axis=0).transpose(0, 2, 1)
            fine += [np.array_equal(data.training_data, windows[data.local_slice])]
        else:
            fine += same(data, data.local_slice)
    # Streams: eager code gets the rows of all, a rank alone its own, shuffled ones every row once.
    more = {} if name == "ZARR" else {"memory": 0}
    data = DataSet(name, path, **options, **more)
    with own_data.compute_alone():
        parts = [[x.numpy(), y.numpy()] for x, y in data.as_dataset(75)]
    x, y = (np.concatenate(found) for found in zip(*parts))
    fine += [np.array_equal(x, whole["x"][rows]), np.array_equal(y, whole["y"][rows])]
    shuffled = np.concatenate([y.numpy() for _, y in data.as_dataset(75, shuffle=True, seed=1)])
    fine += [sorted(shuffled.tolist()) == sorted(whole["y"].tolist()), shuffled.tolist() != whole["y"].tolist()]
    few = DataSet(name, f"{folder}/few.{file.split('.')[1]}", **options)
    fine += [len(few.training_data) == (1 if rank < 2 else 0), len(few.next_train_batch(2)[0]) == 2]
    said[name] = fine

# Texts become the same integers on all ranks; lists are as long as the longest of all ranks.
for name, file in (("PARQUET", "texts.parquet"), ("TFRECORD", "texts.tfrecord"), ("TFRECORD", "texts.gz")):
    for more in ({}, {"memory": 0}):
        data = DataSet(name, f"{folder}/{file}", columns="v", labels="text", missing=0, **more)
        said[f"{file} {more}"] = [
            np.array_equal(data.training_data, whole["v"][data.local_slice]),
            np.array_equal(data.training_labels, whole["codes"][data.local_slice]),
            data.categories == {"text": ["a", "b", "c"]},
        ]

def find_error(name, path, **options):
    try:
        DataSet(name, path, **options).training_data
    except (ReaderError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"

# What is wrong on the last rank's disk is raised on all; so is damage in its part.
errors = {}
for name, (file, options) in OPTIONS.items():
    mine = f"{folder}/gone" if rank == size - 1 else f"{folder}/{file}"
    errors[f"{name} missing"] = find_error(name, mine, **options)
    errors[f"{name} damaged"] = find_error(name, f"{folder}/damaged-{file}", **options)
print("SAID" + json.dumps([objects.allgather(said, "said"), objects.allgather(errors, "errors")]))
"""


def write_records(path, rows, packing=None):
    def make(values):
        if isinstance(values[0], str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[one.encode() for one in values]))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with tf.io.TFRecordWriter(str(path), packing) as writer:
        for row in rows:
            features = tf.train.Features(feature={name: make(values) for name, values in row.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


def write_zarr(path, x, y):
    group = zarr.open_group(str(path), mode="w")
    make = getattr(group, "create_array", None) or group.create_dataset
    for name, values, chunks in (("x", x, (20, WIDTH)), ("y", y, (20,))):
        make(name, shape=values.shape, chunks=chunks, dtype=values.dtype)[...] = values


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    random = np.random.default_rng(0)
    x, y = random.standard_normal((ROWS, WIDTH)).astype("f4"), np.arange(ROWS)
    lists = [[*range(1, 1 + row % 4)] or [9] for row in range(200)] + [[7] * 6]
    texts = [["b", "a", "c"][row % 3] for row in range(201)]
    v = np.array([[*one, *[0] * (6 - len(one))] for one in lists])
    np.savez(folder / "whole.npz", x=x, y=y, v=v, codes=np.searchsorted(["a", "b", "c"], texts))
    for name, count in (("table", ROWS), ("few", 2)):
        columns = {"x": pa.FixedSizeListArray.from_arrays(pa.array(x[:count].ravel()), WIDTH), "y": y[:count]}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=20, write_page_checksum=True)
        write_zarr(folder / f"{name}.zarr", x[:count], y[:count])
        rows = [{"x": x[row].tolist(), "y": [int(y[row])]} for row in range(count)]
        write_records(folder / f"{name}.tfrecord", rows)
    pq.write_table(pa.table({"v": lists, "text": texts}), folder / "texts.parquet", row_group_size=30)
    rows = [{"v": one, "text": [text]} for one, text in zip(lists, texts, strict=True)]
    write_records(folder / "texts.tfrecord", rows)
    write_records(folder / "texts.gz", rows, "GZIP")
    for file in ("table.parquet", "table.tfrecord"):
        content = bytearray((folder / file).read_bytes())
        content[len(content) * 9 // 10] ^= 1
        (folder / f"damaged-{file}").write_bytes(content)
    write_zarr(folder / "damaged-table.zarr", x, y)
    (chunk,) = (folder / "damaged-table.zarr" / "x").glob("**/140*/0" if zarr.__version__ >= "3" else "140.0")
    chunk.write_bytes(b"\x01")
    return folder


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.more) for ranks in (1, 3))])
def test_each_rank_reads_its_share_of_every_format(folder, ranks):
    output = launch.run(ranks, SCRIPT, folder, timeout=200).check().stdout
    (line,) = [line for line in output.splitlines() if line.startswith("SAID")]
    said, errors = json.loads(line[4:])
    assert len(said) == ranks
    for rank, of_rank in enumerate(said):
        for name, fine in of_rank.items():
            # One rank has both rows of the few.
            assert all(fine[:-2] if ranks == 1 and len(fine) > 10 else fine), (rank, name, fine)
    for rank, of_rank in enumerate(errors):
        for name, text in of_rank.items():
            assert "damaged" in text or "missing" in name, (rank, name, text)
            own = rank == ranks - 1
            assert text.startswith("FileNotFoundError" if own and "missing" in name else "ReaderError"), (name, text)
            assert own or f"failed on rank {ranks - 1} (" in text, (rank, name, text)
