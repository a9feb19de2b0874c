"""A file that changes while a data set is in use is an error, in every format."""

import os
import struct

import h5py
import netCDF4
import numpy as np
import pytest

from matex_tf.readers import DataSet, ReaderError


def write_netcdf(path, x):
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("time", len(x))
        file.createVariable("x", "f8", ("time",))[:] = x


def write_hdf5(path, x):
    with h5py.File(path, "w") as file:
        file["x"] = x


def write_csv(path, x):
    path.write_text("x\n" + "\n".join(map(str, x)))


@pytest.mark.parametrize(
    "name, write, options",
    [("NETCDF", write_netcdf, {"data": "x"}), ("HDF5", write_hdf5, {"data": "x"}), ("CSV", write_csv, {})],
)
def test_rows_of_two_files_are_never_mixed(tmp_path, name, write, options):
    path = tmp_path / "a"
    write(path, np.arange(10.0))
    data = DataSet(name, path, rank=1, size=2, **options)
    write(tmp_path / "b", np.arange(10.0)[::-1])
    path.write_bytes((tmp_path / "b").read_bytes())  # HDF5 refuses to write to a file that this process has open
    with pytest.raises(ReaderError, match="a: the file has changed since this data set was opened"):
        data.training_data  # noqa: B018
    assert DataSet(name, path, rank=1, size=2, **options).training_data.ravel().tolist() == [4, 3, 2, 1, 0]


def write_mnist(folder):
    for part in ("train", "t10k"):
        for name, shape in (("images-idx3", (4, 2, 2)), ("labels-idx1", (4,))):
            head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
            (folder / f"{part}-{name}-ubyte").write_bytes(head + bytes(int(np.prod(shape))))


def write_cifar(folder):
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(bytes(4 * 3074))


@pytest.mark.parametrize("name, write", [("MNIST", write_mnist), ("CIFAR100", write_cifar)])
def test_so_it_is_of_images(tmp_path, name, write):
    write(tmp_path)
    data = DataSet(name, tmp_path, rank=1, size=2)
    assert len(data.testing_data) == 2
    for file in tmp_path.iterdir():
        os.utime(file, (1, 1))
    with pytest.raises(ReaderError, match="train.*: the file has changed since this data set was opened"):
        data.training_data  # noqa: B018
