"""Storage of the rows of a table while they are read: arrays, with texts as integers.

The number of rows is not known before, so the arrays have room for an estimate, and further ones are added.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from matex_tf.lazy import pa
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.tables.columns import Columns, Place
from matex_tf.sharding.shard_arrays import ShardArray

MOST_CATEGORIES = 1 << 16
# Extra space, in case the first rows underestimate the number of rows.
_SPARE = 1.03


class TooLarge(Exception):
    """The rows would exceed their memory limit."""


class Rows:
    """The rows of consecutive records, by field. Rows are appended.

    Texts get their final integers only when all ranks know all texts (`settle_categories`). Until then the buffers have
    temporary integers: 1 + the index of a text in order of appearance, and 0 for a missing value.

    Attributes: `count`; `buffers`, for each field, arrays whose concatenation is the rows; `values`, for each column of
    text, the number of rows with each text, in order of appearance.
    """

    def __init__(self, table: Columns, missing: Any, max_bytes: int = sys.maxsize):
        self._table, self._missing, self._max_bytes = table, missing, max_bytes
        self.count = 0
        self.buffers: dict[str, list[np.ndarray]] = {field: [] for field in table.columns}
        self.values: dict[int, dict[str, int]] = {number: {} for number in table.texts}
        # For each column of text: the index of each text in order of appearance.
        self._indices: dict[int, dict[str, int]] = {number: {} for number in table.texts}
        self._room = 0  # unused rows of the last buffers

    def can_hold_texts(self) -> bool:
        """Whether the dtypes can hold the temporary integers of texts, before the ranks agree on the final ones."""
        return all(
            self._table.find_dtype(field, self._missing).itemsize >= 4
            for field, numbers in self._table.columns.items()
            if set(numbers) & set(self._table.texts)
        )

    def append_table(self, found: Any, remaining: float, place: Place) -> None:
        """Append the rows of a pyarrow table; about `remaining` times as many rows are still to come.

        Raises TooLarge, and ReaderError for an invalid value.
        """
        rows = len(found)
        if not rows:
            return
        codes = {number: self._encode_column(number, found[str(number)]) for number in self._table.texts}
        if rows > self._room:
            self._grow_buffers(rows, remaining)
        for field, buffers in self.buffers.items():
            filled = len(buffers[-1]) - self._room
            target = buffers[-1][filled : filled + rows]
            self._table.fill_rows(target, found, field, lambda number, column: codes[number], self._missing, place)
        self._room -= rows
        self.count += rows

    def _grow_buffers(self, rows: int, remaining: float) -> None:
        """Add buffers for `rows` rows and about `remaining` times as many. Raises TooLarge."""
        self._trim_buffers()
        room = rows + int(rows * remaining * _SPARE) + 16
        shapes = {field: self._table.compute_shape(field, room) for field in self.buffers}
        dtypes = {field: self._table.find_dtype(field, self._missing) for field in self.buffers}
        more = sum(int(np.prod(shapes[field])) * dtypes[field].itemsize for field in self.buffers)
        if self.nbytes + more > self._max_bytes:
            raise TooLarge
        for field, buffers in self.buffers.items():
            # Pages that are not written take no memory yet.
            buffers.append(ShardArray(shapes[field], dtypes[field]))
        self._room = room

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffers in self.buffers.values() for buffer in buffers)

    def _trim_buffers(self) -> None:
        """Free the unused rows of the last buffers."""
        if self._room:
            for buffers in self.buffers.values():
                rows = len(buffers[-1]) - self._room
                buffers[-1].resize((rows, *buffers[-1].shape[1:]), refcheck=False)
            self._room = 0

    def _encode_column(self, number: int, column: Any) -> np.ndarray:
        """The temporary integers of a column of texts, which are counted in `values`."""
        encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = encoded.dictionary_encode()
        known, values = self._indices[number], self.values[number]
        texts = encoded.dictionary.to_pylist()
        text_indices = [known.setdefault(text, len(known)) for text in texts]
        if len(known) > MOST_CATEGORIES:
            raise make_category_error(self._table, number)
        # The temporary integer of each entry of the dictionary. The last one is for missing values, whose index is -1.
        codes = np.array([1 + index for index in text_indices] + [0], np.int64)
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for text, rows in zip(texts, np.bincount(indices + 1, minlength=len(texts) + 1)[1:].tolist(), strict=True):
            values[text] = values.get(text, 0) + rows
        return codes[indices]

    def settle_categories(self, values: dict[int, list[str]]) -> None:
        """Replace this rank's temporary integers of texts by the final ones, from the sorted `values` of all ranks."""
        for number, known in self._indices.items():
            final = {text: code for code, text in enumerate(values[number])}
            for field, numbers in self._table.columns.items():
                dtype = self._table.find_dtype(field, self._missing)
                absent = np.nan if dtype.kind == "f" else self._missing if self._missing != "error" else 0
                codes = np.array([absent, *[final[text] for text in known]]).astype(dtype)
                for place in [place for place, column_number in enumerate(numbers) if column_number == number]:
                    self._replace_codes(field, self._table.find_offset(field, place), codes)

    def _replace_codes(self, field: str, offset: int, codes: np.ndarray) -> None:
        """Replace each integer i at `offset` of the rows of a field by `codes[i]`, in pieces to save memory."""
        for buffer in self.buffers[field]:
            column = buffer.reshape(len(buffer), -1)[:, offset] if len(buffer) else buffer
            for start in range(0, len(column), 1 << 16):
                piece = column[start : start + (1 << 16)]
                piece[:] = codes[np.asarray(piece).astype(np.int64)]

    def finish_rows(self) -> None:
        """Free the space of rows that did not come."""
        self._trim_buffers()
        for field, buffers in self.buffers.items():
            if not buffers:
                buffers.append(
                    ShardArray(self._table.compute_shape(field, 0), self._table.find_dtype(field, self._missing))
                )


def make_category_error(table: Columns, number: int) -> ReaderError:
    return ReaderError(
        f"{table.path}: expected numbers or up to {MOST_CATEGORIES} different texts in column "
        f"{table.names[number]!r}, found more; leave it out with columns="
    )
