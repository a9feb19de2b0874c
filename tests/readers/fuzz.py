"""Damaged files, one format at a time: each gives an error that names it, or rows; nothing else, and in bounded time.

    python tests/readers/fuzz.py FORMAT FOLDER NUMBER

Runs in a process of its own, because what is looked for is a crash of the interpreter; it imports the library of this
format alone, since an import of all of them costs more than the files. A file that is only cut short
has to be an error, or give the right rows. A flipped bit may make another valid file (values have no checksums), which
then has to give what its own library reads from it.
"""

import collections
import csv
import gzip
import io
import os
import pickle
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np

from matex_tf.readers import DataSet, ReaderError

random = np.random.default_rng(0)
X = random.standard_normal((23, 4, 3)).astype("f4")
Y = (np.arange(23) % 3).astype("i4")
PIXELS = random.integers(0, 256, (6, 3072), np.uint8)


def netcdf(kind):
    def make(path):
        import netCDF4

        with netCDF4.Dataset(path, "w", format=kind) as file:
            for name, length in (("time", None), ("lat", 4), ("lon", 3)):
                file.createDimension(name, length)
            file.createVariable("x", "f4", ("time", "lat", "lon"))[:] = X
            file.createVariable("y", "i4", ("time",))[:] = Y

    def plain(path):
        import netCDF4

        with netCDF4.Dataset(path) as file:
            x, y = file["x"][:], file["y"][:]
            return np.ma.filled(x, np.nan), np.ma.filled(y.astype("f8"), np.nan)

    return "NETCDF", {"data": "x", "labels": "y"}, make, plain


def hdf5(**options):
    def make(path):
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=X, **options)
            file.create_dataset("y", data=Y)

    def plain(path):
        import h5py

        with h5py.File(path) as file:
            return file["x"][:], file["y"][:]

    return "HDF5", {"data": "x", "labels": "y"}, make, plain


def table(packed):
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["a", "b", "text", "y"])
    for row, y in zip(X[:, 0], Y):
        writer.writerow([*row[:2], 'x,"\n' if y else "é", y])

    def make(path):
        data = text.getvalue().encode()
        path.write_bytes(gzip.compress(data, mtime=0) if packed else data)

    return "CSV", {"labels": "y"}, make, None


def parquet(checksum):
    def make(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {"x": list(X.reshape(len(X), -1)), "y": Y, "text": [f"t{y}" for y in Y]}
        pq.write_table(pa.table(columns), path, row_group_size=5, write_page_checksum=checksum)

    def plain(path):
        import pyarrow.parquet as pq

        table = pq.read_table(path, columns=["x", "y"], partitioning=None)
        lists = [one or [] for one in table["x"].to_pylist()]
        x = [one + [np.nan] * (max(map(len, lists)) - len(one)) for one in lists]
        return np.array(x, "f4"), table["y"].to_numpy().astype("f8")

    columns = ["x", "text"] if checksum else ["x"]
    return "PARQUET", {"columns": columns, "labels": "y"}, make, None if checksum else plain


def zarr_archive():
    def make(path):
        import zarr

        with zarr.storage.ZipStore(str(path), mode="w") as store:
            group = zarr.open_group(store, mode="w")
            create = getattr(group, "create_array", None) or group.create_dataset
            for name, values in (("x", X), ("y", Y)):
                create(name, shape=values.shape, chunks=(5, *values.shape[1:]), dtype=values.dtype)[...] = values

    def plain(path):
        import zarr

        with zarr.storage.ZipStore(str(path), mode="r") as store:
            group = zarr.open_group(store, mode="r")
            return group["x"][:], group["y"][:]

    return "ZARR", {"data": "x", "labels": "y"}, make, plain


def records(packing):
    def make(path):
        import tensorflow as tf

        with tf.io.TFRecordWriter(str(path), packing) as writer:
            for x, y in zip(X, Y):
                example = tf.train.Example()
                example.features.feature["x"].float_list.value.extend(x.ravel())
                example.features.feature["y"].int64_list.value.append(y)
                example.features.feature["text"].bytes_list.value.append(b"t" * (y + 1))
                writer.write(example.SerializeToString())

    return "TFRECORD", {"columns": ["x", "text"], "labels": "y"}, make, None


def idx(packed):
    def make(folder):
        folder.mkdir()
        for part in ("train", "t10k"):
            for name, array in (("images-idx3", PIXELS.reshape(6, 64, 48)), ("labels-idx1", np.arange(6, dtype="u1"))):
                data = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
                (folder / f"{part}-{name}-ubyte").write_bytes(gzip.compress(data, mtime=0) if packed else data)

    return "MNIST", {}, make, None


def cifar(protocol):
    def make(folder):
        folder.mkdir()
        for name in ("train", "test"):
            labels = {b"fine_labels": list(range(6)), b"coarse_labels": list(range(6))}
            if protocol is None:
                rows = np.concatenate([np.arange(12, dtype="u1").reshape(6, 2), PIXELS], axis=1)
                (folder / f"{name}.bin").write_bytes(rows.tobytes())
            else:
                (folder / name).write_bytes(pickle.dumps({b"data": PIXELS, **labels}, protocol))

    return "CIFAR100", {}, make, None


def archive(path):
    folder = path.with_name(f"{path.name}-unpacked")
    cifar(2)[2](folder)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, "cifar-100-python")
    return path


