"""Whoever opens a file that a rank has written, in Python or in a library's C, finds it on that rank."""

import json
from pathlib import Path

import h5py
import pytest

import launch

CASE = Path(__file__).with_name("opening_case.py")


@pytest.mark.parametrize("ranks", (2, pytest.param(3, marks=pytest.mark.more)))
def test_a_rank_finds_what_it_has_written_by_whatever_opens_it(tmp_path, ranks):
    with h5py.File(tmp_path / "shared.h5", "w") as file:
        file["x"] = [3]
    for module in ("models", "package/__init__", "settings", "rewritten/__init__", "rewritten/part"):
        file = tmp_path / "shared" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"value = '{module.removesuffix('/__init__').rpartition('/')[2]}'")
    run = launch.run(ranks, CASE, tmp_path).check()
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("WRONG")]
    assert json.loads(line.removeprefix("WRONG ")) == [{}] * ranks
    # Only rank 0's are left.
    with h5py.File(tmp_path / "shared.h5") as file:
        assert file["x"][0] == 4
    assert len(list(tmp_path.glob("own*"))) == 1


HELD = """
import sys
import netCDF4

class Held:
    def __init__(self, one):
        self.one, self.me = one, self

# Python frees it with the library's own names.
netCDF4.held = Held(netCDF4.Dataset(sys.argv[1]))
"""


def test_a_file_that_nobody_closes_ends_no_run_with_an_error(tmp_path):
    netCDF4 = pytest.importorskip("netCDF4")
    netCDF4.Dataset(tmp_path / "a.nc", "w").close()
    ended = launch.run(2, HELD, str(tmp_path / "a.nc"), cold=True).check()
    assert "AttributeError" not in ended.output and "excepthook" not in ended.output


TRACED = """
import sys
import tensorflow as tf
import matex_tf
from matex_tf.runtime import real_files

world = sys.modules["matex_tf.world.world"]
is_first = world.get_world().rank == int(sys.argv[1])
read = tf.function(tf.io.read_file, autograph=False).get_concrete_function(tf.TensorSpec([], tf.string))

def wait():  # without a collective, after which the ranks would be at another place of the script
    with real_files.use_real_files():
        world.get_communicator("control").barrier()

wait()
if not is_first:
    wait()
for text in ("one", "two"):
    with open("file", "w") as file:
        file.write(text)
    assert read(tf.constant("file")).numpy().decode() == text
if is_first:
    wait()
"""


@pytest.mark.parametrize("first", [0, 1])
def test_a_graph_reads_what_a_rank_has_written_since_it_was_traced(first, tmp_path):
    launch.run(2, TRACED, first, cwd=tmp_path).check()
    assert (tmp_path / "file").read_text() == "two"


MAPPED = """
import importlib, sys, time
import pyarrow

objects = importlib.import_module("matex_tf.runtime.objects")
rank = importlib.import_module("matex_tf.world.world").get_world().rank
real_files = importlib.import_module("matex_tf.runtime.real_files")
path = sys.argv[1]

def write(text):
    with pyarrow.memory_map(path, "r+") as file:
        file.write(text)

if rank == 0:
    write(b"0")
else:
    with real_files.use_real_files():
        while open(path, "rb").read() != b"0":
            time.sleep(0.01)
    assert open(path, "rb").read() == b"x"
    assert pyarrow.memory_map(path).read() == b"x"
objects.allgather(None, "rank 0 has written")
if rank == 1:
    write(b"1")
    assert pyarrow.memory_map(path=path).read() == b"1"
"""


def test_a_file_that_ranks_map_to_write_it_is_rank_0s(tmp_path):
    file = tmp_path / "mapped"
    file.write_bytes(b"x")
    launch.run(2, MAPPED, str(file)).check()
    assert file.read_bytes() == b"0"


WRITTEN = """
import importlib, sys, time
import pyarrow, pyarrow.csv, pyarrow.feather, pyarrow.orc
import tensorflow as tf

objects = importlib.import_module("matex_tf.runtime.objects")
rank = importlib.import_module("matex_tf.world.world").get_world().rank
real_files = importlib.import_module("matex_tf.runtime.real_files")
table = pyarrow.table({"x": [1]})
kinds = {
    "csv": lambda path: pyarrow.csv.write_csv(table, path),
    "feather": lambda path: pyarrow.feather.write_feather(table, path),
    "orc": lambda path: pyarrow.orc.write_table(table, path),
    "cache": lambda path: list(tf.data.Dataset.range(3).cache(path)),
}
folder = sys.argv[1]
if rank == 0:
    for kind, write in kinds.items():
        write(f"{folder}/{kind}")
    with real_files.use_real_files():
        open(f"{folder}/over", "w").close()
else:
    with real_files.use_real_files():
        while not tf.io.gfile.exists(f"{folder}/over"):
            time.sleep(0.01)
    for kind in kinds:
        assert not any(tf.io.gfile.exists(f"{folder}/{kind}{end}") for end in ("", ".index")), kind
objects.allgather(None, "rank 0 has written")
"""


def test_a_rank_that_is_behind_does_not_see_what_rank_0_has_written_since(tmp_path):
    launch.run(2, WRITTEN, tmp_path).check()
    assert {"csv", "feather", "orc"} <= {path.name for path in tmp_path.iterdir()}
