"""The CSV format: tables of text, of which each rank reads and parses the bytes of its own rows, through pyarrow."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import sharding
from matex_tf.readers import agreement, csv_errors, files, records
from matex_tf.readers.formats import Format, Ranks, ReaderError, register
from matex_tf.readers.missing import found as found_missing
from matex_tf.sharding import ShareArray

Column = str | int
_HEAD_BYTES = 1 << 20
_SLICE_BYTES = 4 << 20
_MOST_CATEGORIES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_NULLS = ["", "#N/A", "N/A", "NA", "NaN", "nan", "NULL", "null", "-nan", "-NaN", "<NA>", "#NA"]
_DELIMITERS = ",;\t|"
_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


@register("CSV")
class Csv(Format):
    """One file of delimited text, plain or gzipped, in UTF-8.

    Args:
        labels: the column or columns of labels, by name or by number (-1 is the last).
        columns: the columns of data, in this order; by default all but those of labels.
        dtype: of the data (by default float64), or {column: dtype}.
        delimiter: by default what the first line shows: a comma, semicolon, tab or bar.
        header: whether the first line holds the names; without, columns are named "0", "1", ...
        quote: what encloses values with delimiters or newlines in them; None where nothing does.

    Whether a column holds numbers or text is told by the first MiB. Text becomes integers: the place of the value among
    all values of that column in alphabetical order, the same on all ranks (`DataSet.categories`).
    """

    surveys = 1
    settles_missing = False

    def __init__(
        self,
        path: str | PathLike,
        labels: Column | Sequence[Column] | None = None,
        columns: Sequence[Column] | None = None,
        dtype: Any = None,
        delimiter: str | None = None,
        header: bool = True,
        quote: str | None = '"',
    ):
        found = files.find(path)
        if len(found) > 1:
            raise ReaderError(f"{path}: expected one CSV file, found {len(found)}: {files.listing(found)}")
        self.path = found[0]
        self.files = found
        self._quote = ord(quote) if quote else None
        with open(self.path, "rb") as file:
            self._packed = file.read(2) == b"\x1f\x8b"
        self._text: _Text | None = None if self._packed else _Text(self.path, self.path)
        head = self._head()
        self._start = len(_BOM) if head.startswith(_BOM) else 0
        self._delimiter = delimiter or _sniff(self.path, head[self._start :])
        self._names = self._read_header(head, header)
        self._choose(labels, columns)
        self._learn_types(head, dtype)
        self.surveys = 2 if self._texts else 1
        self.categories = {}
        self._unpacked: Path | None = None

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return path.is_file() and path.name.lower().endswith(_ENDINGS)

    # Opening: names and types, from the head of the text.

    def _head(self) -> bytes:
        if self._text is not None:
            return self._text.read(0, min(_HEAD_BYTES, self._text.size))
        try:
            with gzip.open(self.path) as file:
                return file.read(_HEAD_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._bad_gzip(error) from None

    def _bad_gzip(self, error: Exception) -> ReaderError:
        return ReaderError(f"{self.path}: truncated or damaged: expected gzip data, found: {error}")

    def _read_header(self, head: bytes, header: bool) -> list[str]:
        def read(start: int, stop: int) -> bytes:
            return head[start:stop]

        first = records.skip(read, self._start, len(head), 1, self._quote)
        line = head[self._start : first]
        if not line.strip():
            raise ReaderError(f"{self.path}: expected a table, found no line with anything in it")
        rows = csv_errors.rows(self.path, line, self._delimiter, self._quote)
        values = next((row for _, row in rows if row), [])
        if header:
            self._start = first
            return [name.strip() for name in values]
        return [str(number) for number in range(len(values))]

    def _choose(self, labels: Column | Sequence[Column] | None, columns: Sequence[Column] | None) -> None:
        self._single = not isinstance(labels, (list, tuple))
        wanted = [] if labels is None else [labels] if self._single else list(labels)  # type: ignore[list-item]
        chosen = [self._column(column) for column in wanted]
        self.labelled = bool(chosen)
        if isinstance(columns, (str, int)):
            columns = [columns]
        data = (
            [number for number in range(len(self._names)) if number not in chosen]
            if columns is None
            else [self._column(column) for column in columns]
        )
        if not data:
            raise ReaderError(f"{self.path}: expected a column of data beside the labels, found none")
        self._columns = {"data": data, "labels": chosen}

    def _column(self, column: Column) -> int:
        if isinstance(column, int) and -len(self._names) <= column < len(self._names):
            return column % len(self._names)
        if self._names.count(str(column)) > 1:
            raise ReaderError(f"{self.path}: expected one column {column!r}, found several; name it by its number")
        if column in self._names:
            return self._names.index(column)  # type: ignore[arg-type]
        raise ReaderError(
            f"{self.path}: expected a column {column!r}, found none{files.similar(column, self._names)}; the columns "
            f"are {', '.join(self._names[:50])}{', ...' if len(self._names) > 50 else ''}"
        )

    def _learn_types(self, head: bytes, dtype: Any) -> None:
        import pyarrow as pa

        end = len(head)
        if end == _HEAD_BYTES:  # the last record of the head may be cut
            part = records.search(lambda a, b: head[a:b], self._start, end, self._quote)
            end = part.outside.last or end
        used = sorted({*self._columns["data"], *self._columns["labels"]})
        types: dict[int, Any] = dict.fromkeys(used, pa.null())
        if head[self._start : end].strip():
            table = self._parse(head[self._start : end], used, None, newlines=True)
            types = {number: table.schema.field(str(number)).type for number in used}
        numeric = {
            number: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            for number, kind in types.items()
        }
        by_column = (
            {self._column(key): np.dtype(kind) for key, kind in dtype.items()} if isinstance(dtype, Mapping) else {}
        )
        common = None if dtype is None or isinstance(dtype, Mapping) else np.dtype(dtype)
        self._texts = [
            n for n, kind in types.items() if not numeric[n] and not pa.types.is_null(kind) and n not in by_column
        ]
        self._arrow: dict[tuple[str, int], Any] = {}
        self._dtypes: dict[str, np.dtype] = {}
        for field, numbers in self._columns.items():
            each = []
            for number in numbers:
                whole = (
                    number in self._texts or pa.types.is_integer(types[number]) or pa.types.is_boolean(types[number])
                )
                usual = common or np.dtype("f8") if field == "data" else np.dtype("i8" if whole else "f8")
                kind = by_column.get(number, usual)
                if kind.kind not in "biuf":
                    raise TypeError(f"DataSet: dtype has to be one of numbers; given {kind}")
                each.append(kind)
                if number in self._texts:
                    self._arrow[field, number] = pa.string()
                elif pa.types.is_boolean(types[number]) and number not in by_column:
                    self._arrow[field, number] = pa.bool_()
                else:
                    self._arrow[field, number] = pa.from_numpy_dtype(kind)
            if each:
                self._dtypes[field] = np.result_type(*each)

    def describe(self) -> str:
        texts = [self._names[number] for number in self._texts]
        return f"columns {self._names}, text in {texts}, {[str(kind) for kind in self._arrow.values()]}"

    # Records: every rank looks for their ends in its part of the bytes.

    def survey(self, turn: int, ranks: Ranks) -> Any:
        if turn == 1:
            return self._survey_categories(ranks)
        if not self._packed:
            assert self._text is not None
            start, stop = sharding.rows_of(self._text.size - self._start, ranks.rank, ranks.size)
            return self._search(self._text, self._start + start, self._start + stop), None
        if ranks.rank != ranks.leader:
            return None
        text = self._unpack()
        return self._search(text, self._start, text.size), str(self._unpacked)

    def _search(self, text: _Text, start: int, stop: int) -> records.Part:
        def read(begin: int, end: int) -> bytes:
            agreement.stop_if_others_failed()
            return text.read(begin, end)

        return records.search(read, start, stop, self._quote)

    def _unpack(self) -> _Text:
        """The text of a gzipped file, in a temporary file for all ranks of this host."""
        with tempfile.NamedTemporaryFile(prefix="matex_tf-", suffix=".csv", delete=False) as target:
            self._unpacked = Path(target.name)
            weakref.finalize(self, self._unpacked.unlink, missing_ok=True)
            try:
                with gzip.open(self.path) as source:
                    shutil.copyfileobj(source, target, 1 << 20)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise self._bad_gzip(error) from None
        return _Text(self._unpacked, self.path)

    def settle(self, turn: int, ranks: Ranks, found: Sequence[Any]) -> None:
        if turn == 1:
            self._settle_categories(found)
            return
        if self._packed:
            # Every host has unpacked the same file; what the first found holds for all.
            self._text = _Text(Path(found[ranks.leader][1]), self.path)
            parts = [found[0][0]]
        else:
            parts = [part for part, _ in found]
        text = self._text
        assert text is not None
        self._records = records.join(parts, self._start, text.size, text.read)
        if self._records.open:
            raise ReaderError(
                f"{self.path}: expected every quote to be closed, found one open at the end of the file. Where quotes "
                "are letters like others, give quote=None"
            )

    def settled(self) -> None:
        if self._unpacked is not None:
            self._unpacked.unlink(missing_ok=True)  # every rank of this host has it open

    def _survey_categories(self, ranks: Ranks) -> dict[int, list[str]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        start, stop = sharding.rows_of(self._records.count, ranks.rank, ranks.size)
        values: dict[int, Any] = {number: pa.array([], pa.string()) for number in self._texts}
        for first, table in self._tables(start, stop, self._texts, {number: pa.string() for number in self._texts}):
            for number, known in values.items():
                here = pc.unique(table[str(number)].combine_chunks()).drop_null()
                values[number] = pc.unique(pa.concat_arrays([known, here]))
                if len(values[number]) > _MOST_CATEGORIES:
                    raise ReaderError(
                        f"{self.path}: expected numbers or up to {_MOST_CATEGORIES} different texts in column "
                        f"{self._names[number]!r}, found more by row {first + len(table)}; leave it out with columns="
                    )
        return {number: known.to_pylist() for number, known in values.items()}

    def _settle_categories(self, found: Sequence[dict[int, list[str]]]) -> None:
        self._values = {number: sorted({text for part in found for text in part[number]}) for number in self._texts}
        self.categories = {self._names[number]: values for number, values in self._values.items()}

    # Rows.

    def count(self, part: str) -> int:
        return self._records.count if part == "training" else 0

    def chunk_rows(self, part: str, field: str) -> int:
        return records.STRIDE

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        numbers, single = self._columns[field], field == "labels" and self._single
        rows = ShareArray((stop - start,) if single else (stop - start, len(numbers)), self._dtype(field))
        types = {number: self._arrow[field, number] for number in numbers}
        for first, table in self._tables(start, stop, numbers, types):
            target = rows[first - start : first - start + len(table)]
            for place, number in enumerate(numbers):
                values = self._values_of(table, number, field, first)
                if single:
                    target[:] = values
                else:
                    target[:, place] = values
        return rows

    def _dtype(self, field: str) -> np.dtype:
        stored = self._dtypes[field]
        return np.dtype("f8") if self.missing == "nan" and stored.kind != "f" else stored

    def _values_of(self, table: Any, number: int, field: str, first: int) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = table[str(number)]
        absent = column.null_count > 0
        if absent and self._dtype(field).kind != "f":
            if self.missing == "error":
                row = first + int(np.flatnonzero(column.is_null().to_numpy())[0])
                raise found_missing(self._place(row, number))
            column = None if number in self._texts else column.fill_null(self.missing)
        if number in self._texts:
            # Codes of text; what is missing has none.
            codes = pc.index_in(table[str(number)], value_set=pa.array(self._values[number], pa.string()))
            column = codes.fill_null(self.missing) if column is None else codes
        if column.type == pa.bool_():
            column = column.cast(pa.int8())
        return column.to_numpy()

    def _tables(
        self, start: int, stop: int, numbers: Sequence[int], types: dict[int, Any]
    ) -> Iterator[tuple[int, Any]]:
        """(first row, table) of the rows `start` to `stop`, some megabytes at a time."""
        assert self._text is not None
        for first, last, begin, end in self._slices(start, stop):
            agreement.stop_if_others_failed()
            data = self._text.read(begin, end)
            table = self._parse(data, numbers, types, self._records.newlines, begin)
            if len(table) != last - first:
                raise ReaderError(
                    f"{self.path}: expected {last - first} records from line {self._line(begin)} on, found "
                    f"{len(table)}: a quote within a value, or a carriage return alone. Where quotes are letters like "
                    "others, give quote=None"
                )
            yield first, table

    def _slices(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """(first row, row after the last, first byte, byte after the last), cut where records begin."""
        numbers, places = self._records.numbers, self._records.places
        row, byte = start, self._byte(start)
        index = int(np.searchsorted(numbers, start, side="right"))
        while row < stop:
            while index + 1 < len(numbers) and numbers[index + 1] < stop and places[index + 1] - byte <= _SLICE_BYTES:
                index += 1
            if index < len(numbers) and row < numbers[index] < stop:
                last, end = numbers[index], places[index]
                index += 1
            else:
                last, end = stop, self._byte(stop)
            yield row, last, byte, end
            row, byte = last, end

    def _byte(self, row: int) -> int:
        """Where a row begins."""
        assert self._text is not None
        if row >= self._records.count:
            return self._records.stop
        number, place = self._records.near(row)
        return records.skip(self._text.read, place, self._records.stop, row - number, self._quote)

    def _parse(
        self, data: bytes, numbers: Sequence[int], types: dict[int, Any] | None, newlines: bool, begin: int = 0
    ) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        read = csv.ReadOptions(
            column_names=[str(number) for number in range(len(self._names))],
            block_size=len(data) + 1 if newlines else max(1 << 20, data.find(b"\n") * 4),
        )
        parse = csv.ParseOptions(
            delimiter=self._delimiter,
            quote_char=chr(self._quote) if self._quote else False,
            newlines_in_values=newlines and self._quote is not None,
        )
        convert = csv.ConvertOptions(
            include_columns=[str(number) for number in numbers],
            column_types={str(number): kind for number, kind in types.items()} if types else None,
            null_values=_NULLS,
            strings_can_be_null=True,
        )
        try:
            # Arrow's own pool would keep what the pieces of the text took.
            return csv.read_csv(pa.BufferReader(data), read, parse, convert, memory_pool=pa.system_memory_pool())
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            names = self._names
            raise csv_errors.explain(
                self.path, data, self._delimiter, self._quote, names, types or {}, _NULLS, self._line(begin), error
            ) from None

    def place(self, part: str, field: str, row: int, index: tuple[int, ...]) -> str:
        return self._place(row, self._columns[field][index[0] if index else 0])

    def _place(self, row: int, number: int) -> str:
        return f"{self.path}, line {self._line(self._byte(row))}, column {self._names[number]!r}"

    def _line(self, byte: int) -> int:
        """The number of the line that begins at a byte, from 1."""
        text = self._text
        if text is None:
            return 1
        return 1 + sum(text.read(at, min(at + (1 << 20), byte)).count(b"\n") for at in range(0, byte, 1 << 20))


class _Text:
    """The bytes of a file that stays open."""

    def __init__(self, path: Path, named: Path):
        self._named = named
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (as long as the data set)
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, start: int, stop: int) -> bytes:
        pieces = []
        while start < stop:
            piece = os.pread(self._file.fileno(), stop - start, start)
            if not piece:
                raise ReaderError(f"{self._named}: truncated: expected {self.size} bytes, found {start}")
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _sniff(path: Path, head: bytes) -> str:
    """The delimiter that the first line shows; a comma where it shows none."""
    if ".tsv" in path.suffixes:
        return "\t"
    line = head.lstrip(b"\r\n").partition(b"\n")[0].decode("utf-8", "replace")
    return next((mark for mark in _DELIMITERS if mark in line), ",")
