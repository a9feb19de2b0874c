"""Storage of the rows of a table while they are read: arrays, with texts as integers.

The number of rows is not known before. So the first arrays, or buffers, have room for an estimate. If it is too low,
further buffers follow.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from matex_tf.lazy import pa
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.tables.columns import Columns, FindPlace
from matex_tf.sharding.shard_arrays import ShardArray

MOST_CATEGORIES = 1 << 16
"""The number of different texts that a column may have."""
_SPARE = 1.03  # a buffer has room for this multiple of the estimated rows, in case the estimate is low
_PIECE_ROWS = 1 << 16


class TooLarge(Exception):
    """The rows would exceed their memory limit."""


class Rows:
    """The rows of consecutive records, by field ("data" or "labels").

    Texts get their final codes only when all ranks know all texts (`settle_categories`). Until then the buffers have
    temporary codes: 1 + the index of a text in order of appearance, and 0 for a missing value.

    Args:
        columns: which columns are read, by number; `columns.columns` lists the columns of each field.
        missing: the option of that name: "error", "nan" or a replacement number.
        max_bytes: the memory limit of the rows.
    """

    def __init__(self, columns: Columns, missing: Any, max_bytes: int = sys.maxsize):
        self._columns, self._missing, self._max_bytes = columns, missing, max_bytes
        self.count = 0
        # For each field, arrays whose concatenation is the rows.
        self.buffers: dict[str, list[np.ndarray]] = {field: [] for field in columns.columns}
        # For each column of text, in order of appearance: the number of rows with each text, and the text's index.
        self.values: dict[int, dict[str, int]] = {number: {} for number in columns.texts}
        self._indices: dict[int, dict[str, int]] = {number: {} for number in columns.texts}
        self._room = 0  # unused rows of the last buffers

    def can_hold_texts(self) -> bool:
        """Whether the dtypes can hold the temporary codes of texts, which may exceed the final ones."""
        return all(
            self._columns.find_dtype(field, self._missing).itemsize >= 4
            for field, numbers in self._columns.columns.items()
            if set(numbers) & set(self._columns.texts)
        )

    def append_table(self, table: Any, remaining: float, find_place: FindPlace) -> None:
        """Append the rows of a pyarrow table; about `remaining` times as many rows are still to come.

        find_place: returns the file and position of a row of the table, for messages.

        Raises TooLarge, and ReaderError for an invalid value.
        """
        rows = len(table)
        if not rows:
            return
        # Encoding counts the texts. So each column is encoded once, although it may be in data and in labels.
        codes = {number: self._encode_column(number, table[str(number)]) for number in self._columns.texts}
        if rows > self._room:
            self._grow_buffers(rows, remaining)
        for field, buffers in self.buffers.items():
            filled = len(buffers[-1]) - self._room
            target = buffers[-1][filled : filled + rows]
            self._columns.fill_rows(target, table, field, lambda number, _: codes[number], self._missing, find_place)
        self._room -= rows
        self.count += rows

    def _grow_buffers(self, rows: int, remaining: float) -> None:
        """Add buffers for `rows` rows and about `remaining` times as many. Raises TooLarge."""
        self._trim_buffers()
        room = rows + int(rows * remaining * _SPARE) + 16
        shapes = {field: self._columns.compute_shape(field, room) for field in self.buffers}
        dtypes = {field: self._columns.find_dtype(field, self._missing) for field in self.buffers}
        more_bytes = sum(int(np.prod(shapes[field])) * dtypes[field].itemsize for field in self.buffers)
        if self.nbytes + more_bytes > self._max_bytes:
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
        """The temporary codes of a column of texts. Adds the number of rows with each text to `values`."""
        encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = encoded.dictionary_encode()
        known_indices, values = self._indices[number], self.values[number]
        texts = encoded.dictionary.to_pylist()
        text_indices = [known_indices.setdefault(text, len(known_indices)) for text in texts]
        if len(known_indices) > MOST_CATEGORIES:
            raise make_category_error(self._columns, number)
        # The code of each entry of pyarrow's dictionary. The last code is for missing values, whose index is -1.
        codes = np.array([1 + index for index in text_indices] + [0], np.int64)
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for text, rows in zip(texts, np.bincount(indices + 1, minlength=len(texts) + 1)[1:].tolist(), strict=True):
            values[text] = values.get(text, 0) + rows
        return codes[indices]

    def settle_categories(self, values: dict[int, list[str]]) -> None:
        """Replace this rank's temporary codes by the final ones, the indices in the sorted `values` of all ranks."""
        for number, text_indices in self._indices.items():
            final_codes = {text: code for code, text in enumerate(values[number])}
            for field, numbers in self._columns.columns.items():
                dtype = self._columns.find_dtype(field, self._missing)
                missing_code: Any = np.nan if dtype.kind == "f" else self._missing
                if missing_code == "error":
                    missing_code = 0  # unused: `fill_rows` has raised an error for a missing integer
                # The final code of each temporary code. Code 0 is a missing value.
                codes = np.array([missing_code, *[final_codes[text] for text in text_indices]]).astype(dtype)
                for index, column_number in enumerate(numbers):
                    if column_number == number:
                        self._replace_codes(field, self._columns.find_offset(field, index), codes)

    def _replace_codes(self, field: str, offset: int, codes: np.ndarray) -> None:
        """Replace each integer i at `offset` of the rows of a field by `codes[i]`, in pieces to save memory."""
        for buffer in self.buffers[field]:
            column = buffer.reshape(len(buffer), -1)[:, offset] if len(buffer) else buffer
            for start in range(0, len(column), _PIECE_ROWS):
                piece = column[start : start + _PIECE_ROWS]
                piece[:] = codes[np.asarray(piece).astype(np.int64)]

    def finish_rows(self) -> None:
        """Free the unused rows, and give a field without buffers an empty one. Called after the last rows."""
        self._trim_buffers()
        for field, buffers in self.buffers.items():
            if not buffers:
                buffers.append(
                    ShardArray(self._columns.compute_shape(field, 0), self._columns.find_dtype(field, self._missing))
                )


def make_category_error(columns: Columns, number: int) -> ReaderError:
    """The error for the column `number`, which has more than `MOST_CATEGORIES` texts."""
    return ReaderError(
        f"{columns.path}: expected numbers or up to {MOST_CATEGORIES} different texts in column "
        f"{columns.names[number]!r}, found more; leave it out with columns="
    )
