"""The CIFAR-10 and CIFAR-100 formats: binary or Python version, extracted or as the downloaded archive.

A batch is one file of the data set, such as data_batch_1.bin. The binary version stores records: one byte for each
label, then 3072 bytes for the image. The Python version stores pickles. When the data set is opened, one rank of each
host extracts an archive, and converts pickles to temporary files of records.
"""

from __future__ import annotations

import functools
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from matex_tf.readers.base import agreement, files
from matex_tf.readers.base.formats import Format, Ranks, ReaderError, Survey, register, split_range
from matex_tf.readers.base.stored import StoredFiles
from matex_tf.readers.base.unpacking import PIECE_BYTES, Unpack, create_temporary, share_unpacked
from matex_tf.readers.images import archives
from matex_tf.readers.images.plain_pickles import Array, Dtype, load_pickle
from matex_tf.sharding.shard_arrays import ShardArray

_PIXELS = 3 * 32 * 32
_PIECE_ROWS = 1024
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")


class _Cifar(Format):
    """Images of shape (rows, 32, 32, 3), uint8, channels RGB; labels of shape (rows,), int64.

    The path is the extracted folder, its parent folder, or the archive.
    """

    own_testing = True
    list_names: dict[str, list[str]]  # the batches of each part
    label_names: tuple[str, ...]
    archives: tuple[str, ...]

    def _open_path(self, path: str | PathLike[str], label: int) -> None:
        self._label, self._path = label, Path(files.decode_path(path))
        self._record = len(self.label_names) + _PIXELS
        self._batches = [name for names in self.list_names.values() for name in names]
        self._rows: list[int] = []  # of each batch
        self._tasks: list[Unpack] = []  # what one rank of a host does before batches can be read
        archive = self._find_archive()
        if archive is not None:
            self.files, self._tasks = [archive], [functools.partial(self._extract_batches, archive)]
            return
        inner = [self._path / name for name in _FOLDERS if (self._path / name).is_dir()]
        self.files = next(filter(None, map(self._find_batches, (self._path, *inner))), [])
        if not self.files:
            raise FileNotFoundError(
                f"{self._describe_expected()}; the folder holds {files.format_names(os.listdir(self._path))}"
            )
        if self.files[0].suffix == ".bin":
            self._open_batches(self.files, {})
        else:
            self._tasks = [functools.partial(self._convert_pickle, file) for file in self.files]

    def _find_archive(self) -> Path | None:
        """The archive to read; None if its files are already extracted."""
        if self._path.is_dir():
            names = (*_FOLDERS, *self._batches, *(f"{name}.bin" for name in self._batches))
            if any((self._path / name).exists() for name in names):
                return None
            return next((self._path / name for name in self.archives if (self._path / name).is_file()), None)
        if self._path.is_file():
            return self._path
        raise FileNotFoundError(
            f"{self._path}: expected {' or '.join(self.archives)}, or the folder of the unpacked archive, found "
            f"nothing there (from {os.getcwd()}){files.describe_near(self._path)}"
        )

    def _describe_expected(self) -> str:
        return (
            f"{self._path}: expected {', '.join(self._batches)}, all of them with .bin (binary version) or all without "
            f"(Python version), or {' or '.join(self.archives)}"
        )

    def _find_batches(self, folder: Path) -> list[Path]:
        """The files of all batches in a folder; [] if one is missing."""
        for ending in (".bin", ""):
            found = [folder / (name + ending) for name in self._batches]
            if all(file.is_file() for file in found):
                return found
        return []

    def survey(self, ranks: Ranks, keep: bool) -> Survey:
        if self._tasks:
            opened = yield from share_unpacked(self._tasks, ranks)
            missing = [name for name in self._batches if name not in opened]
            if missing:
                raise ReaderError(
                    f"{self._describe_expected()}; the archive {self.files[0]} contains {files.format_names(opened)}"
                )
            self._open_batches(self._batches, opened)
        return None

    def _extract_batches(self, archive: Path) -> dict[Any, Path]:
        """Write temporary files of records from an archive, by the names of batches."""

        def convert(content: Any, member: tarfile.TarInfo, target: BinaryIO) -> None:
            if member.name.endswith(".bin"):
                shutil.copyfileobj(content, target, PIECE_BYTES)
            else:
                self._write_records(f"{archive}: {member.name}", content, member.size, target)

        names = {name + ending: name for name in self._batches for ending in ("", ".bin")}
        return archives.extract_members(archive, names, convert)

    def _convert_pickle(self, file: Path) -> dict[Any, Path]:
        """Write a temporary file of records from a pickle, by the name of its batch."""
        with create_temporary() as (path, target), open(file, "rb") as source:
            self._write_records(str(file), source, file.stat().st_size, target)
        return {file.name: path}

    def _write_records(self, named: str, file: Any, size: int, target: BinaryIO) -> None:
        """Write the records of a pickle of {"data": array (rows, 3072), "labels": list}. Raises ReaderError."""
        content = load_pickle(file, size, named)
        if not isinstance(content, dict):
            raise ReaderError(f"{named}: expected a pickled dict, found a {type(content).__name__}")
        values = {key.decode("latin-1") if isinstance(key, bytes) else str(key): content[key] for key in content}
        columns = []
        for name in self.label_names:
            column = values.get(name)
            if not isinstance(column, list) or not all(type(label) is int and 0 <= label < 256 for label in column):
                raise ReaderError(
                    f"{named}: expected a list of integers from 0 to 255 under {name!r}, found "
                    f"{'a list of others' if isinstance(column, list) else type(column).__name__}; the pickle has "
                    f"{files.format_names(key[:60] for key in values)}"
                )
            columns.append(np.array(column, np.uint8))
        rows = len(columns[0])
        pixels = _view_bytes(values.get("data"))
        if pixels is None or len(pixels) != rows * _PIXELS or not rows or {len(one) for one in columns} != {rows}:
            raise ReaderError(
                f"{named}: expected bytes (u1) of shape (rows, {_PIXELS}) under 'data', as many rows as labels and 1 "
                f"or more, found {rows} labels and {'another value' if pixels is None else f'{len(pixels)} bytes'}"
            )
        for first in range(0, rows, _PIECE_ROWS):
            labels = np.stack([column[first : first + _PIECE_ROWS] for column in columns], axis=1)
            images = pixels[first * _PIXELS : (first + _PIECE_ROWS) * _PIXELS].reshape(-1, _PIXELS)
            target.write(np.concatenate([labels, images], axis=1).tobytes())

    def _open_batches(self, keys: Sequence[Any], unpacked: Mapping[Any, BinaryIO]) -> None:
        """Open the batches, in the order of `_batches`; see `StoredFiles`. Raises ReaderError for a wrong size."""
        names = [f"{self.files[0]}: {key}" if unpacked else str(key) for key in keys]
        self._stored = StoredFiles(keys, unpacked, names)
        for name, size in zip(names, self._stored.sizes):
            if size == 0 or size % self._record:
                raise ReaderError(
                    f"{name}: truncated: expected a number of records of {self._record} bytes, found {size}, which is "
                    f"{size // self._record} records and {size % self._record} bytes"
                )
        self._rows = [size // self._record for size in self._stored.sizes]

    def _list_part(self, part: str) -> range:
        """The batches of a part, by number."""
        first = len(self.list_names["training"])
        return range(first) if part == "training" else range(first, len(self._batches))

    def count(self, part: str) -> int:
        return sum(self._rows[number] for number in self._list_part(part))

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        shape = (stop - start, 32, 32, 3) if field == "data" else (stop - start,)
        rows = ShardArray(shape, np.uint8 if field == "data" else np.int64)
        filled = 0
        batches = self._list_part(part)
        for number, begin, end in split_range([self._rows[batch] for batch in batches], start, stop):
            for first in range(begin, end, _PIECE_ROWS):
                agreement.stop_if_others_failed()
                last = min(first + _PIECE_ROWS, end)
                data = self._stored.read_bytes(batches[number], first * self._record, last * self._record)
                records = np.frombuffer(data, np.uint8).reshape(-1, self._record)
                target = rows[filled : filled + last - first]
                filled += last - first
                if field == "labels":
                    target[:] = records[:, self._label]
                else:
                    images = records[:, len(self.label_names) :].reshape(-1, 3, 32, 32)
                    target[:] = images.transpose(0, 2, 3, 1)
        return rows

    def describe(self) -> str:
        if not self._rows:
            return ""  # the files are not unpacked yet
        return f"{self.count('training')} training and {self.count('testing')} testing images"


def _view_bytes(array: Any) -> np.ndarray | None:
    """The bytes of an array of a pickle, uint8, one-dimensional; None for another value."""
    if not isinstance(array, Array) or array.is_fortran or not isinstance(array.content, (bytes, bytearray)):
        return None
    dtype = array.dtype.name if isinstance(array.dtype, Dtype) else None
    if dtype not in ("u1", "|u1", "uint8", b"u1", b"|u1", b"uint8"):
        return None
    if not isinstance(array.shape, tuple) or len(array.shape) != 2 or array.shape[1] != _PIXELS:
        return None
    return np.frombuffer(array.content, np.uint8)


@register("CIFAR10")
class Cifar10(_Cifar):
    """CIFAR-10: data_batch_1 to data_batch_5, and test_batch."""

    list_names = {"training": [f"data_batch_{number}" for number in range(1, 6)], "testing": ["test_batch"]}
    label_names = ("labels",)
    archives = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")

    def __init__(self, path: str | PathLike[str]):
        self._open_path(path, 0)

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        names = (*_FOLDERS[:2], "data_batch_1", "data_batch_1.bin", *cls.archives)
        return path.name in cls.archives or (path.is_dir() and any((path / name).exists() for name in names))


@register("CIFAR100")
class Cifar100(_Cifar):
    """CIFAR-100: train and test. `labels` is "fine" (100 classes) or "coarse" (20 classes)."""

    list_names = {"training": ["train"], "testing": ["test"]}
    label_names = ("coarse_labels", "fine_labels")
    archives = ("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz")

    def __init__(self, path: str | PathLike[str], labels: str = "fine"):
        if labels not in ("fine", "coarse"):
            raise ValueError(f'DataSet: labels of CIFAR100 have to be "fine" or "coarse"; given {labels!r}')
        self._open_path(path, self.label_names.index(f"{labels}_labels"))

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        own = any((path / name).exists() for name in (*_FOLDERS[2:], *cls.archives))
        both = all((path / name).exists() for name in ("train.bin", "test.bin"))
        return path.name in cls.archives or (path.is_dir() and (own or both))
