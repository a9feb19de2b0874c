"""Reads a pickle of plain values and NumPy arrays without running any of it: nothing is imported and nothing called.

`_Reader` follows the steps of the format, which is that of Python's Lib/pickletools.py; `load_pickle` is the way in.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from matex_tf.readers.base.formats import ReaderError
from matex_tf.readers.images.pickle_values import Array, Dtype, Lying, Name, Text, shorten_value

_LONG = 4096
_MOST_STEPS = 4_000_000
_MOST_KEYS = 1000  # keys can be chosen so that a dict takes the square of their number in time
_MOST_SHOWN = 200


_MARK = object()


class _Reader:
    """Follows the steps of a pickle, a program that may call any function, by name.

    Containers, numbers and texts are built, the functions with which NumPy writes an array are recognised, and anything
    else is an error. Long strings of bytes are not read; they become the place where they lie in the file. What is
    built takes memory in proportion to the file; values may be nested in each other many times, so none is shown whole.
    """

    def __init__(self, path: Path | str, file: BinaryIO, size: int):
        self.path, self.file, self.size = path, file, size
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0

    def make_error(self, expected: str, found: object) -> ReaderError:
        found = (found if isinstance(found, str) else shorten_value(found))[:_MOST_SHOWN]
        return ReaderError(
            f"{self.path}: not a pickle of plain values and arrays, or a damaged one: at byte {self.file.tell()} "
            f"expected {expected}, found {found}"
        )

    def take_bytes(self, count: int) -> bytes:
        if count < 0 or self.file.tell() + count > self.size:
            raise ReaderError(
                f"{self.path}: truncated: expected {count} bytes from byte {self.file.tell()} on, found the end of the "
                f"file at {self.size}"
            )
        return self.file.read(count)

    def read_number(self, form: str) -> int:
        return struct.unpack(form, self.take_bytes(struct.calcsize(form)))[0]

    def read_line(self) -> bytes:
        line = self.file.readline(_LONG)
        if not line.endswith(b"\n"):
            raise self.make_error("a line", line[:40])
        return line[:-1]

    def read_bytes(self, length: int) -> Any:
        if length <= _LONG:
            return self.take_bytes(length)
        place = Lying(self.file.tell(), length)
        if place.offset + length > self.size:
            self.take_bytes(length)  # the error of a truncated file
        self.file.seek(length, 1)
        return place

    def read_text(self, length: int) -> Any:
        data = self.take_bytes(length)
        if length > _LONG:
            return Text(data)
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise self.make_error("text in UTF-8", data[:20]) from None

    def pop_value(self) -> Any:
        if not self.stack:
            raise self.make_error("a value", "none")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        values = []
        while (value := self.pop_value()) is not _MARK:
            values.append(value)
        return values[::-1]

    def read_value(self) -> Any:
        for _ in range(_MOST_STEPS):
            code = self.take_bytes(1)
            if code == b".":
                return self.pop_value()
            step = _STEPS.get(code)
            if step is None:
                raise self.make_error("a step that builds plain values", f"{code!r}")
            step(self)
        raise self.make_error(f"at most {_MOST_STEPS} steps", "more")


def _push_value(make: Any) -> Any:
    return lambda reader: reader.stack.append(make(reader))


def _read_integer_line(reader: _Reader) -> Any:
    line = reader.read_line()
    if line in (b"00", b"01"):
        return line == b"01"
    try:
        return int(line.rstrip(b"L"))
    except ValueError:
        raise reader.make_error("a number", line[:20]) from None


def _put_memo(key: Any) -> Any:
    def step(reader: _Reader) -> None:
        index = key(reader)
        if not 0 <= index <= _MOST_STEPS:
            raise reader.make_error(f"the number of a value to keep, at most {_MOST_STEPS}", index)
        reader.memo[index] = reader.stack[-1] if reader.stack else reader.pop_value()

    return step


def _get_memo(key: Any) -> Any:
    def step(reader: _Reader) -> None:
        index = key(reader)
        if index not in reader.memo:
            raise reader.make_error("a value that was kept before", index)
        reader.stack.append(reader.memo[index])

    return step


def _append_values(many: bool) -> Any:
    def step(reader: _Reader) -> None:
        values = reader.pop_to_mark() if many else [reader.pop_value()]
        target = reader.stack[-1] if reader.stack else None
        if not isinstance(target, list):
            raise reader.make_error("a list", type(target).__name__)
        target.extend(values)

    return step


def _set_items(many: bool) -> Any:
    def step(reader: _Reader) -> None:
        values = reader.pop_to_mark() if many else [reader.pop_value(), reader.pop_value()][::-1]
        target = reader.stack[-1] if reader.stack else None
        if not isinstance(target, dict) or len(values) % 2:
            raise reader.make_error("a dict", type(target).__name__)
        for key, value in zip(values[::2], values[1::2]):
            if not isinstance(key, (str, bytes, int)):
                raise reader.make_error("a key of text or a number", type(key).__name__)
            target[key] = value
        if len(target) > _MOST_KEYS:
            raise reader.make_error(f"at most {_MOST_KEYS} keys", f"{len(target)} of them")

    return step


def _make_tuple(count: int | None) -> Any:
    def make(reader: _Reader) -> tuple[Any, ...]:
        return tuple(reader.pop_to_mark() if count is None else [reader.pop_value() for _ in range(count)][::-1])

    return _push_value(make)


def _read_global_line(reader: _Reader) -> Name:
    return Name(reader.read_line().decode("latin-1"), reader.read_line().decode("latin-1"))


def _pop_global(reader: _Reader) -> Name:
    name, module = reader.pop_value(), reader.pop_value()
    if not isinstance(module, str) or not isinstance(name, str):
        raise reader.make_error("the name of a function", f"{type(module).__name__} and {type(name).__name__}")
    return Name(module, name)


def _reduce_call(reader: _Reader) -> Any:
    arguments, function = reader.pop_value(), reader.pop_value()
    what = function.what if isinstance(function, Name) else type(function).__name__
    if not isinstance(arguments, tuple):
        raise reader.make_error("a tuple of arguments", type(arguments).__name__)
    if what == "numpy.core.multiarray._reconstruct":
        return Array()
    if what == "numpy.dtype" and arguments:
        made = Dtype()
        made.name = arguments[0]
        return made
    if what == "_codecs.encode" and len(arguments) == 2:
        return _encode_text(reader, *arguments)
    if what == "numpy.core.numeric._frombuffer" and len(arguments) == 4:
        array = Array()
        array.content, array.dtype, array.shape = arguments[:3]
        array.fortran = arguments[3] == "F"
        return array
    raise reader.make_error("plain values and arrays", f"a call of {what}")


def _encode_text(reader: _Reader, text: Any, encoding: Any) -> bytes:
    if encoding not in ("latin1", "latin-1", "bytes"):
        raise reader.make_error("bytes written as Latin-1", encoding)
    # A text may be kept and encoded again and again; together those that are written once are less than the file.
    reader.encoded += len(text.data if isinstance(text, Text) else text if isinstance(text, str) else "")
    if reader.encoded > reader.size:
        raise reader.make_error(f"letters that stand for at most {reader.size} bytes", "more")
    try:
        text = text.data.decode("utf-8", "surrogatepass") if isinstance(text, Text) else text
        return text.encode("latin-1")
    except (UnicodeError, AttributeError):
        raise reader.make_error("letters that stand for bytes", type(text).__name__) from None


def _build_value(reader: _Reader) -> None:
    state, target = reader.pop_value(), reader.stack[-1] if reader.stack else None
    if isinstance(target, Dtype) and isinstance(state, tuple):
        return
    if not isinstance(target, Array) or not isinstance(state, tuple) or len(state) != 5:
        raise reader.make_error("the state of an array", type(state).__name__)
    _, target.shape, target.dtype, target.fortran, target.content = state


def _push_mark(reader: _Reader) -> None:
    reader.stack.append(_MARK)


def _skip_form(form: str | None) -> Any:
    return lambda reader: reader.read_number(form) if form else None


_STEPS: dict[bytes, Any] = {
    b"\x80": _skip_form("<B"),
    b"\x95": _skip_form("<Q"),
    b"(": _push_mark,
    b"0": lambda reader: reader.pop_value(),
    b"N": _push_value(lambda reader: None),
    b"\x88": _push_value(lambda reader: True),
    b"\x89": _push_value(lambda reader: False),
    b"I": _push_value(_read_integer_line),
    b"L": _push_value(_read_integer_line),
    b"J": _push_value(lambda reader: reader.read_number("<i")),
    b"K": _push_value(lambda reader: reader.read_number("<B")),
    b"M": _push_value(lambda reader: reader.read_number("<H")),
    b"\x8a": _push_value(
        lambda reader: int.from_bytes(reader.take_bytes(reader.read_number("<B")), "little", signed=True)
    ),
    b"G": _push_value(lambda reader: reader.read_number(">d")),
    b"U": _push_value(lambda reader: reader.read_bytes(reader.read_number("<B"))),
    b"T": _push_value(lambda reader: reader.read_bytes(reader.read_number("<i"))),
    b"C": _push_value(lambda reader: reader.read_bytes(reader.read_number("<B"))),
    b"B": _push_value(lambda reader: reader.read_bytes(reader.read_number("<I"))),
    b"\x8e": _push_value(lambda reader: reader.read_bytes(reader.read_number("<Q"))),
    b"\x96": _push_value(lambda reader: reader.read_bytes(reader.read_number("<Q"))),
    b"X": _push_value(lambda reader: reader.read_text(reader.read_number("<I"))),
    b"\x8c": _push_value(lambda reader: reader.read_text(reader.read_number("<B"))),
    b"\x8d": _push_value(lambda reader: reader.read_text(reader.read_number("<Q"))),
    b"]": _push_value(lambda reader: []),
    b"l": _push_value(lambda reader: reader.pop_to_mark()),
    b"}": _push_value(lambda reader: {}),
    b")": _push_value(lambda reader: ()),
    b"t": _make_tuple(None),
    b"\x85": _make_tuple(1),
    b"\x86": _make_tuple(2),
    b"\x87": _make_tuple(3),
    b"a": _append_values(False),
    b"e": _append_values(True),
    b"s": _set_items(False),
    b"u": _set_items(True),
    b"q": _put_memo(lambda reader: reader.read_number("<B")),
    b"r": _put_memo(lambda reader: reader.read_number("<I")),
    b"\x94": _put_memo(lambda reader: len(reader.memo)),
    b"p": _put_memo(_read_integer_line),
    b"h": _get_memo(lambda reader: reader.read_number("<B")),
    b"j": _get_memo(lambda reader: reader.read_number("<I")),
    b"g": _get_memo(_read_integer_line),
    b"c": _push_value(_read_global_line),
    b"\x93": _push_value(_pop_global),
    b"R": _push_value(_reduce_call),
    b"b": _build_value,
}


def load_pickle(file: BinaryIO, named: Path | str) -> Any:
    """The value in the file, with `Array` for arrays and `Lying` for long bytes; raises ReaderError, naming `named`."""
    size = file.seek(0, 2)
    file.seek(0)
    reader = _Reader(named, file, size)
    value = reader.read_value()
    if file.tell() != size:
        raise reader.make_error("the end of the file", f"{size - file.tell()} bytes more")
    return value
