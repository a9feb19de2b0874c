"""DataSet under mpirun: each rank reads its share, batches have the rows of all, and errors are raised on all."""

import gzip
import io
import random
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

import launch
from matex_tf.readers.base import files

SAMPLE = Path(__file__).parent.parent.parent / "examples" / "data" / "mnist"

# Each rank opens the folder of its own number where there is one. `agreed` shows every rank's outcome on rank 0.
SCRIPT = """
import os, sys, tempfile
import numpy as np
import matex_tf
from matex_tf.sharding import slice_bounds
from matex_tf.runtime import objects
from matex_tf.world import world
from matex_tf.readers import DataSet

common, archive, folders = sys.argv[1], sys.argv[2], sys.argv[3:]
rank, size = matex_tf.rank(), matex_tf.size()

def outcome(folder):
    try:
        data = DataSet("MNIST", folder)
        return "read " + str([len(getattr(data, name)) for name in ("training_data", "testing_data")])
    except Exception as error:
        return f"{type(error).__name__}: {error}"

data = DataSet("MNIST", common)
expected = slice_bounds.deal_block(4000, rank, size)
assert (data.local_slice.start, data.local_slice.stop) == expected
whole = np.load(os.path.join(common, "mnist.npz"))
assert np.array_equal(data.training_data, whole["x_train"][slice(*expected)])
assert np.array_equal(data.testing_labels, whole["y_test"][slice(*slice_bounds.deal_block(1000, rank, size))])
# Eager code sees whole batches: every row once, those of each rank in their order, the same on all ranks.
def rows_of(x, y):
    return [(one.tobytes(), int(label)) for one, label in zip(x, y)]
taken = [data.next_train_batch(1501) for _ in range(3)]
assert [len(x) for x, _ in taken] == [1501, 1501, 998]
found = [row for x, y in taken for row in rows_of(x, y)]
everything = rows_of(whole["x_train"], whole["y_train"])
assert sorted(found) == sorted(everything)
mine = set(everything[slice(*expected)])
assert [row for row in found if row in mine] == everything[slice(*expected)]
assert len(set(objects.allgather(hash(tuple(found)), "hashes"))) == 1

# An archive is unpacked by one rank of the host; none of it stays.
data, alone = DataSet(archive), DataSet(archive, rank=rank, size=size)
for name in ("training_data", "training_labels", "testing_data", "testing_labels"):
    assert np.array_equal(getattr(data, name), getattr(alone, name)), name
assert sum(objects.allgather(len(data._source.format._unpacked), "files")) == 6
kept = f"matex_tf-{os.getuid()}"  # of compiled ops, where another test has no home
left = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("matex_tf-") and name != kept]
assert not [name for name in left if "-" not in name[9:]], left

for folder in folders:
    mine = f"{folder}-{rank}"
    for rank_, text in enumerate(objects.allgather(outcome(mine if os.path.isdir(mine) else folder), "outcomes")):
        print(f"{os.path.basename(folder)} on rank {rank_}: {text}")
print("done")
"""


@pytest.fixture
def folders(tmp_path):
    """Folders that are wrong on rank 1 alone: a missing file, a header cut short, data cut short, other data."""
    made = []
    for name in ("missing", "header", "data", "other"):
        good, bad = tmp_path / name, tmp_path / f"{name}-1"
        for folder in (good, bad):
            folder.mkdir()
            for file in SAMPLE.glob("*.gz"):
                shutil.copy(file, folder)
        made.append(good)
        images = bad / "train-images-idx3-ubyte.gz"
        if name == "missing":
            images.unlink()
        elif name == "header":
            images.write_bytes(images.read_bytes()[:12])
        elif name == "data":
            # The first bytes and the size, which are compared at once, stay as they are.
            content = bytearray(images.read_bytes())
            content[len(content) // 3 :] = random.Random(0).randbytes(len(content) - len(content) // 3)
            images.write_bytes(content)
        else:
            for field in ("images-idx3", "labels-idx1"):
                shutil.copy(bad / f"t10k-{field}-ubyte.gz", bad / f"train-{field}-ubyte.gz")
    return made


@pytest.fixture
def archive(tmp_path):
    """The binary CIFAR-10 as downloaded, of 4 images a file."""
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = 4 * 3073
            tar.addfile(member, io.BytesIO(random.Random(name).randbytes(member.size)))
    return tmp_path / "cifar-10-binary.tar.gz"


@pytest.mark.parametrize("size", (2, 3))
def test_an_error_on_one_rank_is_raised_on_all(folders, archive, size):
    output = launch.run(size, SCRIPT, SAMPLE, archive, *folders).check().stdout
    assert "done" in output
    lines = output.splitlines()
    for name, rank_one, others in (
        ("missing", "FileNotFoundError", "failed on rank 1"),
        ("header", "ReaderError", "failed on rank 1"),
        ("data", "ReaderError", "failed on rank 1"),
        ("other", "ReaderError", "the ranks see different files"),
    ):
        found = [line for line in lines if line.startswith(f"{name} on rank")]
        assert len(found) == size
        for rank, line in enumerate(found):
            assert line.startswith(f"{name} on rank {rank}: {rank_one if rank == 1 else 'ReaderError'}")
            assert "train" in line
            assert (rank == 1 and name != "other") or others in line


@pytest.mark.parametrize("ending", ("gz", "zip"))
def test_files_packed_at_other_times_are_the_same_to_the_ranks(tmp_path, ending):
    def pack(folder, text, year):
        path = tmp_path / folder / f"table.csv.{ending}"
        path.parent.mkdir()
        if ending == "gz":
            path.write_bytes(gzip.compress(text, mtime=year))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(zipfile.ZipInfo("table.csv", (year, 1, 1, 0, 0, 0)), text)
        return files.compute_fingerprint([path])

    first = pack("first", b"x,y\n1,2\n", 2000)
    assert pack("later", b"x,y\n1,2\n", 2020) == first
    assert pack("other", b"x,y\n1,3\n", 2000) != first
