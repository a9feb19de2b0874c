"""Reads samples from an opened `Format`, which reads rows of files: split into parts, windows, missing values, scaling.

A sample is a row, or a window of consecutive rows: with window=2 and horizon=1, the first sample is rows 0 and 1, and
its label row 2; the next one is rows 1 and 2 with the label row 3. This module does not depend on ranks.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import Format, ReaderError
from matex_tf.readers.rows import missing, scaling
from matex_tf.readers.rows.layout import Split
from matex_tf.sharding.shard_arrays import ShardArray

PIECE_BYTES = 8 << 20
"""The size of a block that is read at once."""
_GAP_BYTES = 64 << 10  # rows with smaller gaps are read together with the gap, which the disk would read anyway

_one_at_a_time = threading.RLock()
"""Streams read on their own threads. The lock protects formats that are not thread-safe."""

Positions = Any
"""Indices of samples in a part: a range, or an int64 array in ascending order."""


class Source:
    """The samples of the parts "training", "validation" and "testing".

    Without windows a sample is a row. With `window` and `horizon`, sample i consists of the rows i to i + window, and
    its label of the `horizon` rows after them. The origin of a sample is the part of the format from which it is read:
    "training", except for testing rows with files of their own.
    """

    def __init__(self, opened_format: Format, split: tuple[float, float, str], window: int | None, horizon: int):
        self.format = opened_format
        self.window, self.horizon = window, horizon
        self.scale: Any = None  # the function for the option normalize=, which `loaded_rows.py` sets; or None
        validation, testing, split_kind = split
        if testing and opened_format.own_testing:
            raise ValueError("DataSet: test_fraction is given, but this format has testing rows of its own")
        self.split = Split(self._count_windows("training"), validation, testing, split_kind)

    @property
    def labelled(self) -> bool:
        return self.format.labelled or self.window is not None

    def count_samples(self, part: str) -> int:
        if part == "testing" and self.format.own_testing:
            return self._count_windows("testing")
        return self.split.count_rows(part)

    def _count_windows(self, part: str) -> int:
        rows = self.format.count(part)
        return rows if self.window is None else max(0, rows - self.window - self.horizon + 1)

    def find_rows(self, part: str, positions: Positions) -> tuple[str, Positions]:
        """The origin of the samples at `positions` of a part, and the numbers of their first rows in the origin."""
        if part == "testing" and self.format.own_testing:
            return "testing", positions
        if isinstance(positions, range) and self.split.is_contiguous(part):
            # `first`: the row of position 0.
            first = int(self.split.list_rows(part, np.zeros(1, np.int64))[0]) if len(positions) else 0
            return "training", range(positions.start + first, positions.stop + first)
        return "training", self.split.list_rows(part, np.asarray(positions, np.int64))

    def read_samples(self, part: str, field: str, positions: Positions) -> np.ndarray:
        """Read the "data" or "labels" of the samples at `positions` of a part."""
        origin, rows = self.find_rows(part, positions)
        if not len(rows):
            raise ValueError("DataSet: there are no rows to read")
        if rows[-1] - rows[0] + 1 == len(rows):
            return self._read_run(origin, field, int(rows[0]), int(rows[-1]) + 1)
        return self._read_scattered(origin, field, np.asarray(rows))

    def read_both(self, part: str, positions: Positions) -> tuple[np.ndarray, np.ndarray | None]:
        """Data and labels (None if there are none) of the same samples. Rows that both need are read once."""
        if not self.labelled:
            return self.read_samples(part, "data", positions), None
        origin, rows = self.find_rows(part, positions)
        # Data and labels need the same rows only if labels are later rows of the data, and the samples have no gaps.
        if self.window is None or self.format.labelled or rows[-1] - rows[0] + 1 != len(rows):
            return self.read_samples(part, "data", positions), self.read_samples(part, "labels", positions)
        start, stop = int(rows[0]), int(rows[-1]) + self.window + self.horizon
        data = self._read_rows(origin, "data", start, stop)
        return make_windows(data[: -self.horizon], self.window), make_windows(data[self.window :], self.horizon)

    def count_row_bytes(self, part: str, field: str) -> int:
        return max(1, self.read_samples(part, field, range(1)).nbytes)

    def count_chunk_rows(self, part: str) -> int:
        """The number of rows in a chunk of the files: reading one of them costs as much as reading all."""
        origin, _ = self.find_rows(part, range(0))
        return self.format.chunk_rows(origin, "data")

    def count_training_rows(self) -> int:
        """The number of rows for the mean and deviation of the data. Contiguous rows count once, although windows
        overlap. If training samples are not contiguous, the samples count.
        """
        count = self.count_samples("training")
        return count + (self.window or 1) - 1 if self.split.is_contiguous("training") else count

    def compute_training_moments(self, start: int, stop: int) -> scaling.Moments | None:
        """The moments of the data in rows `start` to `stop` of `count_training_rows`; None if there are no rows."""
        moments = None
        step = max(1, PIECE_BYTES // self.count_row_bytes("training", "data")) if start < stop else 1
        for first in range(start, stop, step):
            agreement.stop_if_others_failed()
            last = min(first + step, stop)
            if self.split.is_contiguous("training"):
                data = self._read_rows("training", "data", first, last)
            else:
                data = self.read_samples("training", "data", range(first, last))
                if self.window is not None:  # the rows of all windows
                    data = data.reshape(-1, *data.shape[2:])
            moments = scaling.merge_moments(moments, scaling.compute_moments(data))
        return moments

    def _read_run(self, origin: str, field: str, start: int, stop: int) -> np.ndarray:
        """Consecutive samples, which begin at rows `start` to `stop`. Windows are views of the same rows."""
        if self.window is None:
            return self._read_rows(origin, field, start, stop)
        if field == "data":
            length, begin = self.window, start
        else:  # without labels in the files, the labels are the data that follow a window
            length, begin = self.horizon, start + self.window
            field = "labels" if self.format.labelled else "data"
        rows = self._read_rows(origin, field, begin, begin + (stop - start) + length - 1)
        return make_windows(rows, length)

    def _read_scattered(self, origin: str, field: str, rows: np.ndarray) -> np.ndarray:
        """Samples that begin at `rows`, which have gaps. A run of near samples is read with the rows between them."""
        first_sample = self._read_run(origin, field, int(rows[0]), int(rows[0]) + 1)
        result = ShardArray((len(rows), *first_sample.shape[1:]), first_sample.dtype)
        chunk_rows = self.format.chunk_rows(origin, field)
        # Rows with smaller gaps than `max_gap` are read as one run of up to `max_run_rows` rows.
        max_gap = max(chunk_rows, _GAP_BYTES // max(1, first_sample.nbytes))
        max_run_rows = max(chunk_rows, PIECE_BYTES // max(1, first_sample.nbytes), 1)
        filled = 0
        while filled < len(rows):
            agreement.stop_if_others_failed()
            run_rows = rows[filled : filled + max_run_rows]
            # A run ends before a large gap, or `max_run_rows` rows after the beginning of its first chunk.
            run_stop = (int(run_rows[0]) // chunk_rows) * chunk_rows + max_run_rows
            last_indices = np.flatnonzero((np.diff(run_rows) > max_gap) | (run_rows[1:] >= run_stop))
            if len(last_indices):
                run_rows = run_rows[: last_indices[0] + 1]
            run_samples = self._read_run(origin, field, int(run_rows[0]), int(run_rows[-1]) + 1)
            result[filled : filled + len(run_rows)] = run_samples[run_rows - run_rows[0]]
            filled += len(run_rows)
        return result

    def _read_rows(self, origin: str, field: str, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of the format's part `origin`, with missing values replaced, and scaled."""
        with _one_at_a_time:
            rows = self.format.read(origin, field, start, stop)
        if len(rows) != stop - start:
            raise ReaderError(
                f"the format {type(self.format).__name__} returned {len(rows)} rows of the {origin} {field}; expected "
                f"{stop - start} ({start} to {stop})"
            )
        self._replace_missing(origin, range(start, stop), field, rows)
        return self.scale_rows(field, rows)

    def replace_missing(self, part: str, field: str, rows: np.ndarray, positions: Positions) -> None:
        """Replace missing values in place in the rows at `positions` of a part."""
        self._replace_missing(*self.find_rows(part, positions), field, rows)

    def _replace_missing(self, origin: str, numbers: Positions, field: str, rows: np.ndarray) -> None:
        """As `replace_missing`. `numbers`: the numbers of `rows` within the format's part `origin`."""
        missing.replace_missing(
            rows,
            self.format.missing,
            lambda row, index: self.format.describe_place(origin, field, int(numbers[row]), index),
        )

    def scale_rows(self, field: str, rows: np.ndarray) -> np.ndarray:
        """Rows as the option normalize= says; labels do not change."""
        return rows if self.scale is None or field != "data" else self.scale(rows)


def make_windows(rows: np.ndarray, length: int) -> np.ndarray:
    """Windows of `length` consecutive rows, as a view: shape (len(rows) - length + 1, length, ...)."""
    count = len(rows) - length + 1
    return np.lib.stride_tricks.as_strided(
        rows, (count, length, *rows.shape[1:]), (rows.strides[0], *rows.strides), subok=True
    )
