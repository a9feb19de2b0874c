"""DataSet: shares without mpirun, global batches, and errors for people."""

import gzip
import shutil
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import launch
from matex_tf.readers import DataSet, Format, ReaderError, register
from matex_tf.readers.rows import scaling
from matex_tf.sharding.apportion import apportion_rows
from matex_tf.sharding.shard_arrays import is_shard

SAMPLE = Path(__file__).parent.parent.parent / "examples" / "data" / "mnist"
FIELDS = {
    "training_data": "x_train",
    "training_labels": "y_train",
    "testing_data": "x_test",
    "testing_labels": "y_test",
}


@pytest.fixture
def folder(tmp_path):
    for file in SAMPLE.glob("*.gz"):
        shutil.copy(file, tmp_path)
    return tmp_path


@register("COUNTING")
class Counting(Format):
    """Rows that are their own numbers; remembers which were read."""

    own_testing = True

    def __init__(self, path, rows=10):
        self.rows, self.asked = rows, []

    def count(self, part):
        return self.rows

    def read(self, part, field, start, stop):
        self.asked.append((part, field, start, stop))
        return np.arange(start, stop) * (1 if field == "data" else 10)

    def describe(self):
        return f"{self.rows} rows"


@pytest.mark.parametrize("size", (1, 2, 3, 7))
def test_the_shares_of_the_sample_are_the_sample(size):
    whole = np.load(SAMPLE / "mnist.npz")
    shares = [DataSet("mnist", SAMPLE, rank=rank, size=size) for rank in range(size)]
    for attribute, name in FIELDS.items():
        parts = [getattr(share, attribute) for share in shares]
        assert all(is_shard(part) and part.dtype == np.uint8 for part in parts)
        np.testing.assert_array_equal(np.concatenate(parts), whole[name])
    for share in shares:
        assert share.global_size == 4000
        np.testing.assert_array_equal(whole["y_train"][share.local_slice], share.training_labels)


def test_normalize_scales_data_and_not_labels():
    share = DataSet("MNIST", SAMPLE, rank=1, size=400, normalize=True)
    whole = np.load(SAMPLE / "mnist.npz")
    assert share.training_data.dtype == np.float32 and is_shard(share.training_data)
    np.testing.assert_allclose(share.training_data, whole["x_train"][10:20] / 255.0, rtol=1e-6)
    assert share.training_labels.dtype == np.uint8


def test_no_training_rows_have_no_deviation():
    with pytest.raises(ValueError, match="there are none"):
        scaling.make_standard([None, None])


@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize("packed", [False, True])
def test_the_usual_names(folder, separator, packed):
    for file in list(folder.glob("*.gz")):
        content = file.read_bytes()
        name = file.name.replace("-idx", separator + "idx")
        file.unlink()
        if packed:
            (folder / name).write_bytes(content)
        else:
            (folder / name[:-3]).write_bytes(gzip.decompress(content))
    data = DataSet("MNIST", str(folder), rank=0, size=4)
    np.testing.assert_array_equal(data.testing_data, np.load(SAMPLE / "mnist.npz")["x_test"][:250])


def test_data_are_read_at_first_use_once_and_only_the_share():
    data = DataSet("COUNTING", "nowhere", rank=1, size=3)
    asked = data._source.format.asked
    assert asked == []
    data.training_labels  # noqa: B018
    data.training_labels  # noqa: B018
    data.next_train_batch(4)
    assert asked == [("training", "labels", 4, 7), ("training", "data", 4, 7)]


