"""CIFAR: the binary and the Python version give the same rows, and a hostile pickle runs nothing."""

import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest

from matex_tf.readers import DataSet, ReaderError
from matex_tf.readers.images import plain_pickles

random = np.random.default_rng(0)
IMAGES = random.integers(0, 256, (24, 32, 32, 3), np.uint8)
FINE, COARSE = random.integers(0, 100, 24), random.integers(0, 20, 24)
TEN = {f"data_batch_{n}": slice(4 * n - 4, 4 * n) for n in range(1, 6)} | {"test_batch": slice(20, 24)}
HUNDRED = {"train": slice(0, 20), "test": slice(20, 24)}


def stored(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2).reshape(len(images), 3072))


def binary(folder, files, labels):
    folder.mkdir(parents=True)
    for name, rows in files.items():
        columns = [label[rows, None].astype(np.uint8) for label in labels]
        (folder / f"{name}.bin").write_bytes(np.concatenate([*columns, stored(IMAGES[rows])], axis=1).tobytes())
    return folder


def python2(rows, labels):
    """A batch as Python 2 wrote the published ones: protocol 2, bytes as str."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    data = stored(IMAGES[rows]).tobytes()
    count = struct.pack("<H", len(IMAGES[rows]))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR(K\x01M" + count
        + b"M\x00\x0c\x86cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ"
        + b"\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(data)) + data + b"tb"
    )  # fmt: skip
    lists = b"".join(
        text(name) + b"](" + b"".join(b"K" + bytes([value]) for value in label[rows]) + b"e"
        for name, label in labels.items()
    )
    return b"\x80\x02}(" + text(b"data") + array + lists + text(b"batch_label") + text(b"one of five") + b"u."


def pickled(folder, files, labels, protocol=None):
    folder.mkdir(parents=True)
    for name, rows in files.items():
        if protocol is None:
            content = python2(rows, {key.encode(): value for key, value in labels.items()})
        else:
            lists = {key.encode(): value[rows].tolist() for key, value in labels.items()}
            content = pickle.dumps({b"data": stored(IMAGES[rows]), **lists}, protocol)
        (folder / name).write_bytes(content)
    return folder


def check(name, path, expected, **options):
    for size in (1, 2, 3, 30):
        shares = [DataSet(name, path, rank=rank, size=size, **options) for rank in range(size)]
        for part, rows in (("training", slice(0, 20)), ("testing", slice(20, 24))):
            found = np.concatenate([getattr(share, f"{part}_data") for share in shares])
            np.testing.assert_array_equal(found, IMAGES[rows])
            found = np.concatenate([getattr(share, f"{part}_labels") for share in shares])
            np.testing.assert_array_equal(found, expected[rows])


@pytest.mark.parametrize("protocol", [None, 0, 1, 2, 3, 4, 5])
def test_python_versions(tmp_path, protocol):
    if protocol == 0:
        with pytest.raises(ReaderError, match="plain values"):  # text of Python's own, not how archives are written
            check("CIFAR10", pickled(tmp_path / "ten", TEN, {"labels": COARSE}, protocol), COARSE)
        return
    check("CIFAR10", pickled(tmp_path / "ten", TEN, {"labels": COARSE}, protocol), COARSE)
    both = {"coarse_labels": COARSE, "fine_labels": FINE}
    folder = pickled(tmp_path / "hundred", HUNDRED, both, protocol)
    check("CIFAR100", folder, FINE)
    check("cifar100", folder, COARSE, labels="coarse")


def test_binary_versions_and_the_folder_above(tmp_path):
    binary(tmp_path / "a" / "cifar-10-batches-bin", TEN, [COARSE])
    check("CIFAR10", tmp_path / "a", COARSE)
    assert DataSet(tmp_path / "a", rank=0, size=1).global_size == 20
    folder = binary(tmp_path / "b", HUNDRED, [COARSE, FINE])
    check("CIFAR100", folder, FINE)
    check("CIFAR100", folder, COARSE, labels="coarse")
    assert DataSet(folder, rank=0, size=1).global_size == 20


def archived(folder, inside, path):
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, inside)
    return path


def test_archives_as_downloaded(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    folder = pickled(tmp_path / "py", TEN, {"labels": COARSE})
    (folder / "readme.html").write_text("a page")
    path = archived(folder, "cifar-10-batches-py", tmp_path / "cifar-10-python.tar.gz")
    check("CIFAR10", path, COARSE)
    assert DataSet(path, rank=1, size=2).global_size == 20
    folder = binary(tmp_path / "bin", HUNDRED, [COARSE, FINE])
    (tmp_path / "downloads").mkdir()
    archived(folder, "cifar-100-binary", tmp_path / "downloads" / "cifar-100-binary.tar.gz")
    check("CIFAR100", tmp_path / "downloads", FINE)
    check("CIFAR100", tmp_path / "downloads", COARSE, labels="coarse")
    assert DataSet(tmp_path / "downloads", rank=0, size=1).global_size == 20
    with tarfile.open(tmp_path / "plain.tar", "w") as tar:
        tar.add(folder, "x")
    check("CIFAR100", tmp_path / "plain.tar", FINE)
    assert not list((tmp_path / "temporary").iterdir())


def test_wrong_archives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    path = archived(binary(tmp_path / "bin", HUNDRED, [COARSE, FINE]), "cifar-100-binary", tmp_path / "a.tar.gz")
    good = path.read_bytes()
    for length in (*range(0, 600, 7), *range(600, len(good), 1999), len(good) - 1):
        path.write_bytes(good[:length])
        failing(path, "a.tar.gz", ReaderError, "CIFAR100")
    path.write_bytes(good[: len(good) // 2] + bytes(9) + good[len(good) // 2 + 9 :])
    failing(path, "a.tar.gz: truncated or damaged", ReaderError, "CIFAR100")
    failing(
        tmp_path / "none.tar.gz", "expected cifar-100-binary.tar.gz or .*found nothing", FileNotFoundError, "CIFAR100"
    )
    path.write_bytes(good)
    failing(path, "expected data_batch_1, .* the archive .*a.tar.gz contains nothing")
    # Names that lead elsewhere, links and devices are passed over.
    with tarfile.open(path, "w:gz") as tar:
        for name, kind in (
            ("../train.bin", tarfile.SYMTYPE),
            ("/test.bin", tarfile.FIFOTYPE),
            ("x/train", tarfile.LNKTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    failing(path, "a.tar.gz contains nothing", ReaderError, "CIFAR100")
    assert not list((tmp_path / "temporary").iterdir())
    assert not (tmp_path.parent / "train.bin").is_symlink()


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_runs_nothing(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_bytes(pickle.dumps({b"data": Hostile(), b"labels": [1]}, protocol))
    with pytest.raises(ReaderError, match="found"):
        plain_pickles.load_pickle((tmp_path / "bad").open("rb"), "bad")
    assert not (tmp_path / "ran").exists()


def nested(levels):
    """Steps that build a tuple of one value twice, that value again one of one value twice, and so on."""
    return b"K\x00" + b"".join(b"r" + struct.pack("<I", level) + b"0" + 2 * (b"j" + struct.pack("<I", level)) + b"\x86"
                              for level in range(levels))  # fmt: skip


def array(content=b"C\x01x", dtype=b"\x8c\x02u1", shape=b"K\x01M\x00\x0c\x86"):
    made = b"cnumpy.core.numeric\n_frombuffer\n(" + content + b"cnumpy\ndtype\n" + dtype + b"\x85R" + shape
    return b"}(\x8c\x04data" + made + b"\x8c\x01CtR\x8c\x06labels](K\x01eu."


@pytest.mark.parametrize(
    "program, found",
    [
        (nested(20) + nested(20) + b"\x93)R.", "STACK_GLOBAL requires str"),
        (b"c_codecs\nencode\n\x8c\x01x" + nested(20) + b"\x86R.", "instead of Latin-1"),
        (b"cbuiltins\n" + 4000 * b"f" + b"\n)R.", "a call of builtins.fff"),
        (b"}(\x8c\x06labels](" + nested(20) + b"eu.", "list of 64-bit integers"),
        (b"}(\x8c\x06labels](\x8a\x09" + bytes(8) + b"\x01eu.", "list of 64-bit integers"),
        (b"}(X\x00\x0f\x00\x00" + 3840 * b"k" + b"K\x00u.", "the pickle has kkk"),
        (array(dtype=nested(20)), r"found \(\("),
        (array(shape=nested(20)), r"found u1 of shape \(\("),
        (array(content=nested(20)), r"expected bytes of images, found \(\("),
        (array(content=b"K\x07"), "expected bytes of images, found 7"),
        (b"}(" + b"".join(b"J" + struct.pack("<i", key) + b"N" for key in range(1001)) + b"u.", "at most 1000 keys"),
        (b"\x8f(" + nested(20) + b"\x90.", "KeyError: 143"),  # a set would hash the value
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_pickle_is_not_written_out(tmp_path, program, found):
    """A few bytes nest a value in itself, and as text it is twice as long with each."""
    folder = pickled(tmp_path / "py", TEN, {"labels": COARSE}, 4)
    (folder / "data_batch_3").write_bytes(program)
    with pytest.raises(ReaderError, match=found) as error:
        DataSet("CIFAR10", folder, rank=0, size=1)
    assert len(str(error.value)) < 600 + len(str(folder))


def test_a_text_that_is_kept_is_not_encoded_again_and_again():
    again = b"0c_codecs\nencode\nh\x00h\x01\x86R"
    program = b"X\x00\x10\x00\x00" + 4096 * b"x" + b"q\x00\x8c\x06latin1q\x01"
    assert plain_pickles.load_pickle(io.BytesIO(program + again + b"."), "once") == 4096 * b"x"
    with pytest.raises(ReaderError, match="encoded texts of more than"):
        plain_pickles.load_pickle(io.BytesIO(program + 2 * again + b"."), "again")


def failing(path, match, error=ReaderError, name="CIFAR10", **options):
    with pytest.raises(error, match=match):
        DataSet(name, path, rank=0, size=1, **options)


def test_wrong_files(tmp_path):
    folder = binary(tmp_path / "bin", TEN, [COARSE])
    (folder / "test_batch.bin").write_bytes((folder / "test_batch.bin").read_bytes()[:-1])
    failing(folder, "test_batch.bin: truncated: expected a number of records of 3073 bytes, .*3 records and 3072 bytes")
    (folder / "test_batch.bin").unlink()
    failing(folder, "expected data_batch_1.*with .bin .*folder holds data_batch_1.bin", FileNotFoundError)
    failing(tmp_path / "bon", "found nothing there .*; near names in .* are bin", FileNotFoundError)
    folder = pickled(tmp_path / "py", TEN, {"labels": COARSE}, 4)
    good = (folder / "data_batch_3").read_bytes()
    for length in (*range(60), *range(60, len(good), 997)):
        (folder / "data_batch_3").write_bytes(good[:length])
        failing(folder, "data_batch_3: (truncated|not a pickle)")
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": stored(IMAGES[:4]), b"labels": [1, 2]}))
    failing(folder, r"as many rows as labels, found u1 of shape \(4, 3072\)")
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": stored(IMAGES[:4])}))
    failing(folder, "list of 64-bit integers under 'labels', found None; the pickle has data")
    failing(folder, 'labels of CIFAR100 have to be "fine" or "coarse"', ValueError, "CIFAR100", labels="middle")


@pytest.mark.parametrize(
    "program",
    [
        b"]" + b"".join(b"p%d\n" % (key * (2**61 - 1)) for key in range(3)) + b".",
        b"(" + 9 * b"N" + b"tq\x000cnumpy\ndtype\nh\x00R.",
        b"c_codecs\nencode\n}\x8c\x01aK\x01sb.",
    ],
    ids=["numbers that collide", "a call with many arguments", "a state for a function"],
)
def test_a_pickle_takes_time_in_proportion_to_its_length(program):
    with pytest.raises(ReaderError, match="not a pickle of plain values"):
        plain_pickles.load_pickle(io.BytesIO(program), "bad")
