"""Converts columns of Parquet and TFRecord, in stored pyarrow types, to the types as which they are read."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import pa, pc
from matex_tf.readers.base.formats import ReaderError


class Unfit(Exception):
    """The value at `index` cannot be converted to the type of its column. The text says what was expected and found."""

    def __init__(self, index: int, text: str):
        super().__init__(text)
        self.index = index


def find_value_type(kind: Any) -> tuple[Any, bool]:
    """The type of the values of a column of the stored type `kind`, and whether a row is a list of values."""
    if pa.types.is_dictionary(kind):
        return kind.value_type, False
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return kind.value_type, True
    return kind, False


def is_bytes(kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def find_plain_type(kind: Any) -> Any:
    """The numeric type of values in another representation: decimals as floats, times as integers."""
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return pa.float64()
    return pa.int64() if pa.types.is_temporal(kind) else kind


def check_type(path: Path, name: str, stored_type: Any, kind: Any, requested_dtype: np.dtype | None) -> None:
    """Raises ReaderError for a column whose values are neither numbers nor texts.

    Args:
        stored_type: the type of the column, such as list<binary>.
        kind: the type of its values, such as binary.
        requested_dtype: the dtype= of this column.
    """
    types = pa.types
    if types.is_temporal(kind) and requested_dtype is None:
        raise ReaderError(
            f"{path}: expected numbers or texts in column {name!r}, found {stored_type}; dtype={{{name!r}: 'int64'}} "
            "reads them as integers, columns= leaves the column out"
        )
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    is_text = types.is_string(kind) or types.is_large_string(kind) or is_bytes(kind)
    is_number_requested = requested_dtype is not None and requested_dtype.kind != "U"
    if is_bytes(kind) and kind != stored_type and is_number_requested:
        is_text = False  # bytes in lists or in a dictionary cannot be decoded as numbers
    if not (is_number or is_text or types.is_temporal(kind) or types.is_null(kind)):
        raise ReaderError(
            f"{path}: expected numbers or texts in column {name!r}, or lists of numbers, found {stored_type}; write "
            "its values to columns of their own, or leave it out with columns="
        )
    if requested_dtype is not None and requested_dtype.kind == "b" and not types.is_boolean(kind):
        raise ReaderError(f"{path}: column {name!r} holds values of {stored_type}, which dtype='bool' cannot hold")


def count_values(lists: Any) -> np.ndarray:
    """The number of values in each row of a column of lists, int64; 0 for a missing list."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    counts[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    return counts


def pad_lists(lists: Any, counts: np.ndarray, width: int) -> Any:
    """The values of all rows, padded with missing values to `width` values a row."""
    flat_values = lists.flatten()
    if (counts == width).all():
        return flat_values
    # With rows [1], [2, 3] and width 2: starts 0, 1; padded indices of 1, 2, 3: 0, 2, 3; the result takes the values
    # 0, none, 1, 2 of `flat_values`.
    starts = np.cumsum(counts) - counts  # the index of each row's first value in `flat_values`
    padded_indices = np.arange(len(flat_values)) + np.repeat(np.arange(len(counts)) * width - starts, counts)
    flat_indices, is_padding = np.zeros(len(counts) * width, np.int64), np.ones(len(counts) * width, bool)
    flat_indices[padded_indices], is_padding[padded_indices] = np.arange(len(flat_values)), False
    return flat_values.take(pa.array(flat_indices, mask=is_padding))


def view_bytes(column: Any, dtype: np.dtype) -> Any:
    """View a column of bytes as lists of numbers of `dtype`, in native byte order.

    Raises ValueError if a row's number of bytes is not a multiple of the item size.
    """
    column = column.cast(pa.large_binary()).fill_null(b"")
    # Row i has the bytes from offset i up to offset i + 1 of `data`. A sliced column does not begin with offset 0.
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    if (np.diff(offsets) % dtype.itemsize).any():
        row = int((np.diff(offsets) % dtype.itemsize != 0).argmax())
        raise ValueError(
            f"expected bytes of whole numbers of {dtype}, {dtype.itemsize} each; found {np.diff(offsets)[row]} bytes"
        )
    byte_array = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    numbers = byte_array[offsets[0] : offsets[-1]].copy().view(dtype)
    return pa.LargeListArray.from_arrays(pa.array((offsets - offsets[0]) // dtype.itemsize), pa.array(numbers))


def convert_values(column: Any, kind: Any) -> Any:
    """Convert a column to the type `kind`. Floats may be rounded; other values do not change.

    A narrow type of floats would make large numbers infinite. So floats keep their type, and decimals and texts become
    float64; `Columns.fill_rows` then rounds them to the dtype of the rows, and finds a number that is too large.

    Raises Unfit for a value that cannot be converted.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(kind) and not pa.types.is_integer(column.type):
        kind = column.type if pa.types.is_floating(column.type) else pa.float64()
    try:
        return _cast(column, kind)
    except pa.ArrowInvalid:
        # The shortest beginning of the column that cannot be converted ends with the first wrong value.
        index = bisect.bisect_left(range(len(column)), True, key=lambda last: not _can_cast(column[: last + 1], kind))
        value = column[index].as_py()
        raise Unfit(index, _describe_unfit(value, kind)) from None


def _cast(column: Any, kind: Any) -> Any:
    """Convert a column to the type `kind`; in several casts where pyarrow has no direct one. Raises ArrowInvalid."""
    if column.type == kind:
        return column
    types = pa.types
    if types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    if types.is_string(kind):
        return column.cast(kind)
    if types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if types.is_decimal(column.type) and types.is_floating(kind):
        column = column.cast(pa.float64())
    if types.is_float16(column.type):
        column = column.cast(pa.float32())
    return pc.cast(column, options=pc.CastOptions(kind, allow_float_truncate=types.is_floating(kind)))


def _can_cast(column: Any, kind: Any) -> bool:
    try:
        _cast(column, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _describe_unfit(value: Any, kind: Any) -> str:
    if isinstance(value, bytes):
        return (
            f"expected text in UTF-8, found {len(value)} bytes that are not ({value[:8].hex(' ')}). dtype= names the "
            "type of numbers that are stored as bytes, such as 'uint8', by the name of the column"
        )
    if pa.types.is_string(kind):
        return f"expected text, found {value!r}"
    return f"expected a number that {kind} holds, found {value!r}; give another dtype="
