"""The columns of a table: their roles (data or labels) and types; conversion of table blocks to rows.

A row of a field, "data" or "labels", has the values of the field's columns, one after another: one value of a column,
or several of a column of lists. A text is represented by an integer, its code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.lazy import pa
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, check_categories, make_dtype
from matex_tf.readers.rows.missing import check_fits, make_missing_error

Column = str | int
# Returns the position of a row of a table block, for messages.
Place = Callable[[int], str]


class Columns:
    """The columns that are read, and their dtypes. A column is known by its number, counted from 0."""

    def __init__(self, path: Path, names: Sequence[str]):
        self.path, self.names = path, list(names)  # the names of all columns
        self.columns: dict[str, list[int]] = {}  # the columns of "data" and "labels"
        self.dtypes: dict[str, np.dtype] = {}  # of the rows of a field
        self.single: dict[str, bool] = {}  # whether a row of a field is one value
        self.texts: list[int] = []  # the columns of text
        self.requested_texts: set[int] = set()  # the columns that dtype= requests as text
        self.types: dict[tuple[str, int], Any] = {}  # by field and column: the pyarrow type as which it is read
        self.widths: dict[int, int] = {}  # the number of values of a row, in columns of lists
        self.data_shape: tuple[int, ...] | None = None  # the option shape=

    def choose_columns(
        self, labels: Column | Sequence[Column] | None, columns: Column | Sequence[Column] | None
    ) -> None:
        """Set the columns of data and labels. Raises ReaderError for a missing column."""
        has_several_labels = isinstance(labels, (list, tuple))
        wanted: Any = labels if has_several_labels else [] if labels is None else [labels]
        chosen = [self.find_column(column) for column in wanted]
        if isinstance(columns, (str, int)):
            columns = [columns]
        if columns is not None and not isinstance(columns, (list, tuple, range)):
            raise TypeError(
                f"DataSet: expected columns to be names or numbers; given {arguments.describe_value(columns)}"
            )
        if columns is None:
            columns = [number for number in range(len(self.names)) if number not in chosen]
        data = [self.find_column(column) for column in columns]
        if not data:
            raise ReaderError(f"{self.path}: expected a column of data in addition to the labels, found none")
        self.columns = {"data": data, "labels": chosen} if chosen else {"data": data}
        self.single = {"data": False, "labels": not has_several_labels}

    def describe_columns(self) -> str:
        """Names and types of the columns, as text."""
        texts = [self.names[number] for number in self.texts]
        return f"columns {self.names}, text in {texts}, {[str(kind) for kind in self.types.values()]}"

    @property
    def used(self) -> list[int]:
        """The numbers of all columns that are read."""
        return sorted({number for numbers in self.columns.values() for number in numbers})

    def find_column(self, column: Column) -> int:
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
            f"columns are {', '.join(self.names[:50])}{', ...' if len(self.names) > 50 else ''}"
        )

    def list_dtypes(self, dtype: Any) -> dict[int, np.dtype]:
        """The dtypes from a mapping dtype=, by number of column."""
        by_column = dtype.items() if isinstance(dtype, Mapping) else ()
        return {self.find_column(key): make_dtype(kind) for key, kind in by_column}

    def choose_types(self, found: Mapping[int, Any], dtype: Any) -> None:
        """Set `texts`, `types` and `dtypes` from the stored pyarrow types `found` and the option dtype=.

        Raises TypeError for a dtype that is not numeric.
        """
        by_column = self.list_dtypes(dtype)
        data_dtype = None if dtype is None or isinstance(dtype, Mapping) else make_dtype(dtype)
        for number, kind in found.items():
            is_text = by_column[number].kind == "U" if number in by_column else not is_number(kind)
            self.texts += [number] * is_text
        self.requested_texts = {number for number in self.texts if number in by_column}
        for field, numbers in self.columns.items():
            field_dtypes = []
            for number in numbers:
                stored = pa.int64() if number in self.texts else found[number]
                is_given = data_dtype is not None and field == "data"
                usual: Any = data_dtype if is_given else self.find_usual_dtype(field, stored)
                requested = by_column.get(number, usual)
                # dtype={column: str} says that a column is text; its integers have the usual dtype.
                kind = usual if number in self.texts and requested.kind == "U" else requested
                if kind.kind not in "biuf":
                    raise TypeError(f"DataSet: dtype must be numeric, or str for one column; given {kind}")
                field_dtypes.append(kind)
                if number in self.texts:
                    self.types[field, number] = pa.string()
                elif pa.types.is_boolean(found[number]) and number not in by_column:
                    self.types[field, number] = pa.bool_()
                else:
                    # pyarrow does not parse half-precision numbers.
                    self.types[field, number] = pa.from_numpy_dtype(np.dtype("f4") if kind == np.float16 else kind)
            self.dtypes[field] = np.result_type(*field_dtypes)

    def find_usual_dtype(self, field: str, kind: Any) -> np.dtype:
        """The default dtype of a column of this pyarrow type."""
        return find_numpy_dtype(kind)

    def find_types(self, fields: Sequence[str]) -> dict[int, Any]:
        """The pyarrow type of each column of these fields; without fields, of the columns of text."""
        if not fields:
            return dict.fromkeys(self.texts, pa.string())
        types: dict[int, Any] = {}
        for field in fields:
            for number in self.columns[field]:
                # A column that is both data and label is read as the wider of its types.
                kind = self.types[field, number]
                types[number] = kind if number not in types else _widen_type(types[number], kind)
        return types

    def find_dtype(self, field: str, missing: Any) -> np.dtype:
        """The dtype of the rows of a field. Integers that may be missing become float64, which has a NaN."""
        stored = self.dtypes[field]
        return np.dtype("f8") if missing == "nan" and stored.kind != "f" else stored

    def compute_shape(self, field: str, rows: int) -> tuple[int, ...]:
        width = sum(self.widths.get(number, 1) for number in self.columns[field])
        if self.data_shape is not None and field == "data":
            return (rows, *self.data_shape)
        return (rows,) if self.single[field] and width == 1 else (rows, width)

    def find_offset(self, field: str, index: int) -> int:
        """The index in a row of the first value of the field's column `index`."""
        return sum(self.widths.get(number, 1) for number in self.columns[field][:index])

    def fill_rows(
        self, target: np.ndarray, table: Any, field: str, codes: Callable[[int, Any], Any], missing: Any, place: Place
    ) -> None:
        """Write the rows of a table into `target`; `codes(number, column)` returns the integers of a column of text.

        `table`: a pyarrow table with columns named by their numbers.
        """
        flat = target.reshape(len(target), -1) if len(target) else target
        at = 0
        for number in self.columns[field]:
            values = self._convert_column(table, number, field, codes, missing, place)
            width = self.widths.get(number, 1)
            if len(target):
                flat[:, at : at + width] = values.reshape(len(target), width)
            at += width

    def _convert_column(
        self, table: Any, number: int, field: str, codes: Callable[..., Any], missing: Any, place: Place
    ) -> np.ndarray:
        """The values of a column, `widths` for each row. A missing float is NaN; other dtypes follow missing=."""
        column, width = table[str(number)], self.widths.get(number, 1)
        if pa.types.is_fixed_size_list(column.type):
            column = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
        dtype = self.find_dtype(field, missing)
        absent = dtype.kind != "f" and column.null_count > 0
        if absent and missing == "error":
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise make_missing_error(self.name_value(place(row // width), number, row % width))
        if absent:
            check_fits(missing, dtype, f"column {self.names[number]!r} of {self.path}")
        if number in self.texts:
            return codes(number, column)
        if column.type == pa.bool_():
            column = column.cast(pa.int8())
        if absent:
            column = column.fill_null(pa.scalar(int(missing), column.type))
        return column.to_numpy()

    def name_value(self, place: str, number: int, index: int | None = None) -> str:
        """Describe the value `index` of a column in the row at `place`, for a message."""
        inside = "" if index is None or self.widths.get(number, 1) == 1 else f", element {index}"
        return f"{place}, column {self.names[number]!r}{inside}"

    def locate(self, field: str, index: Sequence[int]) -> tuple[int, int]:
        """The column of the value at `index` of a row, and its index in that column's list."""
        shape = self.compute_shape(field, 1)[1:]
        left = int(np.ravel_multi_index(tuple(index), shape)) if shape else 0
        for number in self.columns[field]:
            width = self.widths.get(number, 1)
            if left < width:
                break
            left -= width
        return number, left

    def check_categories(self, values: Mapping[int, Sequence[str]]) -> None:
        """Raises ReaderError if the dtype of a field cannot represent the number of texts of a column."""
        for field, numbers in self.columns.items():
            for number in numbers:
                count = len(values.get(number, ()))
                check_categories(self.path, f"column {self.names[number]!r}", count, self.dtypes[field])


def is_number(kind: Any) -> bool:
    return is_whole(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def is_whole(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def find_numpy_dtype(kind: Any) -> np.dtype:
    """The NumPy dtype of a pyarrow type; `to_pandas_dtype` would need pandas."""
    found: np.dtype = pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    return found


def _widen_type(one: Any, other: Any) -> Any:
    if one == other:
        return one
    return pa.from_numpy_dtype(np.result_type(find_numpy_dtype(one), find_numpy_dtype(other)))
