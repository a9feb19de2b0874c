"""The index of record files (TFRecord, text, fixed length), kept by compiled code, and the ops that use it.

`matex_tf.input.record_index` makes the index by `find_records` and registers it by `put_records`. The ops then list
records and read them by ticket: the file's number, the offset and the length.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from .library import get_library, load_tensorflow_ops

FORMATS = ("tfrecord", "text", "fixed")
"""Indexed by their numbers in the compiled code."""
NO_SIZE = -1
"""The size of a file that does not exist."""
_MESSAGE_BYTES = 4096  # the maximum length of a message


@dataclass(frozen=True)
class Found:
    """The index of a file, or of some of its bytes: where records are. Offsets and lengths are in bytes.

    offsets: int64. TFRecord: the offset of each record's header. Text: the end of each line from `find_records`, the
        beginning of each line for `put_records`.
    lengths: int64. TFRecord: the length of each record's data. Text: empty from `find_records`; for `put_records` the
        length of each line without its end.
    content: text: the offset of the last byte that belongs to a line; -1: none.
    code, problem, place: TensorFlow's error code, the message without the file's name, and the byte offset from which
        on records cannot be read. With code 0 the message is a warning, or "" if there is no problem.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    content: int = -1
    code: int = 0
    problem: str = ""
    place: int = 0


@functools.cache
def _get_functions() -> ctypes.CDLL:
    library = load_tensorflow_ops().c
    integers = POINTER(c_int64)
    for name, result, arguments in (
        ("find", c_void_p, [c_char_p, c_int, *[c_int64] * 4]),
        ("count", c_int64, [c_void_p]),
        ("take", None, [c_void_p, integers, integers, integers, c_char_p, c_int64]),
        ("put", None, [c_int64, c_char_p, c_int, *[c_int64] * 3, integers, integers, c_int, c_char_p, c_int64]),
        ("bytes", c_int64, []),
    ):
        function = getattr(library, f"matex_records_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def find_records(name: bytes, kind: str, size: int, mtime_ns: int, first: int = 0, last: int = 0) -> Found:
    """The index of bytes `first` up to `last` of a text file, or of a whole TFRecord file. Releases Python's lock.

    In a TFRecord file only headers are read, unless records are shorter than a page. `Found.problem` tells if the file
    is damaged, or if its size or modification time differs from `size` and `mtime_ns`.
    """
    library = _get_functions()
    handle = library.matex_records_find(name, FORMATS.index(kind), size, mtime_ns, first, last)
    offsets = np.empty(library.matex_records_count(handle), np.int64)
    lengths = np.empty(offsets.size if kind == "tfrecord" else 0, np.int64)
    facts, problem = np.empty(3, np.int64), ctypes.create_string_buffer(_MESSAGE_BYTES)
    library.matex_records_take(handle, _point(offsets), _point(lengths), _point(facts), problem, _MESSAGE_BYTES)
    content, code, place = facts.tolist()
    return Found(offsets, lengths, content, code, problem.value.decode(errors="replace"), place)


def put_records(number: int, name: bytes, kind: str, size: int, mtime_ns: int, found: Found) -> None:
    """Register the index of the file `name` with the ops.

    number: of the file in tickets. A new one keeps tickets of the former number from being read from a changed file.
    found: all records of the file.
    """
    offsets, lengths = (np.ascontiguousarray(numbers, np.int64) for numbers in (found.offsets, found.lengths))
    _get_functions().matex_records_put(
        number, name, FORMATS.index(kind), size, mtime_ns, offsets.size, _point(offsets), _point(lengths), found.code,
        found.problem.encode(), found.place,
    )  # fmt: skip


def _point(array: np.ndarray) -> Any:
    return array.ctypes.data_as(POINTER(c_int64))


def read_records(tickets: Any) -> Any:
    """The records of tickets: a string tensor of shape [...] for an int64 tensor of shape [..., 3].

    Raises, when run:
        tf.errors.DataLossError, NotFoundError, ...: as TensorFlow's own datasets, if a file is damaged or missing.
        tf.errors.FailedPreconditionError: the file has changed since it was indexed.
    """
    return get_library().ops.matex_read_record(ticket=tickets)


def count_read_bytes() -> int:
    """The bytes that this process has read from record files, for indexes and for records."""
    return _get_functions().matex_records_bytes()
