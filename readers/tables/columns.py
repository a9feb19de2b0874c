"""The columns of a table: their roles (data or labels) and types; conversion of table blocks to rows.

A row of a field, "data" or "labels", has the values of the field's columns, one after another. The width of a column is
the number of its values in each row, 1 except for lists. A text becomes an integer, its code: 0 for "cat", 1 for "dog".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.lazy import pa
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, assign_values, check_categories, make_dtype
from matex_tf.readers.rows.missing import check_fits, make_missing_error

Column = str | int
FindPlace = Callable[[int], str]  # returns the file and position of a row of a table block, for messages
EncodeTexts = Callable[[int, Any], np.ndarray]  # returns the codes of a column of text, from its number and values


class Columns:
    """The columns that are read, and their dtypes. A column is known by its number, counted from 0.

    A format calls `choose_columns`, then `choose_types`. Later `typed/format.py` sets `widths`, which are known only
    after a search of the files.
    """

    def __init__(self, path: Path, names: Sequence[str]):
        self.path, self.names = path, list(names)  # the names of all columns of the file
        # Set by `choose_columns`.
        self.columns: dict[str, list[int]] = {}  # by field
        self.is_scalar: dict[str, bool] = {}  # by field: whether a row of width 1 is a number instead of a vector
        # Set by `choose_types`.
        self.texts: list[int] = []  # the columns of text
        self.requested_texts: set[int] = set()  # the columns of text that dtype= requests as text
        self.types: dict[tuple[str, int], Any] = {}  # by field and column: the pyarrow type as which it is read
        self.dtypes: dict[str, np.dtype] = {}  # by field: of its rows, in which all columns have one dtype
        # Set by `typed/format.py`.
        self.widths: dict[int, int] = {}  # see `find_width`; only of columns of lists
        self.data_shape: tuple[int, ...] | None = None  # the option shape=: the shape of a row of data

    def choose_columns(
        self, labels: Column | Sequence[Column] | None, columns: Column | Sequence[Column] | None
    ) -> None:
        """Set the columns of data and labels. Raises ReaderError for a missing column."""
        has_several_labels = isinstance(labels, (list, tuple))
        label_columns: Any = labels if has_several_labels else [] if labels is None else [labels]
        label_numbers = [self.find_column(column) for column in label_columns]
        if isinstance(columns, (str, int)):
            columns = [columns]
        if columns is not None and not isinstance(columns, (list, tuple, range)):
            raise TypeError(
                f"DataSet: expected columns to be names or numbers; given {arguments.describe_value(columns)}"
            )
        if columns is None:
            columns = [number for number in range(len(self.names)) if number not in label_numbers]
        data = [self.find_column(column) for column in columns]
        if not data:
            raise ReaderError(f"{self.path}: expected a column of data in addition to the labels, found none")
        self.columns = {"data": data, "labels": label_numbers} if label_numbers else {"data": data}
        self.is_scalar = {"data": False, "labels": not has_several_labels}

    def describe_columns(self) -> str:
        """Names and types of the columns, as text, by which ranks compare whether they see the same table."""
        texts = [self.names[number] for number in self.texts]
        return f"columns {self.names}, text in {texts}, {[str(kind) for kind in self.types.values()]}"

    @property
    def used(self) -> list[int]:
        """The numbers of all columns that are read."""
        return sorted({number for numbers in self.columns.values() for number in numbers})

    def find_column(self, column: Column) -> int:
        """The number of a column from its name or number; -1 is the last. Raises ReaderError if there is none."""
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
        """The dtypes from the option dtype={column: dtype}, by number of column; none for another form of dtype=."""
        dtype_items = dtype.items() if isinstance(dtype, Mapping) else ()
        return {self.find_column(key): make_dtype(kind) for key, kind in dtype_items}

    def choose_types(self, stored_types: Mapping[int, Any], dtype: Any) -> None:
        """Set `texts`, `requested_texts`, `types` and `dtypes` from the pyarrow types in the file and from dtype=.

        Raises TypeError for a dtype that is not numeric.
        """
        requested_dtypes = self.list_dtypes(dtype)
        data_dtype = None if dtype is None or isinstance(dtype, Mapping) else make_dtype(dtype)
        for number, stored_type in stored_types.items():
            is_text = requested_dtypes[number].kind == "U" if number in requested_dtypes else not is_number(stored_type)
            if is_text:
                self.texts.append(number)
        self.requested_texts = {number for number in self.texts if number in requested_dtypes}
        for field, numbers in self.columns.items():
            field_dtypes = []
            for number in numbers:
                kind = pa.int64() if number in self.texts else stored_types[number]  # a text's code is an integer
                has_data_dtype = data_dtype is not None and field == "data"
                default_dtype: Any = data_dtype if has_data_dtype else self.find_default_dtype(field, kind)
                column_dtype = _choose_dtype(requested_dtypes.get(number), default_dtype)
                field_dtypes.append(column_dtype)
                if number in self.texts:
                    self.types[field, number] = pa.string()
                elif pa.types.is_boolean(stored_types[number]) and number not in requested_dtypes:
                    self.types[field, number] = pa.bool_()
                else:
                    # pyarrow does not parse half-precision numbers.
                    parsed_dtype = np.dtype("f4") if column_dtype == np.float16 else column_dtype
                    self.types[field, number] = pa.from_numpy_dtype(parsed_dtype)
            self.dtypes[field] = np.result_type(*field_dtypes)

    def find_default_dtype(self, field: str, kind: Any) -> np.dtype:
        """The dtype of a column of the pyarrow type `kind`, if dtype= does not name another one."""
        return find_numpy_dtype(kind)

    def find_types(self, fields: Iterable[str]) -> dict[int, Any]:
        """The pyarrow type as which each column of these fields is read, by number of column."""
        types: dict[int, Any] = {}
        for field in fields:
            for number in self.columns[field]:
                # A column that is both data and label is read once, as the wider of its types.
                kind = self.types[field, number]
                types[number] = kind if number not in types else _widen_type(types[number], kind)
        return types

    def find_text_types(self) -> dict[int, Any]:
        """As `find_types`, for the columns of text only."""
        return dict.fromkeys(self.texts, pa.string())

    def find_dtype(self, field: str, missing: Any) -> np.dtype:
        """The dtype of the rows of a field. With missing="nan" integers become float64, which has a NaN."""
        dtype = self.dtypes[field]
        return np.dtype("f8") if missing == "nan" and dtype.kind != "f" else dtype

    def find_width(self, number: int) -> int:
        """The number of values of a column in each row: 1, except for columns of lists."""
        return self.widths.get(number, 1)

    def compute_shape(self, field: str, rows: int) -> tuple[int, ...]:
        """The shape of an array of `rows` rows of a field."""
        if self.data_shape is not None and field == "data":
            return (rows, *self.data_shape)
        row_width = sum(map(self.find_width, self.columns[field]))
        return (rows,) if self.is_scalar[field] and row_width == 1 else (rows, row_width)

    def find_offset(self, field: str, index: int) -> int:
        """The position in a row of the first value of the column `self.columns[field][index]`."""
        return sum(map(self.find_width, self.columns[field][:index]))

    def fill_rows(
        self, target: np.ndarray, table: Any, field: str, encode: EncodeTexts, missing: Any, find_place: FindPlace
    ) -> None:
        """Write the rows of a pyarrow table, whose columns are named by their numbers, into `target`."""
        flat_target = target.reshape(len(target), -1) if len(target) else target
        offset = 0
        for number in self.columns[field]:
            values = self._convert_column(table, number, field, encode, missing, find_place)
            width = self.find_width(number)
            if len(target):
                assign_values(
                    flat_target[:, offset : offset + width],
                    values.reshape(len(target), width),
                    lambda index: self.name_value(find_place(index[0]), number, index[1]),  # noqa: B023
                )
            offset += width

    def _convert_column(
        self, table: Any, number: int, field: str, encode: EncodeTexts, missing: Any, find_place: FindPlace
    ) -> np.ndarray:
        """The values of a column, `find_width(number)` for each row.

        A missing float becomes NaN, which `rows/missing.py` treats. A missing value of another dtype is an error, or is
        replaced by the number `missing`.
        """
        column, width = table[str(number)], self.find_width(number)
        if pa.types.is_fixed_size_list(column.type):
            column = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
        dtype = self.find_dtype(field, missing)
        must_replace = dtype.kind != "f" and column.null_count > 0
        if must_replace and missing == "error":
            index = int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise make_missing_error(self.name_value(find_place(index // width), number, index % width))
        if must_replace:
            check_fits(missing, dtype, f"column {self.names[number]!r} of {self.path}")
        if number in self.texts:
            return encode(number, column)
        if column.type == pa.bool_():
            column = column.cast(pa.int8())
        if must_replace:
            column = column.fill_null(pa.scalar(int(missing), column.type))
        return column.to_numpy()

    def name_value(self, place: str, number: int, index: int | None = None) -> str:
        """Describe a value for a message: the row at `place`, the column `number`, the `index` in the row's list."""
        element_text = "" if index is None or self.find_width(number) == 1 else f", element {index}"
        return f"{place}, column {self.names[number]!r}{element_text}"

    def find_value(self, field: str, index: Sequence[int]) -> tuple[int, int]:
        """The number of the column of the value at `index` of a row, and the value's index in the column's list."""
        row_shape = self.compute_shape(field, 1)[1:]
        offset = int(np.ravel_multi_index(tuple(index), row_shape)) if row_shape else 0
        numbers = self.columns[field]
        column_ends = np.cumsum([self.find_width(number) for number in numbers])
        position = int(np.searchsorted(column_ends, offset, side="right"))
        return numbers[position], offset - self.find_offset(field, position)

    def check_categories(self, values: Mapping[int, Sequence[str]]) -> None:
        """Raises ReaderError if the dtype of a field cannot represent the codes of the texts `values` of a column."""
        for field, numbers in self.columns.items():
            for number in numbers:
                count = len(values.get(number, ()))
                check_categories(self.path, f"column {self.names[number]!r}", count, self.dtypes[field])


def _choose_dtype(requested_dtype: np.dtype | None, default: np.dtype) -> np.dtype:
    """The dtype of a column from dtype={column: dtype}, or else its default. Raises TypeError if it is not numeric."""
    # dtype={column: str} says that a column is text; its codes have the default dtype.
    dtype = default if requested_dtype is None or requested_dtype.kind == "U" else requested_dtype
    if dtype.kind not in "biuf":
        raise TypeError(f"DataSet: dtype must be numeric, or str for one column; given {dtype}")
    return dtype


def is_number(kind: Any) -> bool:
    """Whether the pyarrow type `kind` holds numbers. A column without values counts as one of numbers."""
    return is_whole(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def is_whole(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def find_numpy_dtype(kind: Any) -> np.dtype:
    """The NumPy dtype of a pyarrow type; `to_pandas_dtype` would need pandas."""
    dtype: np.dtype = pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    return dtype


def _widen_type(kind: Any, other_kind: Any) -> Any:
    if kind == other_kind:
        return kind
    return pa.from_numpy_dtype(np.result_type(find_numpy_dtype(kind), find_numpy_dtype(other_kind)))
