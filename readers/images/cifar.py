"""The CIFAR-10 and CIFAR-100 formats: binary or Python version, extracted or as the downloaded archive.

A batch is one file of the data set, such as data_batch_1.bin. If there is only the archive, a survey (see `Format`)
extracts it once for each host.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from matex_tf.readers.base import agreement, files
from matex_tf.readers.base.formats import Format, Ranks, ReaderError, register, split_range
from matex_tf.readers.base.stored import Stored
from matex_tf.readers.base.unpacking import remove_files
from matex_tf.readers.images import archives, plain_pickles
from matex_tf.sharding.shard_arrays import ShardArray

_PIXELS = 3 * 32 * 32
_PIECE_ROWS = 1024  # rows that are read at a time
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")


class _Cifar(Format):
    """Images of shape (rows, 32, 32, 3), uint8, channels RGB; labels of shape (rows,), int64.

    The path is the extracted folder, its parent folder, or the archive.
    """

    own_testing = True
    batch_names: dict[str, list[str]]  # by part ("training", "testing"), without the ending .bin of the binary version
    label_names: tuple[str, ...]  # in the order of the labels of an image
    archives: tuple[str, ...]

    def _open_path(self, path: str | PathLike[str], label: int) -> None:
        """Find the batches at `path`. `label`: the index in `label_names` of the labels to read."""
        self._label, self._path = label, Path(files.decode_path(path))
        self._unpacked: list[Path] = []
        # By part. Empty until the survey has extracted an archive.
        self._batches: dict[str, list[_BinaryBatch | _PickledBatch]] = {}
        archive = self._find_archive()
        if archive is not None:
            self.files, self.surveys = [archive], 1
            return
        inner_folders = [self._path / name for name in _FOLDERS if (self._path / name).is_dir()]
        for folder in (self._path, *inner_folders):
            self._batches = self._find_batches({file.name: Stored(file) for file in folder.iterdir() if file.is_file()})
            if self._batches:
                break
        else:
            raise FileNotFoundError(
                f"{self._describe_expected()}; the folder holds {files.format_names(os.listdir(self._path))}"
            )
        self.files = [batch.file.path for batches in self._batches.values() for batch in batches]

    def _find_archive(self) -> Path | None:
        """The archive to read; None if its files are already extracted."""
        if self._path.is_dir():
            if any((self._path / name).exists() for name in (*_FOLDERS, *self._list_file_names())):
                return None
            return next((self._path / name for name in self.archives if (self._path / name).is_file()), None)
        if self._path.is_file():
            return self._path
        raise FileNotFoundError(
            f"{self._path}: expected {' or '.join(self.archives)}, or the folder of the unpacked archive, found "
            f"nothing there (from {os.getcwd()}){files.describe_near(self._path)}"
        )

    def _list_file_names(self) -> list[str]:
        return [name + ending for names in self.batch_names.values() for name in names for ending in ("", ".bin")]

    def _describe_expected(self) -> str:
        usual_names = ", ".join(name for names in self.batch_names.values() for name in names)
        return (
            f"{self._path}: expected {usual_names}, all of them with .bin (binary version) or all without (Python "
            f"version), or {' or '.join(self.archives)}"
        )

    def _find_batches(self, files_by_name: Mapping[str, Stored]) -> dict[str, list[_BinaryBatch | _PickledBatch]]:
        """The batches of each part, from `files_by_name`; {} if neither version is complete."""
        for ending, batch_class in ((".bin", _BinaryBatch), ("", _PickledBatch)):
            if all(name + ending in files_by_name for names in self.batch_names.values() for name in names):
                return {
                    part: [batch_class(files_by_name[name + ending], self.label_names, self._label) for name in names]
                    for part, names in self.batch_names.items()
                }
        return {}

    # One rank of each host (`ranks.leader`) extracts an archive: its members cannot be read independently.

    def survey(self, turn: int, ranks: Ranks) -> dict[str, Path]:
        if ranks.rank != ranks.leader:
            return {}
        extracted_files = archives.unpack_files(self.files[0], self._list_file_names())
        self._unpacked = list(extracted_files.values())
        weakref.finalize(self, remove_files, self._unpacked)  # if an error prevents `end_surveys`
        return extracted_files

    def settle(self, turn: int, ranks: Ranks, found: Sequence[dict[str, Path]]) -> None:
        archive, extracted_files = self.files[0], found[ranks.leader]
        self._batches = self._find_batches(
            {name: Stored(path, f"{archive}: {name}") for name, path in extracted_files.items()}
        )
        if not self._batches:
            raise ReaderError(
                f"{self._describe_expected()}; the archive {archive} contains {files.format_names(extracted_files)}"
            )

    def end_surveys(self) -> None:
        remove_files(self._unpacked)  # every rank of this host has them open

    def count(self, part: str) -> int:
        return sum(batch.rows for batch in self._batches[part])

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        shape = (stop - start, 32, 32, 3) if field == "data" else (stop - start,)
        rows = ShardArray(shape, np.uint8 if field == "data" else np.int64)
        filled = 0
        # Rows `begin` to `end` of batch `index`, one batch after another.
        for index, begin, end in split_range([batch.rows for batch in self._batches[part]], start, stop):
            batch = self._batches[part][index]
            for first in range(begin, end, _PIECE_ROWS):
                agreement.stop_if_others_failed()
                last = min(first + _PIECE_ROWS, end)
                target = rows[filled : filled + last - first]
                filled += last - first
                if field == "labels":
                    target[:] = batch.read_labels(first, last)
                else:
                    target[:] = batch.read_images(first, last).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return rows

    def describe(self) -> str:
        if not self._batches:
            return "an archive"
        return f"{self.count('training')} training and {self.count('testing')} testing images"


@register("CIFAR10")
class Cifar10(_Cifar):
    """CIFAR-10: data_batch_1 to data_batch_5, and test_batch."""

    batch_names = {"training": [f"data_batch_{number}" for number in range(1, 6)], "testing": ["test_batch"]}
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

    batch_names = {"training": ["train"], "testing": ["test"]}
    label_names = ("coarse_labels", "fine_labels")
    archives = ("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz")

    def __init__(self, path: str | PathLike[str], labels: str = "fine"):
        if labels not in ("fine", "coarse"):
            raise ValueError(f'DataSet: labels of CIFAR100 have to be "fine" or "coarse"; given {labels!r}')
        self._open_path(path, self.label_names.index(f"{labels}_labels"))

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        has_own_name = any((path / name).exists() for name in (*_FOLDERS[2:], *cls.archives))
        has_both_files = all((path / name).exists() for name in ("train.bin", "test.bin"))
        return path.name in cls.archives or (path.is_dir() and (has_own_name or has_both_files))


class _BinaryBatch:
    """A file of records: one byte for each label, then 3072 bytes for the image."""

    def __init__(self, file: Stored, label_names: tuple[str, ...], label: int):
        self.file, self._label, self._label_count = file, label, len(label_names)
        self._record_bytes = self._label_count + _PIXELS
        if file.size == 0 or file.size % self._record_bytes:
            raise ReaderError(
                f"{file}: truncated: expected a number of records of {self._record_bytes} bytes, found {file.size}, "
                f"which is {file.size // self._record_bytes} records and {file.size % self._record_bytes} bytes"
            )
        self.rows = file.size // self._record_bytes

    def _read_records(self, start: int, stop: int) -> np.ndarray:
        data = self.file.read_bytes(start * self._record_bytes, (stop - start) * self._record_bytes)
        return np.frombuffer(data, np.uint8).reshape(-1, self._record_bytes)

    def read_images(self, start: int, stop: int) -> np.ndarray:
        return self._read_records(start, stop)[:, self._label_count :]

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        return self._read_records(start, stop)[:, self._label]


class _PickledBatch:
    """A pickle of {"data": array (rows, 3072), "labels": list}. The bytes of the array stay in the file."""

    def __init__(self, stored_file: Stored, label_names: tuple[str, ...], label: int):
        self.file = stored_file
        with stored_file.open_file() as file:
            content = plain_pickles.load_pickle(file, str(stored_file))
        if not isinstance(content, dict):
            raise ReaderError(f"{stored_file}: expected a pickled dict, found a {type(content).__name__}")
        values = {
            key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()
        }
        labels, data = values.get(label_names[label]), values.get("data")
        if not isinstance(labels, list) or not all(type(value) is int and abs(value) < 1 << 63 for value in labels):
            raise ReaderError(
                f"{stored_file}: expected a list of 64-bit integers under {label_names[label]!r}, found "
                f"{plain_pickles.shorten_value(labels)}; the pickle has "
                f"{files.format_names(name[:60] for name in values)}"
            )
        self.rows = len(labels)
        # `data` should be a `plain_pickles.Array`, whose `dtype` is a `plain_pickles.Dtype` or a name.
        dtype = getattr(data, "dtype", None)
        dtype_name = getattr(dtype, "name", dtype)
        dtype_name = dtype_name.decode("latin-1") if isinstance(dtype_name, bytes) else dtype_name
        shape = getattr(data, "shape", None)
        if data is None or dtype_name not in ("u1", "|u1", "uint8") or shape != (self.rows, _PIXELS) or data.fortran:
            raise ReaderError(
                f"{stored_file}: expected bytes (u1) of shape {(self.rows, _PIXELS)} under 'data', as many rows as "
                "labels, found "
                f"{dtype_name if isinstance(dtype_name, str) else plain_pickles.shorten_value(dtype_name):.60} of "
                f"shape {plain_pickles.shorten_value(shape)}"
            )
        self._content = data.content
        if not isinstance(self._content, (plain_pickles.FileBytes, bytes)):
            raise ReaderError(
                f"{stored_file}: expected bytes of images, found {plain_pickles.shorten_value(self._content)}"
            )
        byte_count = self._content.length if isinstance(self._content, plain_pickles.FileBytes) else len(self._content)
        if byte_count != self.rows * _PIXELS or self.rows == 0:
            raise ReaderError(
                f"{stored_file}: expected {self.rows * _PIXELS} bytes of images, 1 or more, found {byte_count}"
            )
        self._labels = np.array(labels, np.int64)

    def read_images(self, start: int, stop: int) -> np.ndarray:
        if not isinstance(self._content, plain_pickles.FileBytes):
            return np.frombuffer(self._content, np.uint8)[start * _PIXELS : stop * _PIXELS]
        data = self.file.read_bytes(self._content.offset + start * _PIXELS, (stop - start) * _PIXELS)
        return np.frombuffer(data, np.uint8)

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        return self._labels[start:stop]
