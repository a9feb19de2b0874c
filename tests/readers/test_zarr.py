"""Zarr: every rank's rows are those that zarr reads, in folders and archives of versions 2 and 3."""

import base64
import json
import os
import struct

import numpy as np
import pytest
import zarr

from matex_tf.readers import DataSet, ReaderError

ROWS = 23
X = np.random.default_rng(0).standard_normal((ROWS, 4, 3)).astype("f4")
Y = np.arange(ROWS, dtype="i4") % 3
TEXTS = ["c", "a", "é"] * 7 + ["", "a"]
# zarr 2, as of Python 3.10, writes version 2 alone.
VERSIONS = (2, 3) if int(zarr.__version__.split(".")[0]) >= 3 else (2,)


def open_group(store, version):
    return zarr.open_group(store, mode="w", **({"zarr_format": version} if VERSIONS[-1] == 3 else {}))


def put(group, name, values, chunks, dimensions=None, **attributes):
    values = np.asarray(values)
    options = {"shape": values.shape, "chunks": chunks, "dtype": values.dtype}
    if VERSIONS[-1] == 2:
        array = group.create_dataset(name, **options)
    elif group.metadata.zarr_format == 3:
        array = group.create_array(name, dimension_names=dimensions, **options)
    else:
        array = group.create_array(name, **options)
    if dimensions and getattr(getattr(group, "metadata", None), "zarr_format", 2) == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = list(dimensions)
    array[...] = values
    for key, value in attributes.items():
        array.attrs[key] = value
    return array


def write(path, version, x=X, y=Y, **options):
    group = open_group(str(path), version)
    put(group, "inner/x", x, (5, 4, 3), **options)
    put(group, "y", y, (4,))
    return path


def gathered(path, size, field="training_data", **options):
    shares = [DataSet("ZARR", path, rank=rank, size=size, **options) for rank in range(size)]
    rows = [getattr(share, field) for share in shares]
    result = np.zeros((shares[0].global_size, *rows[0].shape[1:]), rows[0].dtype)
    for share, part in zip(shares, rows, strict=True):
        result[share.local_slice] = part
    return result


@pytest.mark.parametrize("size", (1, 2, 3, 30))
@pytest.mark.parametrize("version", VERSIONS)
def test_the_rows_of_all_ranks_are_those_of_zarr(tmp_path, version, size):
    path = write(tmp_path / "a.zarr", version)
    options = {"data": "inner/x", "labels": "/y"}
    for distribution in ({}, {"distribution": "cyclic"}, {"distribution": "batch", "batch_size": 7}):
        found = gathered(path, size, **options, **distribution)
        np.testing.assert_array_equal(found, zarr.open(str(path), mode="r")["inner/x"][:])
        assert found.dtype == X.dtype
        labels = gathered(path, size, "training_labels", **options, **distribution)
        np.testing.assert_array_equal(labels, Y)
        assert labels.dtype == Y.dtype
    np.testing.assert_array_equal(gathered(path, size, data="inner/x", sample=2), np.moveaxis(X, 2, 0))
    for number, (start, stop) in enumerate(((0, 9), (9, 10), (10, ROWS))):
        write(tmp_path / f"run_{number}.zarr", version, X[start:stop], Y[start:stop])
    np.testing.assert_array_equal(gathered(str(tmp_path / "run_*.zarr"), size, **options), X)


def test_archives_and_arrays_by_themselves(tmp_path):
    for version in VERSIONS:
        with zarr.storage.ZipStore(str(tmp_path / f"{version}.zip"), mode="w") as store:
            put(open_group(store, version), "y", Y, (4,))
        np.testing.assert_array_equal(DataSet(tmp_path / f"{version}.zip", data="y", rank=0, size=1).training_data, Y)
    single = zarr.open(str(tmp_path / "b.zarr"), mode="w", shape=X.shape, chunks=(2, 4, 3), dtype="f4")
    single[...] = X
    np.testing.assert_array_equal(DataSet(tmp_path / "b.zarr", data="/", rank=1, size=2).training_data, X[12:])
    with pytest.raises(TypeError, match="data= has to name the variable to read; the file has /"):
        DataSet(tmp_path / "b.zarr", rank=0, size=1)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_xarray_writes_is_read_as_xarray_reads_it(tmp_path, version):
    path = tmp_path / "a.zarr"
    group = open_group(str(path), version)
    packed = np.array([6, 1, 2, -9, 4, 5], "i2")
    put(group, "p", packed, (4,), ["time"], scale_factor=0.5, add_offset=10.0, _FillValue=-9)
    put(group, "bytes", np.array([-1, 1, 2], "i1"), (2,), ["three"], _Unsigned="true")
    encoded = base64.b64encode(struct.pack("<d", -1.0)).decode()
    put(group, "f", np.array([6, -1, 2, 3, 4, 5], "f4"), (4,), ["time"], _FillValue=encoded)
    put(group, "i", np.arange(6), (4,), missing_value=4)
    put(group, "whole", np.arange(6), (4,), _FillValue=float("nan"))
    put(group, "wrong", np.arange(6), (4,), scale_factor="two")
    put(group, "list", np.arange(6), (4,), scale_factor=[2.0])
    assert gathered(path, 2, data="list").tolist() == [0, 2, 4, 6, 8, 10]
    for name, row in (("p", 3), ("f", 1), ("i", 4)):
        with pytest.raises(ReaderError, match=rf"a.zarr, '{name}'\[{row}\]: expected a number, found a missing value"):
            gathered(path, 2, data=name, missing="error")
        assert np.isnan(gathered(path, 2, data=name, missing="nan")[row])
    assert gathered(path, 3, data="p", missing=7).tolist() == [13, 10.5, 11, 7, 12, 12.5]
    # Of version 2 the fill value, which is 0, stands for a missing value, too.
    put(group, "zero", np.arange(3), (2,), ["three"])
    assert gathered(path, 3, data="zero", missing=7).tolist() == [7 if version == 2 else 0, 1, 2]
    assert gathered(path, 1, data="i", missing=7).tolist() == [0, 1, 2, 3, 7, 5]
    assert gathered(path, 1, data="bytes").tolist() == [255, 1, 2]
    assert gathered(path, 1, data="whole").tolist() == [*range(6)]
    for mark, wanted in ((1e20, [0, 1, -31072, 3]), (100_000, [0, 1, -31072, 3]), ([1, 3], [0, 7, -31072, 7])):
        put(group, f"mark {mark}", np.array([0, 1, -31072, 3], "i2"), (4,), missing_value=mark)
        assert gathered(path, 1, data=f"mark {mark}", missing=7).tolist() == wanted
    put(group, "text", np.arange(6), (4,), _FillValue="none")
    with pytest.raises(ReaderError, match="expected a number as the mark of missing values of 'text', found 'none'"):
        gathered(path, 1, data="text")
    with pytest.raises(ReaderError, match="expected numbers as scale_factor and add_offset of 'wrong', found"):
        gathered(path, 1, data="wrong")


