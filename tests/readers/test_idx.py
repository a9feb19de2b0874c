"""IDX files: any type and rank, plain and gzipped, and every way of being wrong."""

import gzip
import re
import struct

import numpy as np
import pytest
from peak_memory import peak_of

from matex_tf.readers import ReaderError
from matex_tf.readers.images.idx import IdxFile
from matex_tf.sharding.shard_arrays import is_shard

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """The array as an IDX file."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[array.dtype.str[1:]], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, content, packed):
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("shape", [(1,), (9,), (7, 3), (5, 2, 3), (4, 1, 2, 3)])
def test_rows_are_those_written(tmp_path, dtype, shape, packed):
    random = np.random.default_rng(0)
    array = (random.standard_normal(shape) * 100).astype(dtype)
    # The name says nothing of gzip: the content does.
    file = IdxFile(write(tmp_path / "file", idx_bytes(array), packed))
    assert file.shape == shape
    for start in range(shape[0] + 1):
        for stop in range(start, shape[0] + 1):
            rows = file.read_items(start, stop)
            np.testing.assert_array_equal(rows, array[start:stop])
            assert rows.dtype == np.dtype(dtype) and rows.dtype.isnative
            assert is_shard(rows) and is_shard(np.asarray(rows))


def last_quarter(path):
    return IdxFile(path).read_items(30, 40)


@pytest.mark.parametrize("packed", [False, True])
def test_a_share_costs_only_its_own_memory(tmp_path, packed):
    array = np.zeros((40, 512, 1024), np.uint8)
    path = write(tmp_path / "file", idx_bytes(array), packed)
    assert peak_of(last_quarter, path) < 1.3 * last_quarter(path).nbytes + (4 << 20)


def test_plain_files_truncated_at_any_byte(tmp_path):
    content = idx_bytes(np.arange(6, dtype=np.int16).reshape(3, 2))
    for length in range(len(content)):
        path = write(tmp_path / "file", content[:length], False)
        with pytest.raises(ReaderError, match=re.escape(str(path)) + ".*expected.*found"):
            IdxFile(path)


def test_gzip_files_truncated_at_any_byte(tmp_path):
    array = np.random.default_rng(1).integers(0, 255, (30, 5), np.uint8)
    packed = gzip.compress(idx_bytes(array))
    for length in range(len(packed)):
        path = tmp_path / "file"
        path.write_bytes(packed[:length])
        with pytest.raises(ReaderError, match=re.escape(str(path)) + ".*expected.*found"):
            IdxFile(path).read_items(15, 30)


def test_truncated_before_packing(tmp_path):
    content = idx_bytes(np.zeros((10, 4), np.uint8))
    file = IdxFile(write(tmp_path / "file", content[:-6], True))
    assert len(file.read_items(0, 8)) == 8
    with pytest.raises(ReaderError, match="expected 10 items, found 8 complete ones"):
        file.read_items(5, 10)
    with pytest.raises(ReaderError, match="expected 10 items, found 8 complete ones"):
        file.read_items(9, 10)


@pytest.mark.parametrize("packed", [False, True])
def test_too_long(tmp_path, packed):
    path = write(tmp_path / "file", idx_bytes(np.zeros(10, np.uint8)) + b"x", packed)
    with pytest.raises(ReaderError, match="too long: expected 1"):
        IdxFile(path).read_items(0, 10)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("magic", [b"\0\0\x07\x01", b"\0\0\x08\0", b"\x01\0\x08\x01", b"\x89PNG", b"\0\0\x0f\x03"])
def test_wrong_magic(tmp_path, packed, magic):
    path = write(tmp_path / "file", magic + bytes(20), packed)
    with pytest.raises(ReaderError, match="wrong magic number: expected.*found " + magic.hex(" ")):
        IdxFile(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(0,), (0, 28, 28), (5, 0)])
def test_zero_items(tmp_path, packed, shape):
    path = write(tmp_path / "file", idx_bytes(np.zeros(shape, np.uint8)), packed)
    with pytest.raises(ReaderError, match="zero items.*" + " x ".join(map(str, shape))):
        IdxFile(path)


def test_a_header_that_asks_for_more_than_gzip_can_hold(tmp_path):
    path = write(tmp_path / "file", struct.pack(">BBBB2I", 0, 0, 8, 2, 2**32 - 1, 2**32 - 1), True)
    with pytest.raises(ReaderError, match="can hold"):
        IdxFile(path)


@pytest.mark.parametrize("packed", [False, True])
def test_changed_bytes_are_an_error_or_the_right_rows(tmp_path, packed):
    array = np.random.default_rng(2).integers(0, 255, (50, 3), np.uint8)
    good = gzip.compress(idx_bytes(array)) if packed else idx_bytes(array)[:12]
    random = np.random.default_rng(3)
    for _ in range(500):
        bad = bytearray(good)
        bad[random.integers(len(bad))] ^= 1 << random.integers(8)
        path = tmp_path / "file"
        path.write_bytes(bytes(bad) + (b"" if packed else idx_bytes(array)[12:]))
        try:
            rows = IdxFile(path).read_items(10, 50)
        except ReaderError as error:
            assert str(path) in str(error)
        else:
            assert rows.tobytes() == array[10:].tobytes()
