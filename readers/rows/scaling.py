"""The option normalize= of `DataSet`: True divides integers by the largest value of their dtype; "standard" scales data
to mean 0 and standard deviation 1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.sharding.shard_arrays import ShardArray

_PIECE_BYTES = 8 << 20
CHOICES = (False, True, "standard")


def scale_by_type(rows: np.ndarray) -> np.ndarray:
    """Integers as float32, divided by the largest value of their dtype (uint8: 0 to 1); other data unchanged."""
    if rows.dtype.kind not in "iu":
        return rows
    largest = np.iinfo(rows.dtype).max
    scaled = rows.astype(np.float32)
    scaled /= np.float32(largest)
    return scaled


class Standard:
    """Subtracts the mean and divides by the standard deviation. Returns float32, or float64 for float64.

    Each column of a table (rows with one dimension) has its own mean and deviation; other data have one of each.
    """

    def __init__(self, mean: Any, deviation: Any):
        self.mean, self.deviation = np.asarray(mean), np.asarray(deviation)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        dtype = np.float64 if rows.dtype == np.float64 else np.float32
        # A ShardArray, made by the readers, is scaled in place. Another array may be a view of rows that a format of
        # the script (`register`) keeps.
        is_in_place = isinstance(rows, ShardArray) and rows.dtype == dtype
        # A new ShardArray owns its memory, so it is recognized as a shard also after np.asarray (`is_shard`).
        scaled = rows if is_in_place else ShardArray(rows.shape, dtype)
        np.subtract(rows, self.mean.astype(dtype), out=scaled, casting="unsafe")
        scaled /= np.where(self.deviation > 0, self.deviation, 1).astype(dtype)
        return scaled


Moments = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(count, mean, sum of squared deviations) of each column of a table, or of all values. None stands for no rows."""


def compute_moments(rows: np.ndarray) -> Moments:
    """The moments of `rows`; ignores NaN."""
    values = np.asarray(rows, np.float64)
    values = values if values.ndim == 2 else values.reshape(-1, 1)
    is_valid = ~np.isnan(values)
    count = is_valid.sum(axis=0)
    mean = np.where(is_valid, values, 0).sum(axis=0) / np.maximum(count, 1)
    return count, mean, (np.where(is_valid, values - mean, 0) ** 2).sum(axis=0)


def compute_moments_in_pieces(rows: np.ndarray) -> Moments | None:
    """As `compute_moments`, in blocks, without temporary arrays of the size of `rows`; None if there are no rows."""
    step = max(1, _PIECE_BYTES // max(1, rows[:1].nbytes))
    pieces = (compute_moments(rows[start : start + step]) for start in range(0, len(rows), step))
    return functools.reduce(merge_moments, pieces, None)


def merge_moments(first: Moments | None, second: Moments | None) -> Moments | None:
    """The moments of both sets of rows together (Chan, Golub and LeVeque, "Updating formulae", 1979)."""
    if first is None or second is None:
        return first if second is None else second
    first_count, first_mean, first_squares = first
    second_count, second_mean, second_squares = second
    count = first_count + second_count
    divisor = np.maximum(count, 1)
    distance = second_mean - first_mean
    mean = first_mean + distance * second_count / divisor
    return count, mean, first_squares + second_squares + distance**2 * first_count * second_count / divisor


def make_standard(moments: Sequence[Moments | None]) -> Standard:
    """The scaling from the moments of each rank's rows. Raises ValueError if no rank has rows."""
    merged = functools.reduce(merge_moments, moments)
    if merged is None:
        raise ValueError('DataSet: normalize="standard" takes mean and deviation of the training rows; there are none')
    count, mean, squares = merged
    return Standard(mean, np.sqrt(squares / np.maximum(count, 1)))
