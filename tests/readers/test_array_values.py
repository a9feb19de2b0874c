"""What NetCDF and HDF5 hold: bytes without fill values, several dtypes in one set, texts; and what cannot be read."""

import subprocess
import sys
import zipfile

import h5py
import netCDF4
import numpy as np
import pytest

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.arrays.netcdf import NetCdf
from matex_tf.readers.base.formats import Ranks

KINDS = ["lake", "ice", "sea", "ice", "Küste", "lake"]


def alone(kind, path, **options):
    return DataSet(kind, path, rank=0, size=1, **options)


def refused(match, kind, path, **options):
    with pytest.raises(ReaderError, match=match):
        data = alone(kind, path, **options)
        data.training_data  # noqa: B018
        data.training_labels  # noqa: B018


@pytest.mark.parametrize("kind", ("NETCDF3_CLASSIC", "NETCDF4"))
def test_every_value_of_a_byte_is_one_unless_the_file_says_otherwise(tmp_path, kind):
    values = np.arange(256).astype("u1").view("i1" if kind == "NETCDF3_CLASSIC" else "u1")
    with netCDF4.Dataset(tmp_path / "a.nc", "w", format=kind) as file:
        file.createDimension("pixel", 256)
        file.createVariable("x", values.dtype, ("pixel",))[:] = values
        file.createVariable("filled", values.dtype, ("pixel",), fill_value=values[7])
        file["filled"].set_auto_mask(False)
        file["filled"][:] = values
    np.testing.assert_array_equal(alone("NETCDF", tmp_path / "a.nc", data="x").training_data, values)
    refused(r"'filled'\[7\]: expected a number, found a missing value", "NETCDF", tmp_path / "a.nc", data="filled")


def test_one_dtype_for_files_that_were_stored_in_several(tmp_path):
    """As ERA5 before and after its change from packed integers to floats."""
    with netCDF4.Dataset(tmp_path / "1.nc", "w") as file:
        file.createDimension("time", 4)
        packed = file.createVariable("t2m", "i2", ("time",), fill_value=-32767)
        packed.scale_factor, packed.add_offset = 0.5, 270.0
        packed[:] = np.ma.masked_equal([270.0, 270.5, -1, 271.0], -1)
    with netCDF4.Dataset(tmp_path / "2.nc", "w") as file:
        file.createDimension("time", 2)
        file.createVariable("t2m", "f4", ("time",))[:] = [280, 281]
    both = str(tmp_path / "*.nc")
    refused(r"2.nc: .*float64; found \[\] float32; dtype='float64'", "NETCDF", both, data="t2m")
    for dtype in ("float32", "float64", {"t2m": "float32"}):
        found = alone("NETCDF", both, data="t2m", dtype=dtype, missing="nan").training_data
        np.testing.assert_array_equal(found, [270, 270.5, np.nan, 271, 280, 281])
        assert found.dtype == np.dtype(dtype["t2m"] if isinstance(dtype, dict) else dtype)
    refused("'t2m' holds values of float64, which dtype='int16' cannot hold", "NETCDF", both, data="t2m", dtype="int16")
    with pytest.raises(ValueError, match="dtype names 'T2M'; the variables that are read are t2m"):
        alone("NETCDF", both, data="t2m", dtype={"T2M": "float32"})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(4, dtype="u1")
    assert alone("HDF5", tmp_path / "a.h5", data="x", dtype="float32").training_data.dtype == np.float32


@pytest.mark.parametrize("kind", ("NETCDF", "HDF5"))
def test_a_dtype_holds_what_is_stored(tmp_path, kind):
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", 300)
        file.createVariable("word", str, ("time",))[:] = np.array([f"w{n:03}" for n in range(300)], object)
        file.createVariable("three", str, ("time",))[:] = np.array(["a", "b", "c"] * 100, object)
        file.createVariable("x", "f8", ("time",))[:] = np.arange(300.0)
        file.createVariable("i", "i8", ("time",))[:] = np.arange(300) * 1000
        filled = file.createVariable("filled", "i4", ("time",), fill_value=-99999)
        filled[:] = np.ma.masked_equal([7] * 299 + [5], 5)
        huge = file.createVariable("huge", "f8", ("time",))
        huge[:] = [0.0] * 298 + [np.inf, 1e300]
    for dtype, names in (("int8", ("word",)), ("float16", ()), ("bool", ("word", "three")), ("uint16", ())):
        for name in ("word", "three"):
            options = {"data": "x", "labels": name, "dtype": {name: dtype}}
            if name in names:
                refused(f"expected at most .* different texts in '{name}'", kind, path, **options)
            else:
                found = alone(kind, path, **options).training_labels
                assert found.dtype == dtype and found.tolist() == [n if name == "word" else n % 3 for n in range(300)]
    refused("expected at most 128 different texts in 'word'", kind, path, data=["word", "three"], dtype="int8")
    for dtype, name in (("float32", "huge"), ("float16", "huge"), ("float16", "i")):
        refused(rf"'{name}'\[\d+\]: .*too large for dtype='{dtype}'", kind, path, data=name, dtype=dtype)
    channels = {"data": ["x", "huge"], "dtype": "float32"}
    refused(r"'huge'\[299\]: 1e\+300", kind, path, **channels)
    if kind == "NETCDF":  # a missing value is none that is too large
        found = alone(kind, path, data="filled", dtype="float16", missing="nan").training_data
        np.testing.assert_array_equal(found, [7] * 299 + [np.nan])