@pytest.mark.parametrize("rows", (1, 2, 5, 10, 31))
@pytest.mark.parametrize("size", (1, 2, 3, 4))
@pytest.mark.parametrize("batch", (1, 3, 4, 100))
def test_batches_use_every_row_once_an_epoch(rows, size, batch):
    ranks = [DataSet("COUNTING", "", rank=rank, size=size, rows=rows) for rank in range(size)]
    counts = [len(data.training_data) for data in ranks]
    for _epoch in range(3):
        seen, before = [], [0] * size
        for step in range(-(-rows // batch)):
            after = apportion_rows(counts, (step + 1) * batch)
            own, before = [b - a for a, b in zip(before, after, strict=True)], after
            for data, expected in zip(ranks, own, strict=True):
                x, y = data.next_train_batch(batch)
                assert is_shard(x) and is_shard(y)
                assert len(x) == max(1, expected)
                np.testing.assert_array_equal(y, 10 * x)
                seen += x[:expected].tolist()
        assert sorted(seen) == list(range(rows))


def test_batches_of_changing_size_alone():
    data = DataSet("COUNTING", "", rank=0, size=1)
    assert [data.next_train_batch(n)[0].tolist() for n in (3, 1, 20, 2)] == [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9], [0, 1]]
    with pytest.raises(ValueError, match="given 0"):
        data.next_train_batch(0)


def test_repr_is_short_and_says_whose_rows():
    assert repr(DataSet("COUNTING", "here", rank=1, size=3)) == (
        "DataSet('COUNTING', 'here'): 10 training and 10 testing rows, rank 1 of 3 holds training rows 4 to 7"
    )


def test_missing_files_say_what_was_looked_for(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        DataSet("MNIST", folder, rank=0, size=1)
    for word in (str(folder), "testing labels", "t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte", "train-images"):
        assert word in str(caught.value)
    with pytest.raises(FileNotFoundError, match="expected a folder with the MNIST files, found nothing"):
        DataSet("MNIST", folder / "none", rank=0, size=1)
    with pytest.raises(FileNotFoundError, match="found nothing there .*; near names in .* are train-labels"):
        DataSet("MNIST", folder / "train-labels", rank=0, size=1)
    with pytest.raises(FileNotFoundError, match="found a file"):
        DataSet("MNIST", folder / "train-labels-idx1-ubyte.gz", rank=0, size=1)


def test_different_counts_name_both_files(folder):
    shutil.copy(folder / "t10k-labels-idx1-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    with pytest.raises(ReaderError, match=r"4000 images in .*train-images.* and 1000 labels in .*train-labels"):
        DataSet("MNIST", folder, rank=0, size=1)


def test_wrong_arguments_name_the_right_ones():
    with pytest.raises(ValueError, match="no format 'MINST'; the formats are .*MNIST"):
        DataSet("MINST", SAMPLE, rank=0, size=1)
    with pytest.raises(TypeError, match="no option 'labels'; it has no options"):
        DataSet("MNIST", SAMPLE, rank=0, size=1, labels="y")
    with pytest.raises(TypeError, match="no option 'columns'; its options are rows"):
        DataSet("COUNTING", "", rank=0, size=1, columns=2)
    with pytest.raises(ValueError, match="rank=2, size=2"):
        DataSet("MNIST", SAMPLE, rank=2, size=2)


def test_the_format_of_the_documentation(tmp_path):
    """The example in docs/readers.md, with all that a DataSet makes of it."""
    text = (Path(__file__).parent.parent.parent / "docs" / "readers.md").read_text()
    block = text[
        text.index("    import numpy as np\n    from matex_tf.readers") : text.index('    data = DataSet("NPY"')
    ]
    exec(textwrap.dedent(block), {})
    x, y = np.arange(30.0).reshape(10, 3), np.arange(10)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    shares = [DataSet("NPY", tmp_path, test_fraction=0.2, mmap=False, rank=rank, size=3) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate([share.training_data for share in shares]), x[:8])
    np.testing.assert_array_equal(np.concatenate([share.testing_labels for share in shares]), y[8:])
    windows = DataSet("NPY", tmp_path, window=4, rank=0, size=1)
    np.testing.assert_array_equal(windows.training_labels[:, 0], y[4:])
    x[4, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ReaderError, match=r"row 4 of the training data, element \[1\] of it: .*missing value"):
        DataSet("NPY", tmp_path, rank=1, size=2, distribution="cyclic").training_data  # noqa: B018
        DataSet("NPY", tmp_path, rank=0, size=2, distribution="cyclic").training_data  # noqa: B018
    np.save(tmp_path / "y.npy", y[:5])
    with pytest.raises(ReaderError, match="expected as many labels as rows"):
        DataSet("NPY", tmp_path, rank=0, size=1)
    with pytest.raises(ValueError, match="validation_fraction= cuts some from the file's"):
        DataSet("COUNTING", "", rows=10, rank=0, size=1).validation_data  # noqa: B018


def test_libraries_are_imported_when_a_reader_needs_them():
    names = "{'h5py', 'netCDF4', 'pyarrow', 'tensorflow', 'zarr'}"
    check = f"import sys, matex_tf.readers; print({names} & set(sys.modules))"
    assert launch.execute([sys.executable, "-c", check], launch.environment(), 60).check().stdout.strip() == "set()"


def test_a_package_that_is_not_there_is_named(monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / ".zgroup").write_text("{}")
    for package in ("pyarrow", "zarr"):
        monkeypatch.setitem(sys.modules, package, None)
    for name, options in (("CSV", {"labels": "b"}), ("PARQUET", {}), ("ZARR", {"data": "x"})):
        file = f"a.{name.lower()}"
        with pytest.raises(ReaderError, match=rf"{file}: the format {name} .* `pip install netCDF4 h5py pyarrow zarr`"):
            DataSet(name, tmp_path / file, **options)
