"""One array in an open file of NetCDF, HDF5 or Zarr."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.readers.arrays.dimensions import Arrangement, Dimension
from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.rows.missing import check_fits, make_missing_error


class Variable(ABC):
    """One array in an open file. Its samples lie along `axis`.

    Subclasses give `name`, `shape`, `dtype` (as read), `chunk` (samples stored together), `axis`, and `read_samples`.
    `arrangement` brings samples into the order of those of the first file and channel.
    """

    _owner: Any
    _path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: int = 1
    axis: int = 0
    arrangement: Arrangement | None = None
    is_text: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    @abstractmethod
    def list_dimensions(self) -> list[Dimension]:
        """The dimensions of a sample, in the order in which they are stored, by a call of the library."""

    def order_samples(self, samples: np.ndarray) -> np.ndarray:
        return samples if self.arrangement is None else self.arrangement.order_samples(samples)

    def find_stored(self, place: Sequence[int]) -> tuple[int, ...]:
        """Where the value at `place` of an arranged sample is stored."""
        if self.arrangement is None:
            return tuple(place)
        return self.arrangement.find_stored(place, self.arrangement.order_shape(self.row_shape))

    def fill_array(self, target: np.ndarray, start: int, stop: int) -> None:
        """Write samples `start` to `stop`, arranged, into `target`."""
        for begin, end in self.split_slabs(start, stop, self.choose_slab(target.nbytes)):
            slab = self._owner.fetch(self._path, self, lambda variable: variable.read_samples(begin, end))  # noqa: B023
            if len(slab) != end - begin:
                raise ReaderError(
                    f"{self._path}: truncated: expected samples {begin} to {end} of {self.name!r}, found {len(slab)}"
                )
            self.put_slab(target[begin - start : end - start], slab, begin)

    def choose_slab(self, size: int) -> int:
        """How many bytes one call of the library reads, of `size` in all."""
        return 32 << 20

    def put_slab(self, piece: np.ndarray, slab: np.ndarray, begin: int) -> None:
        """Write samples from `begin` on as the library gives them into `piece`: masked values are missing ones."""
        slab = self.order_samples(slab)
        self.put_values(piece, np.ma.filled(slab, 0), f"{self._path}, {self.name!r}", begin)
        if np.ma.is_masked(slab):
            self._put_missing(piece, np.ma.getmaskarray(slab), begin)

    def _put_missing(self, piece: np.ndarray, mask: np.ndarray, begin: int) -> None:
        if piece.dtype.kind in "fc":
            piece[mask] = np.nan
        elif mask.any():
            how = self._owner.missing
            if how == "error":
                row, *index = (int(number) for number in np.argwhere(mask)[0])
                raise make_missing_error(f"{self._path}, {self.name!r}{[begin + row, *self.find_stored(index)]}")
            check_fits(how, piece.dtype, f"{self.name!r} of {self._path}")
            piece[mask] = how

    def put_values(self, piece: np.ndarray, values: np.ndarray, where: str, begin: int) -> None:
        """Write `values`, arranged samples from `begin` on, into `piece`. Raises ReaderError where one is too large."""
        if np.can_cast(values.dtype, piece.dtype):
            piece[...] = values
            return
        with np.errstate(over="ignore"):
            piece[...] = values
        lost = np.isinf(piece) & np.isfinite(values)
        if lost.any():
            row, *index = (int(number) for number in np.argwhere(lost)[0])
            raise ReaderError(
                f"{where}{[begin + row, *self.find_stored(index)]}: {values[(row, *index)]} is too large for "
                f"dtype={piece.dtype.name!r}; give a wider one"
            )

    def take_samples(self, start: int, stop: int) -> np.ndarray | None:
        """Samples `start` to `stop` as an array of its own, where one call can give them as they are wanted."""
        return None

    @abstractmethod
    def read_samples(self, start: int, stop: int) -> np.ndarray:
        """Samples `start` to `stop` as the library gives them, of shape (stop - start, *row_shape), by one call."""

    @abstractmethod
    def enter_collective(self) -> contextlib.AbstractContextManager[object]:
        """Within it every rank that has the file open takes part in each call that reads."""

    def make_index(self, start: int, stop: int) -> tuple[slice, ...]:
        return (*[slice(None)] * self.axis, slice(start, stop))

    def split_slabs(self, start: int, stop: int, bytes_each: int) -> Iterator[tuple[int, int]]:
        """`start` to `stop` in pieces of about `bytes_each` that begin where a chunk of the file begins."""
        row = max(1, int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize)
        length = max(self.chunk, bytes_each // row // self.chunk * self.chunk, 1)
        while start < stop:
            agreement.stop_if_others_failed()
            end = min(stop, (start // self.chunk) * self.chunk + length)
            yield start, end
            start = end


def check_numeric(path: Path, name: str, dtype: Any, kind: str = "") -> np.dtype:
    """The dtype of a variable, in the machine's byte order; raises ReaderError if it holds no numbers.

    Args:
        kind: what the variable holds, for the message, where the dtype does not tell.
    """
    if kind or getattr(dtype, "kind", "O") not in "biufc":
        raise ReaderError(
            f"{path}: expected numbers or texts in {name!r}, found {kind or f'values of type {dtype}'}; write them to "
            "a variable of numbers"
        )
    return np.dtype(dtype).newbyteorder("=")
