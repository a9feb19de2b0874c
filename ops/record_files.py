"""Where the records of files begin, found and kept by compiled code; and the ops that list and read records by it."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from .library import get_library, load_tensorflow_ops

FORMATS = ("tfrecord", "text", "fixed")
"""By their numbers in the compiled code."""
NO_SIZE = -1
"""The size of a file that is not there."""
_ROOM = 4096  # bytes of a message


@dataclass(frozen=True)
class Found:
    """What a file has, or a part of it.

    offsets: int64; of TFRecord, where each record's header begins; of text, where each line ends.
    lengths: int64; of TFRecord, of each record's data in bytes; of text empty.
    content: of text, the place of the last byte that is of a line; -1 without one.
    code, problem, place: TensorFlow's code of an error, its sentence, and from which byte on it keeps records from
        being read. Of the code 0 a sentence is a warning, and there is none if nothing is wrong. Not with the name.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    content: int = -1
    code: int = 0
    problem: str = ""
    place: int = 0


@functools.cache
def _get_functions() -> ctypes.CDLL:
    c = load_tensorflow_ops().c
    integers = POINTER(c_int64)
    for name, result, arguments in (
        ("find", c_void_p, [c_char_p, c_int, *[c_int64] * 4]),
        ("count", c_int64, [c_void_p]),
        ("take", None, [c_void_p, integers, integers, integers, c_char_p, c_int64]),
        ("put", c_int64, [c_char_p, c_int, *[c_int64] * 3, integers, integers, c_int, c_char_p, c_int64]),
        ("bytes", c_int64, []),
    ):
        function = getattr(c, f"matex_records_{name}")
        function.restype, function.argtypes = result, arguments
    return c


def find_records(name: bytes, kind: str, size: int, mtime_ns: int, first: int = 0, last: int = 0) -> Found:
    """What bytes `first` to `last` of a file of text have, or all of a file of TFRecord. Other threads go on meanwhile.

    Only headers of TFRecord are read, unless records are shorter than a page. A file that is broken, or not in the
    state of `size` and `mtime_ns`, has a problem.
    """
    c = _get_functions()
    found = c.matex_records_find(name, FORMATS.index(kind), size, mtime_ns, first, last)
    offsets = np.empty(c.matex_records_count(found), np.int64)
    lengths = np.empty(offsets.size if kind == "tfrecord" else 0, np.int64)
    facts, problem = np.empty(3, np.int64), ctypes.create_string_buffer(_ROOM)
    c.matex_records_take(found, _point(offsets), _point(lengths), _point(facts), problem, _ROOM)
    content, code, place = facts.tolist()
    return Found(offsets, lengths, content, code, problem.value.decode(errors="replace"), place)


def put_records(
    name: bytes,
    kind: str,
    size: int,
    mtime_ns: int,
    offsets: np.ndarray,
    lengths: np.ndarray,
    problem: tuple[int, str, int] = (0, "", 0),
) -> int:
    """From now on the ops know where the records of the file `name` lie; its number in tickets.

    Args:
        offsets, lengths: int64; of TFRecord from the header on and of the data, of text of the line without its end.
        problem: code, sentence and place of what comes after these records; see `Found`.
    """
    offsets, lengths = (np.ascontiguousarray(one, np.int64) for one in (offsets, lengths))
    code, text, place = problem
    return _get_functions().matex_records_put(
        name, FORMATS.index(kind), size, mtime_ns, offsets.size, _point(offsets), _point(lengths), code,
        text.encode(), place,
    )  # fmt: skip


def _point(array: np.ndarray) -> Any:
    return array.ctypes.data_as(POINTER(c_int64))


def read_records(tickets: Any) -> Any:
    """The records of tickets: a string tensor of shape [...] for an int64 tensor of shape [..., 3].

    Raises, as it runs:
        tf.errors.DataLossError, NotFoundError, ...: as TensorFlow's own datasets where a file is broken or not there.
        tf.errors.FailedPreconditionError: the file has changed since its records were found.
    """
    return get_library().ops.matex_read_record(ticket=tickets)


def count_read_bytes() -> int:
    """How many bytes this process has read of files of records, to find where these begin and to give them."""
    return _get_functions().matex_records_bytes()
