"""One rank's part of a CSV text, parsed and kept as the ends of its records are looked for, so that it is read once.

It is supposed not to begin within quotes; where the parts before it prove that wrong, what was taken is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf.readers.base import agreement
from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.csv import number_like, records
from matex_tf.readers.csv.joined_text import Text
from matex_tf.readers.csv.marks import Marks
from matex_tf.readers.csv.table import Table
from matex_tf.sharding.share_arrays import ShareArray

MOST_CATEGORIES = 1 << 16
# Room for more rows than the first ones let expect.
_SPARE = 1.03


class TooLarge(Exception):
    """The rows would take more memory than they may."""


class Rows:
    """The rows of consecutive records by field, made longer at their end.

    Attributes: `count`; `buffers` by field, which hold the rows one after the other; `values`, for each column of text
    its values in the order in which they came, and how many rows hold each. In the buffers stands 1 + the place of a
    value, and 0 for a missing one.
    """

    def __init__(self, table: Table, missing: Any, most: int):
        self._table, self._missing, self._most = table, missing, most
        self.count = 0
        self.buffers: dict[str, list[np.ndarray]] = {field: [] for field in table.columns}
        self.values: dict[int, dict[str, int]] = {number: {} for number in table.texts}
        self._places: dict[int, dict[str, int]] = {number: {} for number in table.texts}
        self._room = 0

    def can_hold_texts(self) -> bool:
        """Whether the arrays can hold the integers of texts before these are agreed on."""
        return all(
            self._table.find_dtype(field, self._missing).itemsize >= 4
            for field, numbers in self._table.columns.items()
            if set(numbers) & set(self._table.texts)
        )

    def append_table(self, found: Any, left: float, place: Callable[[int], str]) -> None:
        """Take the rows of a pyarrow table; about `left` times as many are still to come.

        Raises TooLarge, and ReaderError where a value cannot be taken.
        """
        rows = len(found)
        if not rows:
            return
        codes = {number: self._encode_column(number, found[str(number)]) for number in self._table.texts}
        if rows > self._room:
            self._grow_buffers(rows, left)
        filled = len(self._get_buffer()) - self._room
        for field, buffers in self.buffers.items():
            target = buffers[-1][filled : filled + rows]
            self._table.fill_rows(target, found, field, lambda number, column: codes[number], self._missing, place)
        self._room -= rows
        self.count += rows

    def _get_buffer(self) -> np.ndarray:
        return next(iter(self.buffers.values()))[-1]

    def _grow_buffers(self, rows: int, left: float) -> None:
        self._trim_buffers()
        room = rows + int(rows * left * _SPARE) + 16
        shapes = {field: self._table.compute_shape(field, room) for field in self.buffers}
        dtypes = {field: self._table.find_dtype(field, self._missing) for field in self.buffers}
        more = sum(int(np.prod(shapes[field])) * dtypes[field].itemsize for field in self.buffers)
        if self.nbytes + more > self._most:
            raise TooLarge
        for field, buffers in self.buffers.items():
            # What is not written to takes no memory yet.
            buffers.append(ShareArray(shapes[field], dtypes[field]))
        self._room = room

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffers in self.buffers.values() for buffer in buffers)

    def _trim_buffers(self) -> None:
        if self._room:
            for buffers in self.buffers.values():
                rows = len(buffers[-1]) - self._room
                buffers[-1].resize((rows, *buffers[-1].shape[1:]), refcheck=False)
            self._room = 0

    def _encode_column(self, number: int, column: Any) -> np.ndarray:
        import pyarrow as pa

        encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = encoded.dictionary_encode()
        known, values = self._places[number], self.values[number]
        texts = encoded.dictionary.to_pylist()
        places = [known.setdefault(text, len(known)) for text in texts]
        if len(known) > MOST_CATEGORIES:
            raise make_category_error(self._table, number)
        # The last one is that of missing values, whose index is -1.
        meaning = np.array([1 + place for place in places] + [0], np.int64)
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for text, rows in zip(texts, np.bincount(indices + 1, minlength=len(texts) + 1)[1:].tolist(), strict=True):
            values[text] = values.get(text, 0) + rows
        return meaning[indices]

    def settle_categories(self, values: dict[int, list[str]]) -> None:
        """Put the numbers that all ranks agreed on in place of this rank's own."""
        for number, known in self._places.items():
            agreed = {text: place for place, text in enumerate(values[number])}
            for field, numbers in self._table.columns.items():
                for index in [place for place, one in enumerate(numbers) if one == number]:
                    dtype = self._table.find_dtype(field, self._missing)
                    absent = np.nan if dtype.kind == "f" else self._missing if self._missing != "error" else 0
                    meaning = np.array([absent, *[agreed[text] for text in known]]).astype(dtype)
                    for buffer in self.buffers[field]:
                        column = buffer if self._table.single[field] else buffer[:, index]
                        for start in range(0, len(column), 1 << 16):
                            piece = column[start : start + (1 << 16)]
                            piece[:] = meaning[np.asarray(piece).astype(np.int64)]

    def finish_rows(self) -> None:
        """Give back the memory of rows that did not come."""
        self._trim_buffers()
        for field, buffers in self.buffers.items():
            if not buffers:
                buffers.append(
                    ShareArray(self._table.compute_shape(field, 0), self._table.find_dtype(field, self._missing))
                )


