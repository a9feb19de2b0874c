"""The columns of a CSV file: which are data and labels, and of what type; pieces of text made into rows by pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, check_categories, make_dtype
from matex_tf.readers.csv import blocks, errors, number_like
from matex_tf.readers.csv.dialect import Dialect
from matex_tf.readers.rows.missing import check_fits
from matex_tf.readers.rows.missing import make_missing_error as found_missing

Column = str | int
# Of a row of a table: where it stands, for a person.
Place = Callable[[int], str]


class Table:
    """Which columns are read, as what.

    Attributes: `names` of all columns; `columns` (their numbers), `dtypes` and `single` (whether rows are one value
    each) by field; `texts`, the columns whose values are text, and `asked`, those of which dtype= says so.
    """

    def __init__(self, path: Path, names: Sequence[str], dialect: Dialect):
        self.path, self.names, self.dialect = path, list(names), dialect
        self.columns: dict[str, list[int]] = {}
        self.dtypes: dict[str, np.dtype] = {}
        self.texts: list[int] = []
        self.asked: set[int] = set()
        self._types: dict[tuple[str, int], Any] = {}

    def choose_columns(
        self, labels: Column | Sequence[Column] | None, columns: Column | Sequence[Column] | None
    ) -> None:
        """Raises ReaderError for a column that isn't there."""
        several = labels if isinstance(labels, (list, tuple)) else None
        wanted: Sequence[Any] = several if several is not None else [] if labels is None else [labels]
        chosen = [self._find_column(column) for column in wanted]
        if isinstance(columns, (str, int)):
            columns = [columns]
        if columns is not None and not isinstance(columns, (list, tuple, range)):
            raise TypeError(
                f"DataSet: expected columns to be names or numbers; given {arguments.describe_value(columns)}"
            )
        data = (
            [number for number in range(len(self.names)) if number not in chosen]
            if columns is None
            else [self._find_column(column) for column in columns]
        )
        if not data:
            raise ReaderError(f"{self.path}: expected a column of data beside the labels, found none")
        self.columns = {"data": data, "labels": chosen} if chosen else {"data": data}
        self.single = {"data": False, "labels": several is None}

    def _find_column(self, column: Column) -> int:
        if isinstance(column, bool) or not isinstance(column, (str, int, np.integer)):
            raise TypeError(f"DataSet: expected a column's name or number; given {arguments.describe_value(column)}")
        if isinstance(column, (int, np.integer)) and -len(self.names) <= column < len(self.names):
            return column % len(self.names)
        if self.names.count(str(column)) > 1:
            raise ReaderError(f"{self.path}: expected one column {column!r}, found several; name it by its number")
        if column in self.names:
            return self.names.index(str(column))
        raise ReaderError(
            f"{self.path}: expected a column {column!r}, found none{files.suggest_similar(column, self.names)}; the "
            f"columns "
            f"are {', '.join(self.names[:50])}{', ...' if len(self.names) > 50 else ''}"
        )

    def learn_types(self, sample: bytes, file: Path, line: int, dtype: Any) -> None:
        """What each column holds, by a `sample` of whole records of `file`, from `line` on, and as what it is read."""
        import pyarrow as pa

        used = sorted({number for numbers in self.columns.values() for number in numbers})
        by_column = (
            {self._find_column(key): make_dtype(kind) for key, kind in dtype.items()}
            if isinstance(dtype, Mapping)
            else {}
        )
        common = None if dtype is None or isinstance(dtype, Mapping) else make_dtype(dtype)
        found: dict[int, Any] = dict.fromkeys(used, pa.null())
        if sample.strip():
            place = f"{file}, line {line}"
            table = blocks.parse_block(sample, self.names, used, None, self.dialect, True, lambda: place)
            found = {number: table.schema.field(str(number)).type for number in used}
            for number in used:
                if not (_is_number(found[number]) or number in by_column):
                    self._check_text(number, table[str(number)], sample, place)
        self.texts = [
            number
            for number, kind in found.items()
            if (by_column[number].kind == "U" if number in by_column else not _is_number(kind))
        ]
        self.asked = {number for number in self.texts if number in by_column}
        for field, numbers in self.columns.items():
            each = []
            for number in numbers:
                whole = number in self.texts or _is_whole(found[number])
                usual = common or np.dtype("f8") if field == "data" else np.dtype("i8" if whole else "f8")
                given = by_column.get(number, usual)
                kind = usual if number in self.texts and given.kind == "U" else given
                if kind.kind not in "biuf":
                    raise TypeError(f"DataSet: dtype has to be one of numbers, or str for one column; given {kind}")
                each.append(kind)
                if number in self.texts:
                    self._types[field, number] = pa.string()
                elif pa.types.is_boolean(found[number]) and number not in by_column:
                    self._types[field, number] = pa.bool_()
                else:
                    # pyarrow does not parse numbers of half precision.
                    self._types[field, number] = pa.from_numpy_dtype(np.dtype("f4") if kind == np.float16 else kind)
            self.dtypes[field] = np.result_type(*each)

    def _check_text(self, number: int, column: Any, sample: bytes, place: str) -> None:
        """Raises ReaderError where a column that would be taken for text is one of numbers but for some values."""
        import pyarrow as pa

        if not pa.types.is_string(column.type):
            return  # dates and the like
        counts = {value["values"]: value["counts"] for value in column.drop_null().value_counts().to_pylist()}
        if number_like.are_numbers(counts):
            data = errors.clean_block(sample, self.dialect, lambda: place)
            mixed = ValueError(f"numbers in column {self.names[number]!r} that are written in more than one way")
            error = errors.explain_error(data, self.dialect, self.names, {number: pa.float64()}, place, mixed)
            raise ReaderError(f"{error}. Most rows of this column hold numbers")

    def find_number_among_texts(self, counts: Mapping[int, Mapping[str, int]]) -> tuple[int, str] | None:
        """A column of text, and a value of it, where most rows hold numbers; None where there is none.

        Args:
            counts: by column, how many rows hold each value.
        """
        for number in sorted(set(self.texts) - self.asked):
            if number_like.are_numbers(counts[number]):
                return number, min(number_like.find_numbers(counts[number]))
        return None

    def describe_columns(self) -> str:
        texts = [self.names[number] for number in self.texts]
        return f"columns {self.names}, text in {texts}, {[str(kind) for kind in self._types.values()]}"

    def find_dtype(self, field: str, missing: Any) -> np.dtype:
        """As what the rows of a field are read; integers that may be missing need a NaN."""
        stored = self.dtypes[field]
        return np.dtype("f8") if missing == "nan" and stored.kind != "f" else stored

    def compute_shape(self, field: str, rows: int) -> tuple[int, ...]:
        return (rows,) if self.single[field] else (rows, len(self.columns[field]))

    def parse_records(self, data: bytes, fields: Sequence[str], newlines: bool, line: Callable[[], str]) -> Any:
        """The records in `data` as a pyarrow table, whose columns are named as `key` says.

        `newlines`: whether some stand within quotes. `line` gives the place of the first record, for errors.
        """
        types: dict[int, Any] = {}
        for field in fields:
            for number in self.columns[field]:
                # A column that is both data and label is read as the wider of its types.
                kind = self._types[field, number]
                types[number] = kind if number not in types else _widen_type(types[number], kind)
        return blocks.parse_block(data, self.names, list(types), types, self.dialect, newlines, line)

    def parse_texts(self, data: bytes, newlines: bool, line: Callable[[], str]) -> Any:
        """The same of the columns of text alone."""
        import pyarrow as pa

        types = dict.fromkeys(self.texts, pa.string())
        return blocks.parse_block(data, self.names, self.texts, types, self.dialect, newlines, line)

    def fill_rows(
        self, target: np.ndarray, table: Any, field: str, codes: Callable[[int, Any], Any], missing: Any, place: Place
    ) -> None:
        """Write the rows of a table into `target`; `codes(number, column)` gives the integers of a column of text."""
        for index, number in enumerate(self.columns[field]):
            values = self._convert_column(table, number, field, codes, missing, place)
            if self.single[field]:
                target[:] = values
            else:
                target[:, index] = values

    def _convert_column(
        self, table: Any, number: int, field: str, codes: Callable[..., Any], missing: Any, place: Place
    ) -> np.ndarray:
        import pyarrow as pa

        column = table[str(number)]
        dtype = self.find_dtype(field, missing)
        absent = dtype.kind != "f" and column.null_count > 0
        if absent and missing == "error":
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise found_missing(f"{place(row)}, column {self.names[number]!r}")
        if absent:
            check_fits(missing, dtype, f"column {self.names[number]!r} of {self.path}")
        if number in self.texts:
            return codes(number, column)
        if column.type == pa.bool_():
            column = column.cast(pa.int8())
        if absent:
            column = column.fill_null(pa.scalar(int(missing), column.type))
        return column.to_numpy()

    def check_categories(self, values: Mapping[int, Sequence[str]]) -> None:
        """Raises ReaderError where the dtype of a field does not hold as many integers as a column has texts."""
        for field, numbers in self.columns.items():
            for number in numbers:
                count = len(values.get(number, ()))
                check_categories(self.path, f"column {self.names[number]!r}", count, self.dtypes[field])


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return _is_whole(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def _is_whole(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _widen_type(one: Any, other: Any) -> Any:
    import pyarrow as pa

    if one == other:
        return one
    return pa.from_numpy_dtype(np.result_type(one.to_pandas_dtype(), other.to_pandas_dtype()))