@pytest.mark.parametrize("name", ("x", "word"))
def test_a_number_for_missing_values_has_to_fit(tmp_path, name):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", 2)
        file.createVariable("x", "f4", ("time",))[:] = [1, np.nan]
        file.createVariable("word", str, ("time",))[:] = np.array(["a", ""], object)
    options = {"data": name, "dtype": {name: "float16"}}
    with pytest.raises(ValueError, match=rf"missing=70000 cannot be used for .*{name}.*float16: it is too large"):
        alone("NETCDF", tmp_path / "a.nc", missing=70000, **options).training_data  # noqa: B018
    assert alone("NETCDF", tmp_path / "a.nc", missing=60000, **options).training_data[1] == 60000


def test_complex_values_are_not_cut_to_real_ones(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["z"] = np.array([1 + 2j, 3 - 4j])
    for dtype in ("float32", "float64", "int32"):
        refused(f"'z' holds values of complex128.*dtype='{dtype}'", "HDF5", tmp_path / "a.h5", data="z", dtype=dtype)
    assert alone("HDF5", tmp_path / "a.h5", data="z").training_data.tolist() == [1 + 2j, 3 - 4j]


def test_a_complex_value_is_missing_if_a_part_of_it_is(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["z"] = np.array([1 + 2j, complex(3, np.nan), complex(np.nan, 4)], np.complex64)
    refused(r"'z'\[1\]: expected a number, found a missing value", "HDF5", tmp_path / "a.h5", data="z")
    assert alone("HDF5", tmp_path / "a.h5", data="z", missing=7).training_data.tolist() == [1 + 2j, 7, 7]
    assert np.isnan(alone("HDF5", tmp_path / "a.h5", data="z", missing="nan").training_data).tolist() == [
        False,
        True,
        True,
    ]
    with pytest.raises(ValueError, match="complex64: it is too large"):
        alone("HDF5", tmp_path / "a.h5", data="z", missing=1e40).training_data  # noqa: B018


def write_texts(folder, name, texts):
    with netCDF4.Dataset(folder / f"{name}.nc", "w") as file:
        file.createDimension("time", len(texts))
        file.createDimension("letters", 8)
        file.createVariable("x", "f4", ("time",))[:] = np.arange(len(texts))
        file.createVariable("word", str, ("time",))[:] = np.array(texts, object)
        letters = file.createVariable("letters", "S1", ("time", "letters"))
        letters[:] = np.array([text.encode() for text in texts], "S8").view("S1").reshape(-1, 8)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["x"] = np.arange(len(texts), dtype="f4")
        file["word"] = np.array(texts, object)
        file["letters"] = np.array([text.encode() for text in texts], "S8")


@pytest.mark.parametrize("kind, ending", [("NETCDF", "nc"), ("HDF5", "h5")])
@pytest.mark.parametrize("labels", ("word", "letters"))
def test_texts_are_labels(tmp_path, kind, ending, labels):
    write_texts(tmp_path, "1", KINDS[:4])
    write_texts(tmp_path, "2", KINDS[4:])
    data = alone(kind, str(tmp_path / f"*.{ending}"), data="x", labels=labels, missing=9)
    expected = sorted(set(KINDS))
    assert data.categories == {labels: expected}
    assert data.training_labels.tolist() == [expected.index(text) for text in KINDS]
    assert data.training_labels.dtype == np.int64
    del data  # and with it goes its open file
    write_texts(tmp_path, "2", ["", "sea"])
    path = str(tmp_path / f"*.{ending}")
    refused(
        rf"2.{ending}, '{labels}'\[0\]: expected a text, found a missing value", kind, path, data="x", labels=labels
    )
    kept = alone(kind, path, data="x", labels=labels, missing="nan").training_labels
    np.testing.assert_array_equal(kept, [1, 0, 2, 0, np.nan, 2])
    # Numbers as text are none to be taken for categories unasked.
    write_texts(tmp_path, "3", ["7", "10"])
    path = tmp_path / f"3.{ending}"
    refused(r"numbers as text, such as '10'; dtype=\{'" + labels, kind, path, data="x", labels=labels)
    assert alone(kind, path, data="x", labels=labels, dtype={labels: str}).categories == {labels: ["10", "7"]}
    write_texts(tmp_path, "4", ["sea", "sea", "sea", "7", "10"])
    found = alone(kind, tmp_path / f"4.{ending}", data="x", labels=labels).categories
    assert found == {labels: ["10", "7", "sea"]}


def test_ranks_agree_on_texts_that_some_have_not_read(tmp_path):
    write_texts(tmp_path, "1", KINDS)
    ranks = [Ranks(rank, 4, ["host"] * 4) for rank in range(4)]
    readers = [NetCdf(tmp_path / "1.nc", data="x", labels="word") for _ in ranks]
    found = [reader.survey(0, rank) for reader, rank in zip(readers, ranks, strict=True)]
    assert len({frozenset(part["word"]) for part in found}) > 1
    for reader, rank in zip(readers, ranks, strict=True):
        reader.settle(0, rank, found)
        assert reader.categories == {"word": sorted(set(KINDS))}


WRITERS = {
    "HDF5": "import h5py; f = h5py.File(path, 'w'); f['x'] = [1.0, 2.0]; f.flush()",
    "NETCDF": "import netCDF4; f = netCDF4.Dataset(path, 'w'); f.createDimension('t', 2); "
    "f.createVariable('x', 'f4', ('t',))[:] = 1; f.sync()",
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_another_process_writes_is_said_to_be_locked(tmp_path, kind):
    program = f"import sys; path = sys.argv[1]\n{WRITERS[kind]}\nprint('ready', flush=True)\nsys.stdin.read()"
    words = [sys.executable, "-c", program, str(tmp_path / "a.nc")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"ready\n"
        refused("a.nc: another process has opened it for writing and locked it", kind, tmp_path / "a.nc", data="x")
        writer.stdin.close()
    assert alone(kind, tmp_path / "a.nc", data="x").global_size == 2


def test_what_cannot_be_read_is_named_for_what_it_is(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("t", 3)
        file.createVariable("ragged", file.createVLType(np.int32, "rows"), ("t",))
        file.createVariable("pair", file.createCompoundType(np.dtype([("a", "i4")]), "pairs"), ("t",))
    refused("numbers or texts in 'ragged', found numbers of rows of different lengths", "NETCDF", tmp_path / "a.nc",
            data="ragged")  # fmt: skip
    refused("numbers or texts in 'pair', found values of type", "NETCDF", tmp_path / "a.nc", data="pair")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("ragged", (3,), h5py.vlen_dtype("i4"))
    refused("in 'ragged', found numbers of rows of different lengths", "HDF5", tmp_path / "a.h5", data="ragged")
    with zipfile.ZipFile(tmp_path / "b.nc", "w") as archive:
        archive.write(tmp_path / "a.nc", "a.nc")
    for kind in ("NETCDF", "HDF5"):
        refused("found 50 4b 03 04.*: a zip archive; unpack it", kind, tmp_path / "b.nc", data="x")
    (tmp_path / "c.nc").write_text("<!DOCTYPE html><html>Not found</html>")
    refused("an HTML or XML page", "NETCDF", tmp_path / "c.nc", data="x")


def test_what_is_missing_behind_a_file_is_named(tmp_path):
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["here"] = np.arange(4.0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, path, inner in (
            ("fine", "source.h5", "here"), ("no_file", "gone.h5", "here"), ("no_dataset", "source.h5", "gone"),
            ("own", ".", "no_dataset"),
        ):  # fmt: skip
            layout = h5py.VirtualLayout((4,), "f8")
            layout[:] = h5py.VirtualSource(path, inner, (4,))
            file.create_virtual_dataset(name, layout)
        file["link"] = h5py.ExternalLink("source.h5", "/here")
        file["dead"] = h5py.ExternalLink("source.h5", "/gone")
        file["group/far"] = h5py.ExternalLink("gone.h5", "/g")
    np.testing.assert_array_equal(alone("HDF5", tmp_path / "a.h5", data="fine").training_data, np.arange(4.0))
    np.testing.assert_array_equal(alone("HDF5", tmp_path / "a.h5", data="link").training_data, np.arange(4.0))
    for name, expected in (
        ("no_file", "made of other files: expected .*gone.h5, found none"),
        ("no_dataset", "made of other datasets: expected 'gone' in .*source.h5, found none"),
        ("own", "made of other datasets: expected 'gone' in .*source.h5, found none"),
        ("dead", "refers to another file: expected '/gone' in .*source.h5, found none"),
        ("group/far/x", "refers to another file: expected .*gone.h5, found none"),
    ):
        refused(expected, "HDF5", tmp_path / "a.h5", data=name)
    with h5py.File(tmp_path / "outer.h5", "w") as file:
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource("a.h5", "no_file", (4,))
        file.create_virtual_dataset("x", layout)
    refused("a.h5: 'no_file' is made of other files: expected .*gone.h5", "HDF5", tmp_path / "outer.h5", data="x")
