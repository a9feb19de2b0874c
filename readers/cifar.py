"""The CIFAR-10 and CIFAR-100 formats: the folder of the binary version, or that of the Python version."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.readers import agreement, files, pickles
from matex_tf.readers.formats import Format, ReaderError, register
from matex_tf.sharding import ShareArray

_PIXELS = 3 * 32 * 32
_PIECE_ROWS = 1024
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")


class _Cifar(Format):
    """Images of shape (rows, 32, 32, 3), uint8, red green blue; labels int64.

    The folder is the one that the archive unpacks to, or the one in which that lies.
    """

    own_testing = True
    names: dict[str, list[str]]
    label_names: tuple[str, ...]

    def _open(self, path: str | PathLike, label: int) -> None:
        folder = Path(path)
        if not folder.is_dir():
            there = "a file" if folder.exists() else "nothing"
            raise FileNotFoundError(
                f"{folder}: expected the folder of the unpacked archive, found {there} there (from {os.getcwd()})"
            )
        inner = [folder / name for name in _FOLDERS if (folder / name).is_dir()]
        for candidate in (folder, *inner):
            found = self._find(candidate)
            if found:
                break
        else:
            usual = ", ".join(name for names in self.names.values() for name in names)
            raise FileNotFoundError(
                f"{folder}: expected {usual}, all of them with .bin (binary version) or all without (Python version); "
                f"the folder holds {files.listing(os.listdir(folder))}"
            )
        self._batches: dict[str, list[Any]] = {
            part: [self._batch(file, label) for file in paths] for part, paths in found.items()
        }
        self.files = [file for paths in found.values() for file in paths]
        self._starts = {
            part: np.concatenate([[0], np.cumsum([batch.rows for batch in batches])])
            for part, batches in self._batches.items()
        }

    def _find(self, folder: Path) -> dict[str, list[Path]] | None:
        for ending in (".bin", ""):
            found = {part: [folder / (name + ending) for name in names] for part, names in self.names.items()}
            if all(file.is_file() for paths in found.values() for file in paths):
                return found
        return None

    def _batch(self, file: Path, label: int) -> Any:
        kind = _BinaryBatch if file.suffix == ".bin" else _PickledBatch
        return kind(file, self.label_names, label)

    def count(self, part: str) -> int:
        return int(self._starts[part][-1])

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        shape = (stop - start, 32, 32, 3) if field == "data" else (stop - start,)
        rows = ShareArray(shape, np.uint8 if field == "data" else np.int64)
        for first, batch in zip(self._starts[part], self._batches[part]):
            begin, end = max(start, int(first)), min(stop, int(first) + batch.rows)
            for piece in range(begin, end, _PIECE_ROWS):
                agreement.stop_if_others_failed()
                last = min(piece + _PIECE_ROWS, end)
                target = rows[piece - start : last - start]
                if field == "labels":
                    target[:] = batch.labels(piece - int(first), last - int(first))
                else:
                    stored = batch.images(piece - int(first), last - int(first)).reshape(-1, 3, 32, 32)
                    target[:] = stored.transpose(0, 2, 3, 1)
        return rows

    def describe(self) -> str:
        return f"{self.count('training')} training and {self.count('testing')} testing images"


@register("CIFAR10")
class Cifar10(_Cifar):
    """data_batch_1 to data_batch_5 and test_batch."""

    names = {"training": [f"data_batch_{number}" for number in range(1, 6)], "testing": ["test_batch"]}
    label_names = ("labels",)

    def __init__(self, path: str | PathLike):
        self._open(path, 0)

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return path.is_dir() and any(
            (path / name).exists() for name in (*_FOLDERS[:2], "data_batch_1", "data_batch_1.bin")
        )


@register("CIFAR100")
class Cifar100(_Cifar):
    """train and test; `labels` is "fine" (100 classes) or "coarse" (20)."""

    names = {"training": ["train"], "testing": ["test"]}
    label_names = ("coarse_labels", "fine_labels")

    def __init__(self, path: str | PathLike, labels: str = "fine"):
        if labels not in ("fine", "coarse"):
            raise ValueError(f'DataSet: labels of CIFAR100 have to be "fine" or "coarse"; given {labels!r}')
        self._open(path, self.label_names.index(f"{labels}_labels"))

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        own = any((path / name).exists() for name in _FOLDERS[2:])
        return path.is_dir() and (own or all((path / name).exists() for name in ("train.bin", "test.bin")))


class _BinaryBatch:
    """A file of records: each label is a byte, then the 3072 of the image."""

    def __init__(self, path: Path, label_names: tuple[str, ...], label: int):
        self._path, self._label, self._labels = path, label, len(label_names)
        self._record = self._labels + _PIXELS
        size = path.stat().st_size
        if size == 0 or size % self._record:
            raise ReaderError(
                f"{path}: truncated: expected a number of records of {self._record} bytes, found {size}, which is "
                f"{size // self._record} records and {size % self._record} bytes"
            )
        self.rows = size // self._record

    def _records(self, start: int, stop: int) -> np.ndarray:
        with open(self._path, "rb") as file:
            file.seek(start * self._record)
            data = file.read((stop - start) * self._record)
        if len(data) < (stop - start) * self._record:
            raise ReaderError(f"{self._path}: truncated: expected {self.rows} records, found its end before {stop}")
        return np.frombuffer(data, np.uint8).reshape(-1, self._record)

    def images(self, start: int, stop: int) -> np.ndarray:
        return self._records(start, stop)[:, self._labels :]

    def labels(self, start: int, stop: int) -> np.ndarray:
        return self._records(start, stop)[:, self._label]


class _PickledBatch:
    """A pickle of {"data": array (rows, 3072), "labels": list}."""

    def __init__(self, path: Path, label_names: tuple[str, ...], label: int):
        self._path = path
        content = pickles.load(path)
        if not isinstance(content, dict):
            raise ReaderError(f"{path}: expected a pickled dict, found a {type(content).__name__}")
        values = {
            key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()
        }
        labels, data = values.get(label_names[label]), values.get("data")
        if not isinstance(labels, list) or not all(type(value) is int for value in labels):
            raise ReaderError(
                f"{path}: expected a list of numbers under {label_names[label]!r}, found "
                f"{type(labels).__name__}; the pickle has {files.listing(values)}"
            )
        self.rows = len(labels)
        name = getattr(data, "dtype", None)
        name = getattr(name, "name", name)
        name = name.decode("latin-1") if isinstance(name, bytes) else name
        shape = getattr(data, "shape", None)
        if name not in ("u1", "|u1", "uint8") or shape != (self.rows, _PIXELS) or data.fortran:
            raise ReaderError(
                f"{path}: expected bytes (u1) of shape {(self.rows, _PIXELS)} under 'data', as many rows as labels, "
                f"found {name} of shape {shape}"
            )
        self._content = data.content
        found = self._content.length if isinstance(self._content, pickles.Lying) else len(self._content or b"")
        if found != self.rows * _PIXELS or self.rows == 0:
            raise ReaderError(f"{path}: expected {self.rows * _PIXELS} bytes of images, 1 or more, found {found}")
        self._labels = np.array(labels, np.int64)

    def images(self, start: int, stop: int) -> np.ndarray:
        if not isinstance(self._content, pickles.Lying):
            return np.frombuffer(self._content, np.uint8)[start * _PIXELS : stop * _PIXELS]
        with open(self._path, "rb") as file:
            file.seek(self._content.offset + start * _PIXELS)
            data = file.read((stop - start) * _PIXELS)
        if len(data) < (stop - start) * _PIXELS:
            raise ReaderError(f"{self._path}: truncated: expected {self.rows} images, found its end before {stop}")
        return np.frombuffer(data, np.uint8)

    def labels(self, start: int, stop: int) -> np.ndarray:
        return self._labels[start:stop]
