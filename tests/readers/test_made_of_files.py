"""HDF5 datasets that lie in other files: links, virtual datasets and values stored outside."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.arrays import library
from matex_tf.readers.arrays.hdf5 import Hdf5

VALUES = np.arange(1.0, 5.0)
# Files named within another one, and where they are: beside it, in the current folder, in a folder of a variable of the
# environment, beside what a link of the file system leads to, and nowhere.
PLACES = ("beside", "here", "prefixed", "second_prefix", "origin", "real", "moved", "gone")

PROGRAM = """
import json, sys, h5py, numpy as np
from matex_tf.readers import DataSet, ReaderError

found = {}
for name in sys.argv[2:]:
    try:
        with h5py.File(sys.argv[1], "r") as file:
            hdf5 = file[name][()].tolist() == [1, 2, 3, 4]
    except (KeyError, OSError):
        hdf5 = False
    try:
        data = DataSet("HDF5", sys.argv[1], data=name, rank=0, size=1).training_data
        matex = np.asarray(data).tolist() == [1, 2, 3, 4]
    except ReaderError as error:
        assert "found none" in str(error), error
        matex = "refused"
    found[name] = hdf5, matex
print(json.dumps(found))
"""


def write_sources(folder, name):
    folder.mkdir(exist_ok=True, parents=True)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["x"] = VALUES
    (folder / f"{name}.raw").write_bytes(VALUES.tobytes())


def write_owner(path, names, links=True):
    """By the name of each source, a dataset of each kind."""
    with h5py.File(path, "w") as file:
        for place, name in names.items():
            if links:
                file[f"{place}_link"] = h5py.ExternalLink(f"{name}.h5", "/x")
            layout = h5py.VirtualLayout((4,), "f8")
            layout[:] = h5py.VirtualSource(f"{name}.h5", "x", (4,))
            file.create_virtual_dataset(f"{place}_virtual", layout)
            file.create_dataset(f"{place}_raw", (4,), "f8", external=[(f"{name}.raw", 0, 32)])
        return sorted(file)


@pytest.mark.parametrize(
    "prefixes", ((), ("prefixed", "second_prefix"), ("${ORIGIN}/below",), ("prefixed", "${ORIGIN}/below"))
)
def test_files_are_looked_for_where_hdf5_looks(tmp_path, prefixes):
    folders = {place: tmp_path / place for place in ("here", "prefixed", "second_prefix", "real")}
    folders |= {"beside": tmp_path / "owner", "moved": tmp_path / "owner", "origin": tmp_path / "owner" / "below"}
    for place, folder in folders.items():
        write_sources(folder, place)
    names = {place: place for place in PLACES}
    names |= {"moved": str(tmp_path / "elsewhere" / "moved"), "percent": "100%%"}
    write_sources(tmp_path / "owner", "100%")
    datasets = write_owner(tmp_path / "real" / "owner.h5", names)
    (tmp_path / "owner" / "owner.h5").symlink_to(tmp_path / "real" / "owner.h5")
    environment = dict(os.environ)
    if prefixes:
        several = ":".join(one if one.startswith("$") else str(tmp_path / one) for one in prefixes)
        environment |= {"HDF5_EXT_PREFIX": several, "HDF5_VDS_PREFIX": several}
        environment["HDF5_EXTFILE_PREFIX"] = "${ORIGIN}"
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "owner" / "owner.h5"), *datasets]
    run = subprocess.run(
        words, cwd=tmp_path / "here", env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert {name: matex for name, (_, matex) in found.items()} == {
        name: hdf5 or "refused" for name, (hdf5, _) in found.items()
    }
    reads = {name for name, (hdf5, _) in found.items() if hdf5}
    assert {"beside_virtual", "here_virtual", "beside_link", "here_link", "percent_virtual"} <= reads
    assert ({"prefixed_virtual", "prefixed_link"} <= reads) == ("prefixed" in prefixes)
    assert ("origin_virtual" in reads) == (prefixes == ("${ORIGIN}/below",))
    assert ("beside_raw" in reads) == bool(prefixes)
    assert reads.isdisjoint({"gone_virtual", "gone_link", "gone_raw"})


def test_netcdf_variables_are_made_of_other_files_too(tmp_path):
    write_sources(tmp_path, "source")
    write_owner(tmp_path / "a.nc", {"fine": "source", "bad": "gone"}, links=False)
    found = DataSet("NETCDF", tmp_path / "a.nc", data="fine_virtual", rank=0, size=1)
    np.testing.assert_array_equal(found.training_data, VALUES)
    for name in ("bad_virtual", "bad_raw"):
        with pytest.raises(ReaderError, match="expected .*gone.*, found none"):
            DataSet("NETCDF", tmp_path / "a.nc", data=name, rank=0, size=1)


def test_dead_soft_links_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/x"] = VALUES
        file["fine"] = h5py.SoftLink("/group/x")
        file["group/near"] = h5py.SoftLink("x")
        file["to_group"] = h5py.SoftLink("/group")
        file["dead"] = h5py.SoftLink("/gone")
        file["round"] = h5py.SoftLink("/round")
        file["group/dead"] = h5py.SoftLink("gone/x")
        file["far"] = h5py.ExternalLink("gone.h5", "/x")
        file["to_far"] = h5py.SoftLink("/far")
    for name in ("fine", "group/near", "to_group/x", "to_group/near"):
        found = DataSet("HDF5", tmp_path / "a.h5", data=name, rank=0, size=1)
        np.testing.assert_array_equal(found.training_data, VALUES)
    for name in ("dead", "round", "group/dead", "to_group/dead", "dead/x", "to_far"):
        with pytest.raises(ReaderError, match=rf"a.h5: '{name}' goes through a link: expected .* found none"):
            DataSet("HDF5", tmp_path / "a.h5", data=name, rank=0, size=1)
    with pytest.raises(ReaderError, match="expected a variable 'group/gone', found none"):
        DataSet("HDF5", tmp_path / "a.h5", data="group/gone", rank=0, size=1)


def test_series_of_sources_are_as_many_as_there_are(tmp_path):
    for number in range(2):
        with h5py.File(tmp_path / f"s{number}.h5", "w") as file:
            file["x"] = VALUES + number
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(2):
            file[f"block{number}"] = VALUES + number
        for name, source in (("files", ("s%b.h5", "x")), ("datasets", (".", "block%b"))):
            all_blocks = h5py.h5s.create_simple((2, 4), (h5py.h5s.UNLIMITED, 4))
            all_blocks.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 4), (1, 4))
            one = h5py.h5s.create_simple((4,))
            one.select_all()
            made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            made.set_virtual(all_blocks, source[0].encode(), source[1].encode(), one)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_DOUBLE, all_blocks, made)
    for name in ("files", "datasets"):
        found = DataSet("HDF5", tmp_path / "a.h5", data=name, rank=0, size=1)
        np.testing.assert_array_equal(found.training_data, [VALUES, VALUES + 1])


def test_sources_are_looked_up_once_and_by_one_call_for_each_file(tmp_path, monkeypatch):
    count = 20
    for number in range(count):
        write_sources(tmp_path, f"s{number}")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        layout = h5py.VirtualLayout((count, 4), "f8")
        for number in range(count):
            layout[number] = h5py.VirtualSource(f"s{number}.h5", "x", (4,))
        file.create_virtual_dataset("v", layout)
    opened, of_calls = [], []
    original_call, original_file = library.call_library, h5py.File

    def call(action, *most):
        before = len(opened)
        result = original_call(action, *most)
        of_calls.append(len(opened) - before)
        return result

    class File(original_file):
        def __init__(self, *arguments, **options):
            opened.append(arguments[0])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(library, "call_library", call)
    monkeypatch.setattr(h5py, "File", File)
    data = DataSet("HDF5", tmp_path / "a.h5", data="v", window=2, rank=0, size=1)
    assert len(set(opened)) == count + 1 and max(of_calls) == 1
    begin = len(opened)
    for row in range(count - 2):
        data._source.read_samples("training", "data", range(row, row + 1))
    assert len(opened) == begin


def test_an_error_in_closing_stands_not_in_place_of_the_first(tmp_path, monkeypatch):
    write_sources(tmp_path, "a")

    def fail(text):
        def raise_it(*_):
            raise ReaderError(text)

        return raise_it

    monkeypatch.setattr(Hdf5, "find_variable", fail("the first"))
    monkeypatch.setattr(library.OpenFile, "close", fail("the second"))
    with pytest.raises(ReaderError, match="the first"):
        DataSet("HDF5", tmp_path / "a.h5", data="x", rank=0, size=1)
