"""parallel=True: all ranks take part in every transfer. Others stand in for libraries that are built with MPI-IO."""

import h5py
import netCDF4
import numpy as np
import pytest

import launch
from matex_tf.readers import DataSet, ReaderError

# Stand-ins that meet for every open, read and close, as MPI-IO does; ranks that do different things show it.
SCRIPT = """
import os, sys, types
import h5py, netCDF4
import numpy as np
import matex_tf
from matex_tf.steps import own_data
from matex_tf.readers import DataSet, ReaderError

folder = sys.argv[1]
rank, size = matex_tf.rank(), matex_tf.size()
transfers = []
fail_at = None

def meet(comm, *what):
    everyone = comm.allgather(what)
    assert everyone == [what] * size, everyone
    transfers.append(what)
    if what[0] == "read" and fail_at is not None and rank == fail_at[0] and len(transfers) >= fail_at[1]:
        raise OSError("the disk is gone")

class ParallelNetcdf:
    def __init__(self, path, comm):
        self.file, self.comm, self.path = netCDF(path), comm, str(path)
        meet(comm, "open", self.path)
        self.groups = {}
        self.variables = {name: ParallelVariable(self, name) for name in self.file.variables}
    def close(self):
        meet(self.comm, "close", self.path)
        self.file.close()

class ParallelVariable:
    def __init__(self, owner, name):
        self.owner, self.name, self.real, self.together = owner, name, owner.file.variables[name], False
    def set_collective(self, together):
        self.together = together
    def __getattr__(self, name):
        return getattr(self.real, name)
    def __getitem__(self, where):
        assert self.together
        found = self.real[where]
        assert found.size, "an empty selection does not reach the C library"
        meet(self.owner.comm, "read", self.owner.path, self.name)
        return found

class ParallelHdf5(h5py.File):
    def __init__(self, path, mode, driver, comm):
        super().__init__(path, mode)
        self.comm, self.path = comm, str(path)
        meet(comm, "open", self.path)
    def __getitem__(self, key):
        dataset = ParallelDataset(super().__getitem__(key).id)
        dataset.owner = self
        return dataset
    def close(self):
        meet(self.comm, "close", self.path)
        super().close()

class ParallelDataset(h5py.Dataset):
    together = False
    @property
    def collective(self):
        dataset = self
        class Together:
            def __enter__(self):
                dataset.together = True
            def __exit__(self, *error):
                dataset.together = False
        return Together()
    def __getitem__(self, where):
        raise AssertionError("h5py does not index collectively")
    def read_direct(self, target, where):
        assert self.together and target.size
        super().read_direct(target, where)
        meet(self.owner.comm, "read", self.owner.path, self.name)

netCDF = netCDF4.Dataset
netCDF4.__has_parallel4_support__ = True
netCDF4.Dataset = lambda path, parallel=False, comm=None: ParallelNetcdf(path, comm) if parallel else netCDF(path)
hdf5 = h5py.File
h5py.get_config = lambda: types.SimpleNamespace(mpi=True)
h5py.File = lambda path, mode, driver=None, comm=None: (
    ParallelHdf5(path, mode, driver, comm) if driver else hdf5(path, mode))

for kind, options in (("NETCDF", {"data": ["x", "z"], "labels": "y"}), ("HDF5", {"data": "x", "labels": "y"})):
    path = f"{folder}/run_*.{'nc' if kind == 'NETCDF' else 'h5'}"
    for more in ({}, {"distribution": "cyclic"}, {"distribution": "batch", "batch_size": 5}, {"test_fraction": 0.1},
                 {"window": 4} if kind == "HDF5" else {"window": 4, "split": "spread", "test_fraction": 0.3}):
        if kind == "HDF5" and "window" in more:
            options = {"data": "x"}
        data = DataSet(kind, path, parallel=True, **options, **more)
        alone = DataSet(kind, path, rank=rank, size=size, **options, **more)
        transfers.clear()
        for part in ("training", *(["testing"] if "test_fraction" in more else [])):
            for field in ("data", "labels"):
                assert np.array_equal(getattr(data, f"{part}_{field}"), getattr(alone, f"{part}_{field}")), (kind, more)
        kinds = [what for what, *_ in transfers]
        assert kinds.count("read") >= 3 and kinds.count("open") == kinds.count("close") >= 3, kinds
        # Each rank reads its rows of a stream without the others; eager code sees every row once.
        transfers.clear()
        stream = data.as_dataset(5)
        with own_data.compute_alone():
            mine = np.concatenate([x.numpy() for x, _ in stream])
        assert not transfers and np.array_equal(mine, alone.training_data), (kind, more)
        whole = DataSet(kind, path, rank=0, size=1, **options, **more).training_data
        seen = [row.tobytes() for x, _ in stream for row in x.numpy()]
        assert not transfers and sorted(seen) == sorted(row.tobytes() for row in whole), (kind, more)

# A read that fails on one rank: its own, or one of another rank that it joins.
for fail_at, distribution in (((size - 1, 4), "cyclic"), ((0, 6), "cyclic"), ((0, 6), "block")):
    transfers.clear()
    try:
        DataSet("HDF5", f"{folder}/run_*.h5", data="x", distribution=distribution, parallel=True).training_data
        print("nothing")
    except ReaderError as error:
        print("said", rank, fail_at[0], error)
fail_at = None
assert len(DataSet("HDF5", f"{folder}/run_*.h5", data="x", parallel=True).training_data)
print("done")
"""


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    # The first file has none of the last ranks' rows; a file without rows is read by nobody.
    for number, rows in enumerate((5, 0, 30, 9)):
        x, y = random.random((rows, 300, 60), np.float32), np.arange(rows)
        with netCDF4.Dataset(tmp_path / f"run_{number}.nc", "w") as file:
            for name, length in (("time", None), ("lat", 300), ("lon", 60)):
                file.createDimension(name, length)
            for name in ("x", "z"):
                file.createVariable(name, "f4", ("time", "lat", "lon"), chunksizes=(2, 300, 60))[:] = x
            file.createVariable("y", "i4", ("time",))[:] = y
        with h5py.File(tmp_path / f"run_{number}.h5", "w") as file:
            file["x"], file["y"] = x, y
    return tmp_path


@pytest.mark.parametrize("ranks", (2, pytest.param(3, marks=pytest.mark.more)))
def test_every_rank_takes_part_in_every_transfer(folder, ranks):
    result = launch.run(ranks, SCRIPT, folder, env=launch.ALL_FILES, timeout=120).check()
    assert result.stdout.count("done") == ranks, result.output
    assert "nothing" not in result.stdout
    assert result.stdout.count("the disk is gone") == 3 * ranks, result.stdout


def test_libraries_without_it_are_named(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("time", 3)
        file.createVariable("x", "f4", ("time",))[:] = 1
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones(3)
    for path, library in (
        (tmp_path / "a.nc", "a netCDF4 built with parallel I/O"),
        (tmp_path / "a.h5", "an h5py built"),
    ):
        with pytest.raises(ReaderError, match=f"parallel=True: expected {library}.*Without parallel=True each rank"):
            DataSet(path, data="x", parallel=True)
        with pytest.raises(ValueError, match="parallel=True needs the other ranks"):
            DataSet(path, data="x", parallel=True, rank=0, size=1)