FORMATS = {
    **{kind: netcdf(kind) for kind in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4")},
    "HDF5": hdf5(),
    "HDF5-CHUNKED": hdf5(chunks=(5, 4, 3), compression="gzip", fletcher32=True),
    "CSV": table(False),
    "CSV-GZIP": table(True),
    "PARQUET": parquet(False),
    "PARQUET-CHECKSUM": parquet(True),
    "ZARR": zarr_archive(),
    "TFRECORD": records(None),
    "TFRECORD-GZIP": records("GZIP"),
    "MNIST": idx(False),
    "MNIST-GZIP": idx(True),
    "CIFAR": cifar(None),
    "CIFAR-PICKLE-2": cifar(2),
    "CIFAR-PICKLE-4": cifar(4),
    "CIFAR-ARCHIVE": ("CIFAR100", {}, archive, None),
}


def damage(good, number):
    """(bytes, whether they are only cut short) of the damaged file `number`: the first 2,000 bytes are hit most."""
    dice = np.random.default_rng(number)
    bad = bytearray(good)
    kind = number % 3
    if kind == 0:
        return bytes(bad[: dice.integers(len(bad))]), True
    if kind == 1:
        bad[dice.integers(len(bad))] ^= 1 << dice.integers(8)
    else:
        for _ in range(dice.integers(1, 9)):
            bad[dice.integers(min(len(bad), 2000))] = dice.integers(256)
    return bytes(bad), False


def both(name, path, options):
    """Data and labels of the second of two ranks, then of all."""
    half = DataSet(name, path, rank=1, size=2, missing="nan", **options)
    rows = np.asarray(half.training_data), np.asarray(half.training_labels)
    whole = DataSet(name, path, rank=0, size=1, missing="nan", **options)
    together = np.asarray(whole.training_data), np.asarray(whole.training_labels)
    for part, all_of_it in zip(rows, together):
        assert len(part) == len(all_of_it) // 2, "a short array"
        np.testing.assert_array_equal(part, all_of_it[len(all_of_it) - len(part) :])
    return together


def main(which, folder, count, first=0):
    name, options, make, plain = FORMATS[which]
    folder = Path(folder)
    good = folder / f"good-{first}"
    make(good)
    expected = both(name, good, options)
    victim = max(good.iterdir()) if good.is_dir() else good
    content = victim.read_bytes()
    outcomes = collections.Counter()
    for number in range(first, count):
        bad, cut = damage(content, number)
        # A name of its own: HDF5 takes a file of the same place for the one that it has open.
        path = folder / f"bad-{number}"
        if good.is_dir():
            path.mkdir()
            for file in good.iterdir():
                os.link(file, path / file.name)
            (path / victim.name).unlink()
            (path / victim.name).write_bytes(bad)
        else:
            path.write_bytes(bad)
        try:
            found = both(name, path, options)
        except (ReaderError, FileNotFoundError) as error:
            assert str(path) in str(error), f"{number}: {error}"
            outcomes["error"] += 1
            if "of CPU time without an end" in str(error):  # nothing more can be read with this library in this process
                print(f"outcomes {dict(outcomes)}", flush=True)
                os.execv(sys.executable, [sys.executable, *sys.argv[:4], str(number + 1)])
            continue
        same = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, expected))
        outcomes["right" if same else "another file"] += 1
        if same:
            continue
        if plain is not None:
            for mine, theirs in zip(found, plain(path)):
                np.testing.assert_array_equal(mine, theirs)
        # Text or records that end early may be a whole, shorter table, and an unpacked file a shorter one.
        assert not cut or name in ("CSV", "TFRECORD"), f"{number}: other rows from a file that was cut short"
    print(f"outcomes {dict(outcomes)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(int, sys.argv[4:]))
