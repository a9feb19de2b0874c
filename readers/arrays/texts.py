"""Text variables of array files (NetCDF, HDF5 or Zarr).

Values become integers: indices into the sorted list of all texts. There are two passes: each rank counts the texts of
its part (`count_texts`), and all counts make the sorted list (`agree_on_texts`); then each rank writes indices into it.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.readers.arrays.dimensions import Dimension
from matex_tf.readers.arrays.variable import Variable
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import number_like

_MOST_TEXTS = 1 << 16
_SLAB_BYTES = 1 << 20
_PADDING = "\0 "  # texts of fixed length end with zeros or spaces


class TextVariable(Variable):
    """A variable of texts. An empty text is a missing value.

    A sample is an entry along one axis. `Variable` reads samples in slabs, which are ranges of samples. The owner, the
    `Stack` of all files, fetches a slab by one call of the file's library.

    Args:
        read: `read(index)` returns the texts at the index of `make_index`.
        others: see `Variable`.
    """

    is_text = True
    dtype = np.dtype("i8")

    def __init__(
        self,
        owner: Any,
        path: Path,
        name: str,
        shape: Sequence[int],
        dimension_names: Sequence[str],
        read_dimension: Callable[[int], Dimension],
        read: Callable[[tuple[slice, ...]], Any],
    ):
        super().__init__(owner, path, name, shape, dimension_names, read_dimension)
        self._read = read

    def read_samples(self, start: int, stop: int) -> np.ndarray:
        texts = np.asarray(np.ma.filled(self._read(self.make_index(start, stop)), ""))
        if texts.dtype.kind == "S":
            texts = np.char.decode(texts, "utf-8", "replace")
        return np.moveaxis(np.char.rstrip(texts.astype(str), _PADDING), self.axis, 0)

    def count_texts(self, start: int, stop: int) -> collections.Counter[str]:
        """The number of occurrences of each text in samples `start` to `stop`."""
        text_counts: collections.Counter[str] = collections.Counter()
        for begin, end in self.split_slabs(start, stop, _SLAB_BYTES):
            texts, counts = np.unique(self._fetch(begin, end), return_counts=True)
            text_counts.update(dict(zip(texts.tolist(), counts.tolist(), strict=True)))
            if len(text_counts) > _MOST_TEXTS:
                raise ReaderError(
                    f"{self._path}: expected up to {_MOST_TEXTS} different texts in {self.name!r}, found more"
                )
        del text_counts[""]  # empty texts are missing values
        return text_counts

    def fill_array(self, target: np.ndarray, start: int, stop: int) -> None:
        known_texts = np.asarray(self._owner.categories[self.name], str)
        for begin, end in self.split_slabs(start, stop, _SLAB_BYTES):
            texts = self.order_samples(self._fetch(begin, end))
            piece = target[begin - start : end - start]
            piece[...] = np.searchsorted(known_texts, texts) if len(known_texts) else 0
            is_missing = texts == ""
            if is_missing.any():
                self.put_missing(piece, is_missing, begin, "a text")

    def _fetch(self, begin: int, end: int) -> np.ndarray:
        samples: np.ndarray = self._owner.fetch(self._path, self, lambda variable: variable.read_samples(begin, end))
        return samples


def agree_on_texts(path: Path, name: str, counts_by_rank: Sequence[Mapping[str, int]], is_requested: bool) -> list[str]:
    """The sorted texts of a variable, from the counts of all ranks. Raises ReaderError if most texts are numbers and
    the user has not requested texts.

    `path`: a file with the variable, for the message.
    """
    counts = number_like.add_counts(counts_by_rank)
    number = None if is_requested else number_like.find_usual_number(counts)
    if number is not None:
        raise ReaderError(
            f"{path}: expected numbers in {name!r}, or texts that are not numbers, found numbers as text, such as "
            f"{number!r}; dtype={{{name!r}: str}} reads these texts as categories"
        )
    return sorted(counts)
