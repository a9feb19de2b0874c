"""Samples of several files and channels: dimensions go by their names, and values by their coordinates."""

import tempfile
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matex_tf.readers import DataSet, ReaderError

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

GRID = ("time", "lat", "lon")
LENGTHS = {"time": 5, "lat": 3, "lon": 3, "level": 2}
COORDINATES = {
    "lat": np.array([-30.0, 0.5, 41.0]),
    "lon": np.array([0.1, 120.2, 240.3], "f4"),
    "level": np.array([1000, 500], "i4"),
}


def write(path, variables, coordinates=COORDINATES, attributes=None, kind="NETCDF4"):
    """`variables`: by name, (dimensions, values)."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        for names, values in variables.values():
            for name, length in zip(names, values.shape, strict=True):
                if name in file.dimensions:
                    continue
                file.createDimension(name, length)
                if name in coordinates:
                    along = file.createVariable(name, np.asarray(coordinates[name]).dtype, (name,))
                    along.setncatts((attributes or {}).get(name, {}))
                    along[:] = coordinates[name]
        for name, (names, values) in variables.items():
            file.createVariable(name, values.dtype, names)[:] = values
    return path


def alone(path, kind="NETCDF", **options):
    return np.asarray(DataSet(kind, path, rank=0, size=1, **options).training_data)


def refused(match, path, kind="NETCDF", **options):
    with pytest.raises(ReaderError, match=match):
        alone(path, kind, **options)


@relaxed
@given(st.data(), st.sampled_from(["NETCDF3_CLASSIC", "NETCDF4"]), st.booleans(), st.booleans())
def test_every_order_of_dimensions_and_coordinates_gives_the_samples_that_alignment_gives(
    tmp_path, data, kind, channels, as_hdf5
):
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    names = data.draw(st.permutations(list(LENGTHS)).map(tuple))
    sample = data.draw(st.sampled_from(names))
    values = [np.random.default_rng(seed).standard_normal([LENGTHS[name] for name in names]) for seed in (0, 1)]
    order = data.draw(st.permutations(names).map(tuple))
    coordinates, second = dict(COORDINATES), values[1]
    if not channels:  # in one file a dimension has one coordinate
        for name in COORDINATES:
            places = data.draw(st.permutations(range(LENGTHS[name])))
            if name != sample:
                coordinates[name] = COORDINATES[name][places].astype(data.draw(st.sampled_from(["f8", "f4"])))
                second = second.take(places, axis=names.index(name))
    second = second.transpose([names.index(name) for name in order])
    if channels:
        path = write(folder / "a.nc", {"v": (names, values[0]), "w": (order, second)}, kind=kind)
    else:
        path = str(folder / "*.nc")
        write(folder / "a.nc", {"v": (names, values[0])}, kind=kind)
        write(folder / "b.nc", {"v": (order, second)}, coordinates, kind=kind)
    how = "HDF5" if as_hdf5 and kind == "NETCDF4" else "NETCDF"
    found = alone(path, how, data=["v", "w"] if channels else "v", sample=sample)
    rows = [np.moveaxis(one, names.index(sample), 0) for one in values]
    np.testing.assert_array_equal(found, np.stack(rows, axis=-1) if channels else np.concatenate(rows))


@pytest.mark.parametrize("kind", ("NETCDF", "HDF5"))
@pytest.mark.parametrize("shape", ((5, 3, 3), (5, 3, 4)))
def test_a_variable_that_is_channel_and_labels_has_an_order_for_each(tmp_path, kind, shape):
    v = np.arange(float(np.prod(shape))).reshape(shape)
    w = -v.transpose(0, 2, 1)
    along = {"lat": np.arange(3.0), "lon": np.arange(shape[2]) * 10.0}
    back = along | {"lat": along["lat"][::-1]}
    write(tmp_path / "a.nc", {"v": (GRID, v), "w": (("time", "lon", "lat"), w)}, along)
    write(tmp_path / "b.nc", {"v": (GRID, v[:, ::-1]), "w": (("time", "lon", "lat"), w[:, :, ::-1])}, back)
    for path, files in ((tmp_path / "a.nc", 1), (str(tmp_path / "*.nc"), 2)):
        for data, labels in ((["v", "w"], "w"), ("w", ["v", "w"])):
            found = DataSet(kind, path, data=data, labels=labels, rank=0, size=1)
            pair, one = found.training_data, found.training_labels
            if data == "w":
                pair, one = one, pair
            np.testing.assert_array_equal(pair, np.concatenate([np.stack([v, -v], axis=-1)] * files))
            np.testing.assert_array_equal(one, np.concatenate([w] * files))


V = np.arange(45.0).reshape(5, 3, 3)


def test_the_first_variable_tells_which_dimension_is_that_of_samples(tmp_path):
    values = np.arange(9.0).reshape(3, 3)
    path = write(tmp_path / "a.nc", {"v": (("time", "lat"), values), "w": (("lat", "time"), values)})
    np.testing.assert_array_equal(alone(path, data=["v", "w"]), np.stack([values, values.T], axis=-1))


def float32(values):
    return np.asarray(values, "f4")


# Coordinates far from 0, and a shift that is one of their steps or part of it.
FAR = {
    "Julian days": (2451545 + np.arange(4) / 24, 1 / 24),
    "Julian days, shifted by little": (2451545 + np.arange(4) / 24, 1 / 240),
    "seconds": (1700000000 + 3600 * np.arange(4), 3600),
    "seconds, shifted by one": (1700000000 + 3600 * np.arange(4), 1),
    "seconds as floats": (1700000000.0 + 3600 * np.arange(4), 3600),
    "nanoseconds": (1700000000_000000000 + 3600_000000000 * np.arange(4), 1),
    "northings": (5300000.0 + 10 * np.arange(4), 10),
    "northings as float32": (float32(5300000 + 10 * np.arange(4)), 5),
    "a single level": (np.array([100000.0]), 0.01),
}


@pytest.mark.parametrize("kind", ("NETCDF", "HDF5"))
@pytest.mark.parametrize("case", FAR)
def test_coordinates_far_from_0_are_told_apart_and_brought_into_order(tmp_path, case, kind):
    along, shift = FAR[case]
    values = np.arange(2.0 * len(along)).reshape(2, len(along))
    both = str(tmp_path / "*.nc")

    def second(coordinates, order):
        write(tmp_path / "b.nc", {"v": (("time", "y"), values[:, order])}, {"y": coordinates})

    write(tmp_path / "a.nc", {"v": (("time", "y"), values)}, {"y": along})
    for order in (slice(None), slice(None, None, -1), np.roll(np.arange(len(along)), 1)):
        second(along[order], order)
        np.testing.assert_array_equal(alone(both, kind, data="v"), np.concatenate([values, values]))
        for sign in (1, -1):
            second((along + sign * along.dtype.type(shift))[order], order)
            refused("b.nc, 'v': .*along 'y'", both, kind, data="v")


@pytest.mark.parametrize("kind", ("NETCDF", "HDF5"))
def test_coordinates_of_two_dtypes_are_the_same_as_far_as_these_tell_their_steps(tmp_path, kind):
    values = np.arange(8.0).reshape(2, 4)
    both = str(tmp_path / "*.nc")
    for along, are_same in (
        (179.99 + 0.01 * np.arange(4), True),
        (5300000.1 + 10 * np.arange(4), True),
        (1700000000.0 + 3600 * np.arange(4), True),
        (2451545 + np.arange(4) / 24, False),
        (5300000.2 + 0.5 * np.arange(4), False),
    ):
        for dtypes in (("f4", "f8"), ("f8", "f4")):
            for name, dtype in zip("ab", dtypes):
                write(tmp_path / f"{name}.nc", {"v": (("time", "y"), values)}, {"y": along.astype(dtype)})
            if are_same:
                np.testing.assert_array_equal(alone(both, kind, data="v"), np.concatenate([values, values]))
            else:
                refused("b.nc, 'v': .*along 'y'", both, kind, data="v")


def test_values_that_come_twice_tell_no_order(tmp_path):
    values = np.arange(6.0).reshape(2, 3)
    write(tmp_path / "a.nc", {"v": (("time", "y"), values)}, {"y": [1.0, 1, 2]})
    write(tmp_path / "b.nc", {"v": (("time", "y"), values)}, {"y": [1.0, 1, 2]})
    np.testing.assert_array_equal(alone(str(tmp_path / "*.nc"), data="v"), np.concatenate([values, values]))
    write(tmp_path / "b.nc", {"v": (("time", "y"), values)}, {"y": [2.0, 1, 1]})
    refused("b.nc, 'v': .*along 'y'", str(tmp_path / "*.nc"), data="v")


@pytest.mark.parametrize("kind", ("NETCDF", "HDF5"))
def test_other_coordinates_and_names_are_refused(tmp_path, kind):
    write(tmp_path / "a.nc", {"v": (GRID, V)})
    both = str(tmp_path / "[ab].nc")

    def second(names=GRID, **coordinates):
        write(tmp_path / "b.nc", {"v": (names, V)}, COORDINATES | coordinates)

    second(lat=[-30.0, 1, 41])
    refused(
        r"b.nc, 'v': .*-30.0 to 41.0 along 'lat', found -30.0 to 41.0: at index 1, 0.5 and 1.0.*reindex_like",
        both,
        kind,
        data="v",
    )
    second(lon=[-179.9, -59.8, 60.3])
    refused("b.nc, 'v': .*along 'lon'", both, kind, data="v")
    second(("time", "y", "x"))
    refused("nothing shows that 'lat' is 'y'.*ncrename -d y,lat", both, kind, data="v")
    refused("read each as a data set of its own", both, kind, data="v")
    second(("time", "lat", "other"))
    refused("nothing shows that 'lon' is 'other'", both, kind, data="v")
    # Another name for the same coordinates is shown to be the same.
    second(("time", "latitude", "lon"), latitude=COORDINATES["lat"])
    np.testing.assert_array_equal(alone(both, kind, data="v"), np.concatenate([V, V]))
    # Without coordinates, the names say it.
    write(tmp_path / "b.nc", {"v": (("lon", "time", "lat"), V.transpose(2, 0, 1))}, {})
    np.testing.assert_array_equal(alone(both, kind, data="v", sample="time"), np.concatenate([V, V]))


def test_times_within_a_sample_are_compared_with_their_units(tmp_path):
    for name, unit in (("a", "days since 2000-01-01"), ("b", "days since 2001-01-01")):
        times = {"time": np.arange(5.0)}
        write(tmp_path / f"{name}.nc", {"v": (GRID, V)}, times, {"time": {"units": unit}})
    refused("times along 'time' in 'days since 2000", str(tmp_path / "*.nc"), data="v", sample="lat")


@pytest.mark.parametrize("kind", ("NETCDF", "HDF5"))
def test_units_of_time_are_compared_as_times(tmp_path, kind):
    def second(units):
        write(tmp_path / "b.nc", {"v": (GRID, V)}, {"time": np.arange(5.0)}, {"time": {"units": units}})

    first = {"time": {"units": "days since 2000-01-01"}}
    write(tmp_path / "a.nc", {"v": (GRID, V)}, {"time": np.arange(5.0)}, first)
    for units in (
        "days since 2000-01-01 00:00:00", "days since 2000-01-01T00:00:00Z", "Day since 2000-1-1 0:0:0.0 UTC",
        "d since 2000-01-01 00:00", "days  since 2000-01-01 00:00:00 +00:00",
    ):  # fmt: skip
        second(units)
        found = alone(str(tmp_path / "*.nc"), kind, data="v", sample="lat")
        np.testing.assert_array_equal(found, np.concatenate([V.transpose(1, 0, 2)] * 2))
    for units in (
        "hours since 2000-01-01", "days since 2000-01-01 06:00", "days since 2000-01-01 00:00:00 +06:00",
        "days since 2000-01-02", "days since 1-1-2000", "days since -2000-01-01", "days", "",
    ):  # fmt: skip
        second(units)
        refused("times along 'time' in 'days since 2000", str(tmp_path / "*.nc"), kind, data="v", sample="lat")


def test_a_missing_value_is_named_by_its_place_in_its_own_file(tmp_path):
    write(tmp_path / "a.nc", {"v": (GRID, V)})
    other = V.transpose(0, 2, 1)[:, :, ::-1].copy()
    other[3, 2, 1] = np.nan
    write(tmp_path / "b.nc", {"v": (("time", "lon", "lat"), other)}, COORDINATES | {"lat": COORDINATES["lat"][::-1]})
    refused(r"b.nc, 'v'\[3, 2, 1\]: expected a number", str(tmp_path / "*.nc"), data="v")
    whole = np.nan_to_num(other).astype("i4")
    whole[3, 2, 1] = netCDF4.default_fillvals["i4"]
    write(tmp_path / "a.nc", {"v": (GRID, V.astype("i4"))})
    write(tmp_path / "b.nc", {"v": (("time", "lon", "lat"), whole)}, COORDINATES | {"lat": COORDINATES["lat"][::-1]})
    refused(r"b.nc, 'v'\[3, 2, 1\]: expected a number", str(tmp_path / "*.nc"), data="v")


def test_labels_of_axes_in_hdf5(tmp_path):
    for name, labels in (("a", ("t", "y", "x")), ("b", ("t", "x", "y"))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            dataset = file.create_dataset("v", data=V if name == "a" else V.transpose(0, 2, 1))
            for place, label in enumerate(labels):
                dataset.dims[place].label = label
    np.testing.assert_array_equal(alone(str(tmp_path / "*.h5"), "HDF5", data="v"), np.concatenate([V, V]))
