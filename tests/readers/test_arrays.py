"""NetCDF and HDF5: every rank's rows, whatever the kind of file, the dimension, the packing and the number of files."""

import h5py
import netCDF4
import numpy as np
import pytest
from peak_memory import peak_of

from matex_tf.readers import DataSet, ReaderError
from matex_tf.sharding.shard_arrays import is_shard

KINDS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4_CLASSIC", "NETCDF4")
X = np.random.default_rng(0).standard_normal((23, 4, 3)).astype("f4")
Y = np.arange(23, dtype="i4") % 3


def write_netcdf(path, x=X, y=Y, kind="NETCDF4", group="", unlimited=True, **options):
    with netCDF4.Dataset(path, "w", format=kind) as file:
        place = file.createGroup(group) if group else file
        place.createDimension("time", None if unlimited else len(x))
        place.createDimension("lat", x.shape[1])
        place.createDimension("lon", x.shape[2])
        place.createVariable("t2m", x.dtype, ("time", "lat", "lon"), **options)[:] = x
        place.createVariable("label", y.dtype, ("time",))[:] = y
    return path


def write_hdf5(path, x=X, y=Y, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("inner/x", data=x, **options)
        file.create_dataset("y", data=y)
    return path


def gathered(name, path, size, field="training_data", **options):
    """The rows of all ranks in the order of the file, and that each rank's are a share of the right rows."""
    shares = [DataSet(name, path, rank=rank, size=size, **options) for rank in range(size)]
    rows = [getattr(share, field) for share in shares]
    assert all(is_shard(part) for part in rows)
    assert len({(part.dtype, part.shape[1:]) for part in rows}) == 1
    if field.startswith("training"):
        result = np.zeros((shares[0].global_size, *rows[0].shape[1:]), rows[0].dtype)
        for share, part in zip(shares, rows, strict=True):
            result[share.local_slice] = part
        return result
    return np.concatenate(rows)


@pytest.mark.parametrize("size", (1, 2, 3, 4, 30))
@pytest.mark.parametrize("kind", KINDS)
def test_netcdf_files_of_every_kind(tmp_path, kind, size):
    path = write_netcdf(tmp_path / "a.nc", kind=kind)
    found = gathered("NETCDF", path, size, data="t2m", labels="label")
    np.testing.assert_array_equal(found, X)
    assert found.dtype == X.dtype
    labels = gathered("NETCDF", path, size, "training_labels", data="t2m", labels="label")
    np.testing.assert_array_equal(labels, Y)
    assert labels.dtype == Y.dtype


@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize("options", [{}, {"chunks": (5, 4, 3)}, {"chunks": (2, 2, 3), "compression": "gzip"}])
def test_hdf5_datasets(tmp_path, size, options):
    path = write_hdf5(tmp_path / "a.h5", **options)
    np.testing.assert_array_equal(gathered("HDF5", path, size, data="inner/x", labels="y"), X)
    np.testing.assert_array_equal(gathered("HDF5", path, size, "training_labels", data="inner/x", labels="/y"), Y)


@pytest.mark.parametrize("distribution", [{}, {"distribution": "cyclic"}, {"distribution": "batch", "batch_size": 5}])
@pytest.mark.parametrize("split", ("last", "spread"))
@pytest.mark.parametrize("size", (1, 2, 5))
def test_distributions_and_splits_share_out_the_same_rows(tmp_path, distribution, split, size):
    path = write_netcdf(tmp_path / "a.nc", chunksizes=(4, 4, 3))
    options = {"data": "t2m", "labels": "label", "validation_fraction": 0.2, "test_fraction": 0.3, "split": split}
    parts = {
        part: gathered("NETCDF", path, size, f"{part}_data", **options, **(distribution if part == "training" else {}))
        for part in ("training", "validation", "testing")
    }
    alone = {
        part: getattr(DataSet("NETCDF", path, rank=0, size=1, **options), f"{part}_data")
        for part in ("training", "validation", "testing")
    }
    for part in parts:
        np.testing.assert_array_equal(parts[part], alone[part])
    together = np.concatenate([*parts.values()])
    assert sorted(together[:, 0, 0].tolist()) == sorted(X[:, 0, 0].tolist())


@pytest.mark.parametrize("size", (1, 2, 4))
def test_several_files_are_one(tmp_path, size):
    for number, (start, stop) in enumerate(((0, 9), (9, 10), (10, 23))):
        write_netcdf(tmp_path / f"run_{number}.nc", X[start:stop], Y[start:stop])
        write_hdf5(tmp_path / f"run_{number}.h5", X[start:stop], Y[start:stop])
    options = {"data": "t2m", "labels": "label"}
    np.testing.assert_array_equal(gathered("NETCDF", str(tmp_path / "run_*.nc"), size, **options), X)
    np.testing.assert_array_equal(gathered("NETCDF", str(tmp_path / "run_*.nc"), size, "training_labels", **options), Y)
    names = [tmp_path / f"run_{number}.h5" for number in (2, 0, 1)]
    np.testing.assert_array_equal(
        gathered("HDF5", names, size, data="inner/x"), np.concatenate([X[10:], X[:9], X[9:10]])
    )


@pytest.mark.parametrize("size", (1, 3))
def test_groups_dimensions_and_channels(tmp_path, size):
    path = write_netcdf(tmp_path / "a.nc", group="ocean/surface", unlimited=False)
    name = "ocean/surface/t2m"
    np.testing.assert_array_equal(gathered("NETCDF", path, size, data=name), X)
    np.testing.assert_array_equal(gathered("NETCDF", path, size, data=name, sample="lat"), np.moveaxis(X, 1, 0))
    np.testing.assert_array_equal(gathered("NETCDF", path, size, data=[name, name]), np.stack([X, X], axis=-1))
    path = write_hdf5(tmp_path / "a.h5")
    np.testing.assert_array_equal(gathered("HDF5", path, size, data="inner/x", sample=2), np.moveaxis(X, 2, 0))


def test_a_variable_that_netcdf_hides_from_hdf5(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("lev", 4)
        file.createDimension("x", 3)
        file.createVariable("lev", "f8", ("x", "lev"))[:] = np.arange(12).reshape(3, 4)
    with h5py.File(tmp_path / "a.nc") as file:
        assert "_nc4_non_coord_lev" in file
    found = gathered("HDF5", tmp_path / "a.nc", 2, data="lev")
    np.testing.assert_array_equal(found, np.arange(12).reshape(3, 4))


@pytest.mark.parametrize("kind", ("NETCDF3_CLASSIC", "NETCDF4"))
def test_packed_and_missing_values(tmp_path, kind):
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("time", 6)
        packed = file.createVariable("p", "i2", ("time",), fill_value=-9)
        packed.scale_factor, packed.add_offset = np.float32(0.5), np.float32(10)
        packed.set_auto_maskandscale(False)
        packed[:] = [0, 1, 2, -9, 4, 5]
        whole = file.createVariable("i", "i4", ("time",), fill_value=-1)
        whole.set_auto_mask(False)
        whole[:] = [0, 1, 2, 3, -1, 5]
        file.createVariable("f", "f4", ("time",))[:] = [0, 1, np.nan, 3, 4, 5]
        file.createVariable("several", "i2", ("time",)).scale_factor = np.array([1.0, 2.0])
    with pytest.raises(ReaderError, match="expected numbers as scale_factor and add_offset of 'several', found"):
        gathered("NETCDF", path, 1, data="several")
    for variable, row in (("p", 3), ("i", 4), ("f", 2)):
        with pytest.raises(
            ReaderError, match=rf"a.nc, '{variable}'\[{row}\]: expected a number, found a missing value"
        ):
            gathered("NETCDF", path, 2, data=variable)
        filled = gathered("NETCDF", path, 2, data=variable, missing=7)
        assert filled[row] == 7
        kept = gathered("NETCDF", path, 2, data=variable, missing="nan")
        assert np.isnan(kept[row]) and np.isfinite(np.delete(kept, row)).all()
    assert gathered("NETCDF", path, 3, data="p", missing=0).tolist() == [10, 10.5, 11, 0, 12, 12.5]
    assert gathered("NETCDF", path, 3, data="p", missing=0).dtype == np.float32
    assert gathered("NETCDF", path, 1, data="i", missing=0).dtype == np.int32
    for missing in (0.5, 1 << 31):
        with pytest.raises(ValueError, match=rf"missing={missing} cannot be used for 'i' of .*a.nc.*int32: integers"):
            gathered("NETCDF", path, 1, data="i", missing=missing)


@pytest.mark.parametrize("size", (1, 2, 3, 40))
def test_windows_are_consecutive_steps_and_their_labels_follow(tmp_path, size):
    for number, (start, stop) in enumerate(((0, 9), (9, 23))):
        write_netcdf(tmp_path / f"run_{number}.nc", X[start:stop], Y[start:stop])
    path = str(tmp_path / "run_*.nc")
    windows = np.stack([X[i : i + 5] for i in range(23 - 5 - 2 + 1)])
    after = np.stack([X[i + 5 : i + 7] for i in range(23 - 5 - 2 + 1)])
    options = {"data": "t2m", "window": 5, "horizon": 2}
    for distribution in ({}, {"distribution": "cyclic"}):
        np.testing.assert_array_equal(gathered("NETCDF", path, size, **options, **distribution), windows)
        np.testing.assert_array_equal(
            gathered("NETCDF", path, size, "training_labels", **options, **distribution), after
        )
    labels = gathered("NETCDF", path, size, "training_labels", labels="label", **options)
    np.testing.assert_array_equal(labels, np.stack([Y[i + 5 : i + 7] for i in range(17)]))
    share = DataSet("NETCDF", path, rank=0, size=1, **options)
    held = share.training_data, share.training_labels
    assert np.shares_memory(*held), "data and labels are the same steps, read once"


@pytest.mark.parametrize("size", (1, 3))
def test_standard_scaling_is_that_of_all_training_rows(tmp_path, size):
    path = write_netcdf(tmp_path / "a.nc", X * 5 + 100)
    found = gathered("NETCDF", path, size, data="t2m", normalize="standard", test_fraction=0.2)
    training = X[:18].astype("f8") * 5 + 100
    if size == 1:  # by hand each share is scaled alike, because each computes over all training rows
        np.testing.assert_allclose(found, (training - training.mean()) / training.std(), atol=2e-4)
    shares = [DataSet("NETCDF", path, data="t2m", normalize="standard", rank=r, size=size) for r in range(size)]
    assert len({float(share.scaling.mean[0]) for share in shares}) == 1


def second_half(name, path, variable):
    return DataSet(name, path, data=variable, rank=1, size=2).training_data


def test_a_share_costs_its_memory_and_little_more(tmp_path):
    x = np.random.default_rng(1).standard_normal((40, 512, 256)).astype("f4")
    netcdf = write_netcdf(tmp_path / "a.nc", x, np.zeros(40, "i4"), chunksizes=(3, 512, 256))
    hdf5 = write_hdf5(tmp_path / "a.h5", x, chunks=(3, 512, 256))
    for name, path, variable in (("NETCDF", netcdf, "t2m"), ("HDF5", hdf5, "inner/x")):
        rows = second_half(name, path, variable)
        np.testing.assert_array_equal(rows, x[20:])
        peak = peak_of(second_half, name, path, variable)
        assert peak < 1.3 * rows.nbytes + (8 << 20), (name, peak, rows.nbytes)


def test_the_path_alone_tells_the_format(tmp_path):
    assert len(DataSet(write_netcdf(tmp_path / "a.nc"), data="t2m", rank=0, size=1).training_data) == 23
    assert len(DataSet(write_netcdf(tmp_path / "b", kind=KINDS[0]), data="t2m", rank=0, size=1).training_data) == 23
    assert len(DataSet(write_hdf5(tmp_path / "c"), data="inner/x", rank=0, size=1).training_data) == 23


def test_what_is_not_there_is_named_with_what_is(tmp_path):
    netcdf, hdf5 = write_netcdf(tmp_path / "run_1.nc"), write_hdf5(tmp_path / "run_1.h5")

    def failing(error, match, name, path, **options):
        with pytest.raises(error, match=match):
            DataSet(name, path, rank=0, size=1, **options)

    failing(
        FileNotFoundError, r"run_2.nc: expected a file, found none.*near names.*run_1", "NETCDF", tmp_path / "run_2.nc"
    )
    failing(FileNotFoundError, "expected a file, found a folder, which holds run_1", "HDF5", tmp_path)
    failing(
        ReaderError,
        "expected a variable 'tm2', found none; did you mean 't2m'.*has label, t2m",
        "NETCDF",
        netcdf,
        data="tm2",
    )
    failing(
        ReaderError,
        "expected a variable 'labels', .*did you mean 'label'",
        "NETCDF",
        netcdf,
        data="t2m",
        labels="labels",
    )
    failing(ReaderError, "expected a variable 'x', .*has inner/x, y", "HDF5", hdf5, data="x")
    failing(TypeError, "data= has to name the variable to read; the file has inner/x, y", "HDF5", hdf5)
    failing(
        ReaderError,
        r"dimension 'tine'.*time, lat, lon; did you mean 'time'",
        "NETCDF",
        netcdf,
        data="t2m",
        sample="tine",
    )
    failing(ReaderError, "wrong magic number", "NETCDF", __file__, data="x")
    failing(ReaderError, "wrong magic number", "HDF5", __file__, data="x")
    failing(ReaderError, "expected at least one training row", "NETCDF", netcdf, data="t2m", window=23)
    failing(ValueError, "missing has to be", "NETCDF", netcdf, data="t2m", missing="drop")


def test_what_does_not_fit_together(tmp_path):
    write_netcdf(tmp_path / "run_1.nc")
    write_netcdf(tmp_path / "run_2.nc", X[:, :2])
    with pytest.raises(ReaderError, match=r"run_2.nc: expected samples of 't2m' like .*run_1.nc, \[4, 3\].*\[2, 3\]"):
        DataSet("NETCDF", str(tmp_path / "run_*.nc"), data="t2m", rank=0, size=1)
    write_hdf5(tmp_path / "a.h5", y=Y[:20])
    with pytest.raises(ReaderError, match="same number of samples in every variable, found 23 in 'inner/x', 20 in 'y'"):
        DataSet("HDF5", tmp_path / "a.h5", data="inner/x", labels="y", rank=0, size=1)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["one"] = 5.0
        file["link"] = h5py.ExternalLink("gone.h5", "/x")
        layout = h5py.VirtualLayout((4,), "f4")
        layout[:] = h5py.VirtualSource("gone.h5", "x", (4,))
        file.create_virtual_dataset("virtual", layout)
    for name, expected in (
        ("one", "found a single value"),
        ("link", "expected .*gone.h5, found none"),
        ("virtual", "made of other files: expected .*gone.h5, found none"),
    ):
        with pytest.raises(ReaderError, match=expected):
            DataSet("HDF5", tmp_path / "b.h5", data=name, rank=0, size=1)
