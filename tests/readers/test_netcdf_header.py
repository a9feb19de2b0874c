"""Classic NetCDF: how long a file is by its header, whoever wrote it, and what is longer or shorter than that."""

import itertools

import netCDF4
import numpy as np
import pytest
from scipy.io import netcdf_file

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.arrays import netcdf_header

KINDS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
TYPES = ("i1", "i2", "f8")
VARIABLES = [((), ()), ((), "c"), ("a", ()), ("a", "c"), ("ab", ()), ("ab", "cd")]


def fill(file, kinds, records, width, varying, fixed):
    """The variables of these names, of `records` records and of none, each of a type of its own."""
    file.createDimension("t", None)
    file.createDimension("x", width)
    for name, kind in zip((*varying, *fixed), itertools.cycle(kinds)):
        variable = file.createVariable(name, kind, ("t", "x") if name in varying else ("x",))
        for row in range(records) if name in varying else [slice(None)]:
            variable[row] = np.ones(width).astype(kind)


@pytest.mark.parametrize("kind", (*KINDS, 1, 2))
def test_whole_files_of_every_shape_are_as_long_as_their_header_says(tmp_path, kind):
    path = tmp_path / "a.nc"
    for records, width, (varying, fixed) in itertools.product((0, 1, 3), (1, 3), VARIABLES):
        for kinds in itertools.product(TYPES, repeat=2):
            # SciPy, too, writes the first two kinds.
            file = netcdf_file(path, "w", version=kind) if kind in (1, 2) else netCDF4.Dataset(path, "w", format=kind)
            with file:
                fill(file, kinds, records, width, varying, fixed)
            netcdf_header.check_header(path)
            path.write_bytes(path.read_bytes() + bytes(4))
            with pytest.raises(ReaderError, match="a.nc: too long: its header describes"):
                netcdf_header.check_header(path)


def test_the_padding_at_the_end_may_be_missing(tmp_path):
    path = tmp_path / "a.nc"
    for varying, padding in (((), 3), ("a", 0), ("ab", 3)):
        with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
            fill(file, ("i1",), 1, 5, varying, () if varying else "c")
        good = path.read_bytes()
        path.write_bytes(good[: len(good) - padding])
        netcdf_header.check_header(path)
        path.write_bytes(good[: len(good) - padding - 1])
        with pytest.raises(ReaderError, match="a.nc: truncated"):
            netcdf_header.check_header(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unlimited", [True, False])
def test_bytes_that_are_put_in_anywhere_are_an_error(tmp_path, kind, unlimited):
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("t", None if unlimited else 7)
        file.createDimension("x", 3)
        file.createVariable("x", "f4", ("t", "x"))[:] = np.arange(21).reshape(7, 3)
        file.createVariable("y", "i4", ("t",))[:] = np.arange(7)
    good = path.read_bytes()
    for at, count in itertools.product(range(0, len(good) + 1, 5), (1, 4, 16)):
        path.write_bytes(good[:at] + bytes(count) + good[at:])
        with pytest.raises(ReaderError, match="a.nc: "):
            DataSet("NETCDF", path, data="x", labels="y", rank=0, size=1)


def test_records_of_which_the_writer_has_not_said_how_many(tmp_path):
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        fill(file, ("f4",), 3, 2, "a", ())
    good = path.read_bytes()
    path.write_bytes(good[:4] + b"\xff" * 4 + good[8:])
    with pytest.raises(ReaderError, match="the number of records, found none"):
        netcdf_header.check_header(path)
