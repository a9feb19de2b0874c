"""Checks the header of a classic NetCDF file against the size of the file.

The format: "NetCDF Classic Format Specification" (Unidata, docs.unidata.ucar.edu, file_format_specifications).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from matex_tf.readers.base.formats import ReaderError

# nc_type: bytes of a value. Types 7 to 11 exist in the 64-bit data format only.
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12  # tags of lists


def is_classic(head: bytes) -> bool:
    """Whether a file begins as a classic one: version 1, 2 (64-bit offsets) or 5 (64-bit data)."""
    return head[:3] == b"CDF" and head[3:4] in (b"\x01", b"\x02", b"\x05")


def check_header(path: Path) -> None:
    """Raises ReaderError if the header is invalid, or describes more or fewer bytes than the file has.

    The C library silently returns zeros for values past the end of a truncated file, and shifted values if bytes were
    inserted.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        min_size, max_size = _Header(path, file, size).compute_sizes()
    if size < min_size:
        raise ReaderError(f"{path}: truncated: its header describes {min_size} bytes, found {size}")
    if size > max_size:
        raise ReaderError(
            f"{path}: too long: its header describes {max_size} bytes, found {size}. Bytes were inserted, so that "
            "values may be shifted, or the file is still being written"
        )


def _pad_count(count: int) -> int:
    """`count` bytes with their padding, a multiple of 4."""
    return count + -count % 4


class _Header:
    """Reads a header in order. `_count_bytes`, `_position_bytes`: the size of a count, and of a file offset."""

    def __init__(self, path: Path, file: BinaryIO, size: int):
        self._path, self._file, self._size = path, file, size
        version = file.read(4)[3]
        self._count_bytes = 8 if version == 5 else 4
        self._position_bytes = 4 if version == 1 else 8

    def _make_error(self, expected: str, found: object) -> ReaderError:
        position = self._file.tell()
        return ReaderError(
            f"{self._path}: damaged NetCDF header before byte {position}: expected {expected}, found {found}"
        )

    def _read_number(self, width: int) -> int:
        data = self._file.read(width)
        if len(data) < width:
            raise ReaderError(
                f"{self._path}: truncated: expected more of the NetCDF header, found the end of the file at byte "
                f"{self._size}"
            )
        return int.from_bytes(data, "big")

    def _read_count(self, items: str) -> int:
        count = self._read_number(self._count_bytes)
        if count > self._size:
            raise self._make_error(f"a number of {items} that fits into {self._size} bytes", count)
        return count

    def _skip_bytes(self, count: int) -> None:
        if self._file.tell() + count > self._size:
            raise self._make_error(f"at most {self._size} bytes in all", f"{count} more")
        self._file.seek(_pad_count(count), os.SEEK_CUR)

    def _read_list(self, tag: int, items: str) -> int:
        """Reads the beginning of a list and returns its number of entries."""
        found_tag, count = self._read_number(4), self._read_count(items)
        if found_tag not in (0, tag) or (found_tag == 0 and count):
            raise self._make_error(f"a list of {items} (tag {tag})", f"tag {found_tag}")
        return count

    def _read_type(self) -> int:
        type_number = self._read_number(4)
        if type_number not in _BYTES or (type_number > 6 and self._count_bytes == 4):
            raise self._make_error("a type of values", type_number)
        return _BYTES[type_number]

    def _skip_attributes(self) -> None:
        for _ in range(self._read_list(_ATTRIBUTE, "attributes")):
            self._skip_bytes(self._read_count("letters"))
            value_bytes = self._read_type()
            self._skip_bytes(value_bytes * self._read_count("values"))

    def compute_sizes(self) -> tuple[int, int]:
        """The size in bytes of a file with all values of the header, (without, with) the padding at its end."""
        record_count = self._read_number(self._count_bytes)  # the length of the unlimited dimension
        lengths = []  # of the dimensions; 0: the unlimited one
        for _ in range(self._read_list(_DIMENSION, "dimensions")):
            self._skip_bytes(self._read_count("letters"))
            lengths.append(self._read_number(self._count_bytes))
        self._skip_attributes()
        # For each variable: (end, padded end); or, if it varies along the unlimited dimension, its position in the
        # first record, and its bytes in a record.
        ends, record_variables = [], []
        for _ in range(self._read_list(_VARIABLE, "variables")):
            self._skip_bytes(self._read_count("letters"))
            dimensions = [self._read_number(self._count_bytes) for _ in range(self._read_count("dimensions"))]
            if any(dimension >= len(lengths) for dimension in dimensions):
                raise self._make_error(f"dimensions below {len(lengths)}", dimensions)
            self._skip_attributes()
            variable_bytes = self._read_type()
            self._read_number(self._count_bytes)  # the stored size is wrong for large variables
            begin = self._read_number(self._position_bytes)
            is_record_variable = bool(dimensions) and lengths[dimensions[0]] == 0
            for dimension in dimensions[1:] if is_record_variable else dimensions:
                variable_bytes *= lengths[dimension]
            if is_record_variable:
                record_variables.append((begin, variable_bytes))
            else:
                ends.append((begin + variable_bytes, begin + _pad_count(variable_bytes)))
        ends.append((self._file.tell(), self._file.tell()))  # of the header
        # Without records, the file may end before the position of the first record, or at it. So this position counts
        # for the largest size only.
        ends.append((0, min((begin for begin, _ in record_variables), default=0)))
        if record_variables and record_count:
            if record_count == 2 ** (8 * self._count_bytes) - 1:
                raise self._make_error("the number of records", "none (the file was not closed by its writer)")
            # A single record variable is stored without padding, but the C library pads its last record.
            is_single = len(record_variables) == 1
            earlier_bytes = (record_count - 1) * sum(
                count if is_single else _pad_count(count) for _, count in record_variables
            )
            ends += [
                (begin + earlier_bytes + count, begin + earlier_bytes + _pad_count(count))
                for begin, count in record_variables
            ]
        return max(end for end, _ in ends), max(padded_end for _, padded_end in ends)