def make_category_error(table: Table, number: int) -> ReaderError:
    return ReaderError(
        f"{table.path}: expected numbers or up to {MOST_CATEGORIES} different texts in column "
        f"{table.names[number]!r}, found more; leave it out with columns="
    )


def check_texts(
    text: Text,
    table: Table,
    found: Sequence[Mapping[int, Mapping[str, int]]],
    rank: int,
    tables: Iterable[Any],
) -> None:
    """Raises ReaderError where the values of a column of text turn out to be numbers to a person.

    Of the ranks, the first that has `found` such a value knows its line; the others raise FailedElsewhere.

    Args:
        found: of each rank, by column, how many of its rows hold each value.
        tables: (first row, pyarrow table, first byte) of this rank's records, those of `found`.
    """
    import pyarrow.compute as pc

    wrong = table.find_number_among_texts(
        {number: number_like.add_counts(texts[number] for texts in found) for number in table.texts}
    )
    if wrong is None:
        return
    number, value = wrong
    if rank != next(other for other, texts in enumerate(found) if value in texts[number]):
        raise agreement.FailedElsewhere
    place = next(
        find_line(text, table.dialect.marks, at, row)
        for _, block, at in tables
        if (row := pc.index(block[str(number)], value).as_py()) >= 0
    )
    name = table.names[number]
    raise ReaderError(
        f"{place}, column {name!r}: expected text, as in the first MiB of the file, found {value!r}, and most rows of "
        f"this column hold numbers; {number_like.suggest_option(value, name, table.dialect)}"
    )


class Taking:
    """The rows of the records that begin in the bytes `start` to `stop` of a text.

    Attributes: `rows`; `error`, why one could not be parsed; `given_up`, whether there are more than memory allows.
    """

    def __init__(self, text: Text, table: Table, rows: Rows, start: int, stop: int):
        self._text, self._table, self._stop = text, table, stop
        self._marks = table.dialect.marks
        self.rows = rows
        self.error: Exception | None = None
        self.given_up = not rows.can_hold_texts()
        whole = start in text.starts or text.read_bytes(start - 1, start) == b"\n"
        # Where the first record that isn't taken yet begins; None as long as the end of the one before isn't found.
        self._at: int | None = start if whole else None
        self._waiting: list[bytes] = []

    @property
    def active(self) -> bool:
        return self.error is None and not self.given_up

    def take_piece(self, begin: int, data: bytes, ends: np.ndarray, real: np.ndarray) -> None:
        """Take what was read from the byte `begin` on; for `records.search`."""
        if not self.active or (self._at is None and not len(ends)):
            return
        if self._at is None:
            self._at = int(ends[0])
            data, begin, ends = data[self._at - begin :], self._at, ends[1:]
        self._waiting.append(data)
        if len(ends):
            cut = int(ends[-1])
            whole = b"".join(self._waiting)
            block, self._waiting = whole[: cut - self._at], [whole[cut - self._at :]]
            self._take_block(block, len(ends), int(np.count_nonzero(real > self._at)))
            self._at = cut

    def _take_block(self, block: bytes, lines: int, expected: int) -> None:
        at = self._at or 0
        try:
            table = self._table.parse_records(
                block, list(self._table.columns), block.count(b"\n") > lines, lambda: self._text.find_line(at)
            )
            if len(table) != expected:
                raise make_count_error(self._text.find_line(at), expected, len(table))
            left = max(0, self._stop - at - len(block)) / max(1, len(block))
            self.rows.append_table(table, left, lambda row: find_line(self._text, self._marks, at, row))
        except TooLarge:
            self.given_up = True
        except (ReaderError, ValueError) as error:
            self.error = error

    def finish_part(self) -> None:
        """Take the last record, which goes on after the part."""
        if self.active and self._at is not None and self._at < self._stop:
            last = records.find_line_end(self._text.read_bytes, self._at, self._text.size, self._marks)
            self._waiting = []
            block = self._text.read_bytes(self._at, last)
            self._take_block(block, 1, int(bool(self._marks.remove_comments(block).strip(b"\r\n"))))
        self._waiting = []
        self.rows.finish_rows()


def find_line(text: Text, marks: Marks, at: int, row: int) -> str:
    """The place of the record that is `row` records after the byte `at`."""
    return text.find_line(records.skip_records(text.read_bytes, at, text.size, row, marks))


def make_count_error(place: str, expected: int, found: int) -> ReaderError:
    named, _, line = place.rpartition(", line ")
    return ReaderError(
        f"{named}: expected {expected} records from line {line} on, found {found}: a quote within a value, or a "
        "carriage return alone. Where quotes are letters like others, give quote=None"
    )
