"""A data set that nobody has any more has its file closed, at once and by the thread that calls the libraries."""

import _thread
import collections
import gc
import json
import os
import subprocess
import sys
import threading
import time
import types

import h5py
import netCDF4
import numpy as np
import pytest

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.arrays import library

COUNT = 30


def write(path, kind):
    if kind == "HDF5":
        with h5py.File(path, "w") as file:
            file.create_dataset("v", data=np.arange(12.0).reshape(6, 2))
        return path
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("time", 6)
        file.createDimension("x", 2)
        file.createVariable("v", "f8", ("time", "x"))[:] = np.arange(12.0).reshape(6, 2)
    return path


def list_open(folder):
    """The files of `folder` that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one that lists them
            continue
    return sorted(os.path.basename(path) for path in found if path.startswith(str(folder)))


@pytest.mark.parametrize("kind", ("NETCDF3_CLASSIC", "NETCDF4", "HDF5"))
def test_dropped_data_sets_leave_no_file_open(tmp_path, kind):
    name = "HDF5" if kind == "HDF5" else "NETCDF"
    gc.disable()  # no collection is needed for it
    try:
        for number in range(COUNT):
            data = DataSet(name, write(tmp_path / f"{number}", kind), data="v", rank=0, size=1)
            assert data.training_data.shape == (6, 2)
            assert list_open(tmp_path) == [str(number)]
        with pytest.raises(ReaderError, match="found none") as kept:
            DataSet(name, tmp_path / "0", data="w", rank=0, size=1)
        assert "0" not in list_open(tmp_path)
        del data
        assert list_open(tmp_path) == []
        assert kept.value is not None
    finally:
        gc.enable()


PROGRAM = """
import gc, json, sys, threading, time
import numpy as np
from matex_tf.readers import DataSet
from matex_tf.readers.arrays import library

class Cycle: pass

threads = set()
paths = sys.argv[1:]
stop = threading.Event()

def read():
    data = DataSet("NETCDF", paths[0], data="v", window=2, rank=0, size=1)
    while not stop.is_set():
        data._source.read_samples("training", "data", range(3))

def note(path):
    import netCDF4
    original = netCDF4.Dataset.close
    class Noted(netCDF4.Dataset):
        def close(self):
            threads.add(threading.current_thread().name)
            return super().close()
    netCDF4.Dataset = Noted

note(None)
reader = threading.Thread(target=read)
reader.start()
for number in range(200):
    cycle = Cycle()
    cycle.own, cycle.data = cycle, DataSet("NETCDF", paths[1 + number % (len(paths) - 1)], data="v", rank=0, size=1)
    del cycle
    gc.collect()
stop.set()
reader.join()
DataSet("NETCDF", paths[0], data="v", rank=0, size=1)
print(json.dumps(sorted(threads)))
"""


def test_a_file_is_closed_by_the_thread_of_calls_whoever_drops_it(tmp_path):
    paths = [str(write(tmp_path / f"{number}.nc", "NETCDF4")) for number in range(5)]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout) == ["matex_tf reader"]


def test_an_error_of_closing_a_dropped_file_is_shown_and_leaves_another_call_alone(capfd):
    class Broken:
        def close(self):
            raise OSError("the disk is gone")

    files = [library.OpenFile(Broken)]
    assert library.call_library(lambda: files.clear() or 5) == 5
    assert "the disk is gone" in capfd.readouterr().err
    files = [library.OpenFile(Broken)]
    with pytest.raises(ZeroDivisionError):
        library.call_library(lambda: files.clear() or 1 / 0)
    assert "the disk is gone" in capfd.readouterr().err
    with pytest.raises(OSError, match="the disk is gone"):
        library.OpenFile(Broken).close()


def test_no_further_file_is_closed_after_a_close_that_never_returns(monkeypatch, capfd):
    worker, closed = types.SimpleNamespace(is_stuck=False), []

    def call(action, _):
        closed.append(action)
        worker.is_stuck = True
        raise ReaderError("without an end")

    monkeypatch.setattr(library, "_worker", worker)
    monkeypatch.setattr(library, "_call_by_worker", call)
    monkeypatch.setattr(library, "_dropped", collections.deque(["first", "second"]))
    library._close_dropped()
    library._close_dropped()
    assert closed == ["first"] and capfd.readouterr().err.count("ReaderError: without") == 1


def test_a_call_after_an_interrupted_one_has_its_own_result():
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        library.call_library(lambda: time.sleep(1) or "first")
    timer.join()
    assert library.call_library(lambda: "second") == "second"