@pytest.mark.parametrize("version", VERSIONS)
def test_texts_and_dimensions(tmp_path, version):
    path = tmp_path / "a-1.zarr"
    group = open_group(str(path), version)
    put(group, "letters", np.array(TEXTS, "U2"), (4,))
    put(group, "n", np.array(["1", "2"] * 11 + ["3"], "U2"), (4,))
    put(group, "t", X, (5, 4, 3), ["time", "lat", "lon"])
    put(group, "lat", np.arange(4.0), (4,), ["lat"])
    for size in (1, 3):
        found = gathered(path, size, data="letters", missing=9)
        assert found.tolist() == [{"a": 0, "c": 1, "é": 2, "": 9}[text] for text in TEXTS]
    if VERSIONS[-1] == 3:
        group.create_array("s", shape=(ROWS,), chunks=(4,), dtype=str)[:] = np.array(TEXTS, object)
        assert gathered(path, 2, data="s", missing=9).tolist() == found.tolist()
    with pytest.raises(
        ReaderError, match="expected numbers in 'n', or texts that are not numbers, found numbers as text"
    ):
        gathered(path, 1, data="n")
    np.testing.assert_array_equal(gathered(path, 2, data="t", sample="lat"), np.moveaxis(X, 1, 0))
    other = open_group(str(tmp_path / "a-2.zarr"), version)
    put(other, "t", X.transpose(0, 2, 1)[:, :, ::-1], (5, 3, 4), ["time", "lon", "lat"])
    put(other, "lat", np.arange(4.0)[::-1], (4,), ["lat"])
    np.testing.assert_array_equal(gathered(str(tmp_path / "a-*.zarr"), 2, data="t"), np.concatenate([X, X]))
    other["lat"][:] = np.arange(4.0) + 5
    with pytest.raises(
        ReaderError, match=r"a-2.zarr, 't': expected.*the coordinates 0.0 to 3.0 along 'lat', found 5.0"
    ):
        gathered(str(tmp_path / "a-*.zarr"), 1, data="t")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_wrong_is_named(tmp_path, version):
    path = write(tmp_path / "a.zarr", version, y=Y[:20])
    for error, match, place, options in (
        (
            ReaderError,
            "expected a variable 'inner/z', found none; did you mean 'inner/x'.*has inner/x, y",
            path,
            "inner/z",
        ),
        (FileNotFoundError, "b.zarr: expected a file, found none.*near names", tmp_path / "b.zarr", "y"),
        (ReaderError, "expected a Zarr store.*found a folder with a.zarr", tmp_path, "y"),
        (ReaderError, "expected a Zarr store.*found 22 22 22", __file__, "y"),
    ):
        with pytest.raises(error, match=match):
            DataSet("ZARR", place, data=options, rank=0, size=1)
    with pytest.raises(ReaderError, match="same number of samples in every variable, found 23 in 'inner/x', 20 in 'y'"):
        DataSet("ZARR", path, data="inner/x", labels="y", rank=0, size=1)
    with pytest.raises(ReaderError, match="parallel=True: Zarr does not support collective reads"):
        DataSet("ZARR", path, data="y", parallel=True)
    name = "c/2" if version == 3 else "2"
    (path / "y" / name).write_bytes(b"\x01")
    with pytest.raises(
        ReaderError, match="a.zarr: truncated or damaged: expected a complete Zarr file, found, while reading 'y'"
    ):
        DataSet("ZARR", path, data="y", rank=0, size=1).training_data  # noqa: B018
    (path / "y" / name).unlink()  # a chunk that is not there has the fill value
    assert DataSet("ZARR", path, data="y", rank=0, size=1).training_data.tolist()[8:12] == [0, 0, 0, 0]
    (path / "y" / ("zarr.json" if version == 3 else ".zarray")).write_text("{")
    with pytest.raises(ReaderError, match="a.zarr: truncated or damaged"):
        DataSet("ZARR", path, data="y", rank=0, size=1)


def test_a_store_that_changes_while_it_is_in_use_is_an_error(tmp_path):
    path = write(tmp_path / "a.zarr", 2)
    data = DataSet("ZARR", path, data="y", rank=1, size=2)
    metadata = json.loads((path / "y" / ".zarray").read_text())
    (path / "y" / "new").write_text(json.dumps({**metadata, "shape": [40]}))
    os.replace(path / "y" / "new", path / "y" / ".zarray")
    with pytest.raises(ReaderError, match=r"y/.zarray: the file has changed since this data set was opened"):
        data.training_data  # noqa: B018
