"""Base class for an array in an open NetCDF, HDF5 or Zarr file."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.readers.arrays.dimensions import Arrangement, Dimension
from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import ReaderError, assign_values
from matex_tf.readers.rows.missing import check_fits, make_missing_error


class Variable(ABC):
    """An array in an open file, with samples along `axis`. For shape (28, 28, 1000) and axis 2, a sample is 28 x 28.

    Subclasses set `dtype`, of the returned values, and may set `chunk`, the number of samples in a chunk of the file.
    `arrangement`, set by `Stack`, brings samples into the order of the first file and channel. Arrays are read in
    slabs: ranges of samples, each by one library call.

    Args:
        owner: the `Stack` that reads the file.
        dimension_names: the names of the dimensions; unnamed ones as the library names them.
        read_dimension: returns the dimension at an axis, with its coordinates; one library call.

    Raises ReaderError if the array has no dimension of samples.
    """

    dtype: np.dtype
    chunk: int = 1
    arrangement: Arrangement | None = None
    is_text: bool = False

    def __init__(
        self,
        owner: Any,
        path: Path,
        name: str,
        shape: Sequence[int],
        dimension_names: Sequence[str],
        read_dimension: Callable[[int], Dimension],
    ):
        self._owner, self._path, self._read_dimension = owner, path, read_dimension
        self.name, self.shape = name, tuple(map(int, shape))
        self.axis: int = owner.find_axis(path, name, dimension_names, self.shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    def list_dimensions(self) -> list[Dimension]:
        """The dimensions of a sample, in stored order. Called on the thread of the library (`library.call_library`)."""
        return [self._read_dimension(axis) for axis in range(len(self.shape)) if axis != self.axis]

    def order_samples(self, samples: np.ndarray) -> np.ndarray:
        return samples if self.arrangement is None else self.arrangement.order_samples(samples)

    def find_stored_index(self, index: Sequence[int]) -> tuple[int, ...]:
        """The index in a stored sample of the value at `index` of an arranged sample."""
        if self.arrangement is None:
            return tuple(index)
        return self.arrangement.find_stored_index(index, self.arrangement.order_shape(self.row_shape))

    def _describe_place(self, begin: int, index: Sequence[int]) -> str:
        """The position of the value at `index` of arranged samples from sample `begin` on, for messages."""
        row, *sample_index = index
        return f"{self._path}, {self.name!r}{[begin + row, *self.find_stored_index(sample_index)]}"

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
        """The number of bytes of a slab, if `size` bytes are read in all."""
        return 32 << 20

    def put_slab(self, piece: np.ndarray, slab: np.ndarray, begin: int) -> None:
        """Write a slab, as the library returns it from sample `begin` on, into `piece`. Masked values are missing."""
        slab = self.order_samples(slab)
        assign_values(piece, np.ma.filled(slab, 0), lambda index: self._describe_place(begin, index))
        if not np.ma.is_masked(slab):
            return
        if piece.dtype.kind in "fc":
            piece[np.ma.getmaskarray(slab)] = np.nan  # `rows/missing.py` replaces NaN
        else:
            self.put_missing(piece, np.ma.getmaskarray(slab), begin, "a number")

    def put_missing(self, piece: np.ndarray, mask: np.ndarray, begin: int, expected: str) -> None:
        """Replace the values of `mask` in `piece`, samples from sample `begin` on, as the option missing= says."""
        missing = self._owner.missing  # "error", "nan" or a number
        if missing == "error":
            raise make_missing_error(self._describe_place(begin, np.argwhere(mask)[0].tolist()), expected)
        is_nan = missing == "nan" and piece.dtype.kind in "fc"
        if not is_nan:
            check_fits(missing, piece.dtype, f"{self.name!r} of {self._path}")
        piece[mask] = np.nan if is_nan else missing

    def read_at_once(self, start: int, stop: int) -> np.ndarray | None:
        """Samples `start` to `stop`, if one library call can return them and need not be copied; else None."""
        return None

    @abstractmethod
    def read_samples(self, start: int, stop: int) -> np.ndarray:
        """Read samples `start` to `stop` in stored order, (stop - start, *row_shape). One library call."""

    def enter_collective(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which reads are collective over all ranks that have the file open, if possible."""
        return contextlib.nullcontext()

    def make_index(self, start: int, stop: int) -> tuple[slice, ...]:
        """The index of samples `start` to `stop` in the stored array."""
        return (*[slice(None)] * self.axis, slice(start, stop))

    def split_slabs(self, start: int, stop: int, slab_bytes: int) -> Iterator[tuple[int, int]]:
        """Split `start` to `stop` into ranges of about `slab_bytes` bytes that begin at chunks of the file."""
        row_bytes = max(1, int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize)
        slab_length = max(self.chunk, slab_bytes // row_bytes // self.chunk * self.chunk, 1)
        while start < stop:
            agreement.stop_if_others_failed()
            end = min(stop, (start // self.chunk) * self.chunk + slab_length)
            yield start, end
            start = end


def check_numeric(path: Path, name: str, dtype: Any, kind: str = "") -> np.dtype:
    """The dtype of a variable, in native byte order. Raises ReaderError if it is not numeric.

    `kind`: description of the variable's values for the message, if the dtype does not describe them.
    """
    if kind or getattr(dtype, "kind", "O") not in "biufc":
        raise ReaderError(
            f"{path}: expected numbers or texts in {name!r}, found {kind or f'values of type {dtype}'}; write them to "
            "a variable of numbers"
        )
    return np.dtype(dtype).newbyteorder("=")


def find_dtypes(
    path: Path, name: str, stored_dtype: np.dtype, attributes: Mapping[str, Any]
) -> tuple[np.dtype, np.dtype]:
    """The dtype of stored numbers and the dtype of unpacked ones, by the attributes that NetCDF and xarray write.

    With `_Unsigned` = "true" stored integers are unsigned. An unpacked number is number * scale_factor + add_offset.
    """
    if stored_dtype.kind == "i" and str(attributes.get("_Unsigned", "")).lower() == "true":
        stored_dtype = np.dtype(f"u{stored_dtype.itemsize}")
    scales = [attributes[key] for key in ("scale_factor", "add_offset") if attributes.get(key) is not None]
    scale_arrays = [np.asarray(scale) for scale in scales]
    if any(array.dtype.kind not in "biufc" or array.size != 1 for array in scale_arrays):
        raise ReaderError(f"{path}: expected numbers as scale_factor and add_offset of {name!r}, found {scales}")
    return stored_dtype, np.result_type(stored_dtype, *[array.dtype for array in scale_arrays])
