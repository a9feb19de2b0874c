"""The MNIST format: a folder of four IDX files with the names of MNIST, Fashion-MNIST, KMNIST and the like."""

from __future__ import annotations

import os
import re
from os import PathLike
from pathlib import Path

import numpy as np

from matex_tf.readers.base import files
from matex_tf.readers.base.formats import Format, ReaderError, register
from matex_tf.readers.images.idx import IdxFile

_PREFIXES = {"training": "train", "testing": "t10k"}  # by part: the first word of the names of files
_CONTENTS = {"data": ("images", 3), "labels": ("labels", 1)}  # by field: the second word, and the number of dimensions


@register("MNIST")
class Mnist(Format):
    """A folder with train-images, train-labels, t10k-images and t10k-labels, each plain or gzipped."""

    own_testing = True  # testing rows have files of their own

    def __init__(self, path: str | PathLike[str]):
        folder = Path(files.decode_path(path))
        names = _list_folder(folder)
        self._files = {
            (part, field): IdxFile(_find_file(folder, names, part, field)) for part in _PREFIXES for field in _CONTENTS
        }
        self.files = [file.path for file in self._files.values()]
        for part in _PREFIXES:
            images, labels = self._files[part, "data"], self._files[part, "labels"]
            if images.shape[0] != labels.shape[0]:
                raise ReaderError(
                    f"expected as many labels as images, found {images.shape[0]} images in {images.path} and "
                    f"{labels.shape[0]} labels in {labels.path}"
                )

    def count(self, part: str) -> int:
        return self._files[part, "data"].shape[0]

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        return self._files[part, field].read_items(start, stop)

    def describe(self) -> str:
        return ", ".join(f"{part} {field} {file.describe_items()}" for (part, field), file in self._files.items())

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return path.is_dir() and any(_make_pattern("training", "data").fullmatch(name) for name in os.listdir(path))


def _list_folder(folder: Path) -> list[str]:
    if not folder.is_dir():
        found_kind = "a file" if folder.exists() else "nothing"
        raise FileNotFoundError(
            f"{folder}: expected a folder with the MNIST files, found {found_kind} there (from {os.getcwd()})"
            f"{'' if folder.exists() else files.describe_near(folder)}"
        )
    return sorted(os.listdir(folder))


def _find_file(folder: Path, names: list[str], part: str, field: str) -> Path:
    """The file of a part and field. A plain file is preferred to a gzipped one, because it supports random access."""
    content, dimensions = _CONTENTS[field]
    prefix = f"{_PREFIXES[part]}-{content}"
    pattern = _make_pattern(part, field)
    matches = sorted((name for name in names if pattern.fullmatch(name)), key=lambda name: (name.endswith(".gz"), name))
    if not matches:
        usual_names = f"{prefix}-idx{dimensions}-ubyte, {prefix}.idx{dimensions}-ubyte, either also with .gz"
        raise FileNotFoundError(
            f"{folder}: no file of the {part} {content}: looked for {usual_names}; the folder holds "
            f"{files.format_names(names)}"
        )
    return folder / matches[0]


def _make_pattern(part: str, field: str) -> re.Pattern[str]:
    return re.compile(rf"{_PREFIXES[part]}-{_CONTENTS[field][0]}[-.]idx\d+-\w+(\.gz)?")
