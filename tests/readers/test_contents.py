"""Whatever the contents, the number of ranks and the split: each row comes once, to the rank whose it is."""

import csv
import gzip
import struct
import tempfile
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from matex_tf.readers import DataSet
from matex_tf.readers.rows.layout import Split
from matex_tf.sharding import slice_bounds

relaxed = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4_CLASSIC", "NETCDF4")

batches = st.integers(1, 9).map(lambda rows: {"distribution": "batch", "batch_size": rows})
dealings = st.fixed_dictionaries(
    {
        "size": st.integers(1, 6),
        "deal": st.sampled_from([{}, {"distribution": "cyclic"}]) | batches,
        "split": st.sampled_from(["last", "spread"]),
        "validation_fraction": st.sampled_from([0.0, 0.2, 0.45]),
    }
)


def samples(dtypes, least=1):
    """Rows of any shape and dtype, with NaN and infinities among floats."""
    shapes = arrays.array_shapes(min_dims=least, max_dims=3, max_side=5)
    return st.tuples(st.integers(1, 17), shapes, st.sampled_from(dtypes)).flatmap(
        lambda drawn: arrays.arrays(np.dtype(drawn[2]), (drawn[0], *drawn[1]))
    )


def check(name, path, fields, dealing, options, testing=None):
    """Every share of every part against the rows of `fields`, [data, labels], that are its."""
    size, fraction = dealing["size"], dealing["validation_fraction"]
    split = Split(len(fields[0]), fraction, 0.0, dealing["split"])
    if not split.count_rows("training"):
        return
    more = {"split": dealing["split"], "validation_fraction": fraction, "missing": "nan", **dealing["deal"], **options}
    cyclic = dealing["deal"].get("distribution") == "cyclic"
    for rank in range(size):
        share = DataSet(name, path, rank=rank, size=size, **more)
        for part, whole in (("training", fields), ("validation", fields), ("testing", testing or [])):
            count = len(whole[0]) if part == "testing" and testing else split.count_rows(part)
            if not count:
                continue
            own = slice(rank, count, size) if cyclic else slice(*slice_bounds.deal_block(count, rank, size))
            places = np.arange(count)[share.local_slice if part == "training" else own]
            rows = places if part == "testing" else split.list_rows(part, places)
            for field, values in zip(("data", "labels"), whole):
                found = getattr(share, f"{part}_{field}")
                assert found.dtype == values.dtype and found.shape == (len(rows), *values.shape[1:])
                np.testing.assert_array_equal(found, values[rows])


@pytest.mark.parametrize("kind", KINDS)
@relaxed
@given(samples(["f4", "f8"]), dealings, st.booleans(), st.integers(1, 3))
def test_netcdf(tmp_path, kind, data, dealing, unlimited, files):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    labels = np.arange(len(data), dtype="f8") / 2
    cuts = [len(data) * number // files for number in range(files + 1)]
    for number, (first, last) in enumerate(zip(cuts, cuts[1:])):
        with netCDF4.Dataset(folder / f"run_{number}.nc", "w", format=kind) as file:
            # No dimension of a classic file but that of records is without values.
            file.createDimension("t", None if unlimited or first == last else last - first)
            names = [f"d{axis}" for axis in range(1, data.ndim)]
            for axis, name in enumerate(names, start=1):
                file.createDimension(name, data.shape[axis])
            file.createVariable("x", data.dtype, ("t", *names), fill_value=False)[:] = data[first:last]
            file.createVariable("y", "f8", ("t",), fill_value=False)[:] = labels[first:last]
    fill = netCDF4.default_fillvals[data.dtype.str[1:]]
    data = np.where(data == data.dtype.type(fill), data.dtype.type(np.nan), data)
    check("NETCDF", str(folder / "run_*.nc"), [data, labels], dealing, {"data": "x", "labels": "y"})


@relaxed
@given(samples(["f4", ">f8", "i2", ">i4", "u1", "u8", "f2"]), dealings, st.booleans(), st.booleans())
def test_hdf5(tmp_path, data, dealing, chunked, packed):
    path = Path(tempfile.mkdtemp(dir=tmp_path)) / "a.h5"
    labels = np.arange(len(data))
    options = {"chunks": tuple(min(2, side) for side in data.shape)} if chunked or packed else {}
    with h5py.File(path, "w") as file:
        file.create_dataset("group/x", data=data, **options, **({"compression": "gzip"} if packed else {}))
        file["y"] = labels
    native = data.astype(data.dtype.newbyteorder("="))
    check("HDF5", path, [native, labels], dealing, {"data": "group/x", "labels": "y"})


@relaxed
@given(samples(["u1", "i1", "i2", "i4", "f4", "f8"]), dealings, st.booleans())
def test_mnist(tmp_path, data, dealing, packed):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    codes = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
    labels = np.arange(len(data), dtype="u1")
    for part, rows in (("train", len(data)), ("t10k", 1)):
        for name, array in (("images-idx3", data[:rows]), ("labels-idx1", labels[:rows])):
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, codes[array.dtype.str[1:]], array.ndim, *array.shape)
            content = head + array.astype(array.dtype.newbyteorder(">")).tobytes()
            (folder / f"{part}-{name}-ubyte").write_bytes(gzip.compress(content) if packed else content)
    check("MNIST", folder, [data, labels], dealing, {}, testing=[data[:1], labels[:1]])


@relaxed
@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 5), st.just(3072))), dealings)
def test_cifar(tmp_path, rows, dealing):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    labels = np.arange(len(rows), dtype=np.uint8) * 7
    for number in range(1, 6):
        content = np.concatenate([labels[:, None], np.roll(rows, number, axis=1)], axis=1)
        (folder / f"data_batch_{number}.bin").write_bytes(content.tobytes())
    (folder / "test_batch.bin").write_bytes(content.tobytes())
    data = np.concatenate([np.roll(rows, number, axis=1) for number in range(1, 6)])
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    fields = [images, np.tile(labels, 5).astype(np.int64)]
    check("CIFAR10", folder, fields, dealing, {}, testing=[field[-len(rows) :] for field in fields])


@relaxed
@given(
    samples(["f8"]).filter(lambda x: x.ndim == 2), dealings, st.sampled_from(",;|\t"), st.booleans(), st.integers(1, 3)
)
def test_csv(tmp_path, data, dealing, delimiter, packed, files):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    texts = [f"text{delimiter}{row % 3}\n" for row in range(len(data))]
    cuts = [len(data) * number // files for number in range(files + 1)]
    for number, (first, last) in enumerate(zip(cuts, cuts[1:])):
        path = folder / f"part-{number}.csv"
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow([*(f"c{column}" for column in range(data.shape[1])), "kind"])
            writer.writerows(
                [*map(repr, map(float, row)), text] for row, text in zip(data[first:last], texts[first:last])
            )
        if packed:
            path.write_bytes(gzip.compress(path.read_bytes()))
    labels = np.array([sorted(set(texts)).index(text) for text in texts], "f8")
    columns = [f"c{column}" for column in range(data.shape[1])]
    options = {"labels": "kind", "delimiter": delimiter, "dtype": dict.fromkeys(columns, "f8")}
    check("CSV", str(folder / "part-*.csv"), [data, labels], dealing, options)
