"""Loads pickles of plain values and NumPy arrays, such as the files of CIFAR-10.

Python's `pickle.load` imports the modules and calls the functions that a pickle names, so a downloaded file could do
anything. Here a pickle can build values only.
"""

from __future__ import annotations

import pickle
import reprlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from matex_tf.readers.base.formats import ReaderError

_LONG = 4096  # bytes objects that are longer stay in the file
_MOST_READS = 10_000_000  # of one pickle: more than any data set needs
_MOST_ARGUMENTS = 8  # of a call
_MOST_KEYS = 1000  # a chosen set of keys can make a dict quadratic in time
_MOST_SHOWN = 200  # characters of an error, in messages


@dataclass(frozen=True)
class FileBytes:
    """The offset and length, in bytes, of a long bytes object that stays in the file."""

    offset: int
    length: int


class Array:
    """An array as described by its pickle: bytes, dtype name, shape, and order.

    `_frombuffer` makes it with all of these; `_reconstruct` makes it empty, and then the pickle sets its state.
    """

    def __init__(self, content: Any = None, dtype: Any = None, shape: Any = None, order: Any = "C"):
        self.content, self.dtype, self.shape, self.fortran = content, dtype, shape, order == "F"

    def __setstate__(self, state: Any) -> None:
        """`state`: version, shape, dtype, whether the order is Fortran's, and bytes, as NumPy writes them."""
        _, self.shape, self.dtype, self.fortran, self.content = state


class Dtype:
    """A NumPy dtype, by name."""

    def __init__(self, name: Any, *_: Any):
        self.name = name

    def __setstate__(self, _: Any) -> None:
        """Ignores byte order and the like: the reader accepts only single bytes."""


class _File:
    """A file that raises an error at its end, and after `_MOST_READS` reads."""

    def __init__(self, file: BinaryIO, named: Path | str):
        self.size = file.seek(0, 2)
        file.seek(0)
        self._file, self._named, self._reads = file, named, 0
        self.tell = file.tell

    def read(self, count: int) -> bytes:
        self._reads += 1
        if self._reads > _MOST_READS:
            raise pickle.UnpicklingError(f"more than {_MOST_READS} values")
        self._check(count)
        return self._file.read(count)

    def readline(self) -> bytes:
        line = self._file.readline(_LONG)
        if not line.endswith(b"\n"):
            raise pickle.UnpicklingError(f"no end of the line {line[:40]!r}")
        return line

    def skip(self, count: int) -> FileBytes:
        self._check(count)
        skipped_bytes = FileBytes(self._file.tell(), count)
        self._file.seek(count, 1)
        return skipped_bytes

    def _check(self, count: int) -> None:
        if self._file.tell() + count > self.size:
            raise ReaderError(
                f"{self._named}: truncated: expected {count} bytes from byte {self._file.tell()} on, found the end of "
                f"the file at {self.size}"
            )


_Base: Any = pickle._Unpickler


class _Unpickler(_Base):
    """Python's unpickler, limited to opcodes that build plain values, with replacements for the functions of NumPy.

    Builds containers, numbers and texts; long bytes objects stay in the file. Memory is proportional to the size of the
    file. Values may be nested deeply, so they are never printed or hashed completely.
    """

    def __init__(self, file: _File):
        super().__init__(file, encoding="bytes")
        self._source, self._encoded = file, 0  # `_encoded`: characters of `_encode_text` so far

    def find_class(self, module: str, name: str) -> Any:
        """The replacement of one of the five functions that NumPy and Python 3 use for arrays and bytes."""
        name = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        functions: dict[str, Callable[..., Any]] = {
            "numpy.core.multiarray._reconstruct": lambda *_: Array(),
            "numpy.core.numeric._frombuffer": Array,
            "numpy.ndarray": Array,
            "numpy.dtype": Dtype,
            "_codecs.encode": self._encode_text,
        }
        if name not in functions:
            raise pickle.UnpicklingError(f"a call of {name}")
        return functions[name]

    def _encode_text(self, text: Any, encoding: Any) -> bytes:
        """The bytes of `text`. In old protocols, Python 3 stores bytes as a call that encodes a text in Latin-1."""
        if encoding not in ("latin1", "latin-1", b"latin1", "bytes") or not isinstance(text, str):
            raise pickle.UnpicklingError(f"bytes encoded as {shorten_value(encoding)} instead of Latin-1")
        # A memoized text may be encoded many times; texts that are stored once cannot exceed the size of the file.
        self._encoded += len(text)
        if self._encoded > self._source.size:
            raise pickle.UnpicklingError(f"encoded texts of more than {self._source.size} bytes")
        return text.encode("latin-1")

    def _push_bytes(self, form: str) -> None:
        """Read a length in the form of `struct`, and push as many bytes; long ones as FileBytes."""
        (length,) = struct.unpack(form, self.read(struct.calcsize(form)))
        if length < 0:
            raise pickle.UnpicklingError("a string of negative length")
        self.append(self.read(length) if length <= _LONG else self._source.skip(length))

    def _call(self) -> None:
        """Replace a function and its arguments on the stack by the result."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(arguments, tuple) or len(arguments) > _MOST_ARGUMENTS or not callable(function):
            raise pickle.UnpicklingError(f"no call with at most {_MOST_ARGUMENTS} arguments")
        self.append(function(*arguments))

    def _set_state(self) -> None:
        """Give the state on the stack to the array or dtype below it."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], (Array, Dtype)):
            raise pickle.UnpicklingError(f"a state for {type(self.stack[-1]).__name__}")
        self.stack[-1].__setstate__(state)

    def _set_items(self, values: list[Any]) -> None:
        """Put `values`, keys and values in turn, into the dict on the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(target) + len(values) // 2 > _MOST_KEYS:
            raise pickle.UnpicklingError(f"a value that is not a dict of at most {_MOST_KEYS} keys")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (str, bytes, int)):
                raise pickle.UnpicklingError(f"a key of type {type(key).__name__}, neither text nor number")
            target[key] = value

    # Opcodes by their bytes; `pickletools` describes them. Python's own functions serve those of containers, numbers,
    # texts, the memo and the end.
    _BUILDING = "( 0 N I L J K M G U C X ] l } ) t a e q r h j c ."
    dispatch = {
        code: _Base.dispatch[code]
        for code in (*map(ord, _BUILDING.split()), *b"\x80\x88\x89\x8a\x8c\x8d\x85\x86\x87\x94\x93")
    } | {
        ord("R"): lambda self: self._call(),
        ord("b"): lambda self: self._set_state(),
        # One key and its value, or several, into a dict.
        ord("s"): lambda self: self._set_items([self.stack.pop(), self.stack.pop()][::-1]),
        ord("u"): lambda self: self._set_items(self.pop_mark()),
        # Bytes after their length, of 4 or 8 bytes.
        ord("T"): lambda self: self._push_bytes("<i"),
        ord("B"): lambda self: self._push_bytes("<I"),
        0x8E: lambda self: self._push_bytes("<Q"),
        0x96: lambda self: self._push_bytes("<Q"),
        0x95: lambda self: self.read(8),  # the beginning of a frame
    }


def load_pickle(file: BinaryIO, named: Path | str) -> Any:
    """Load the value in the file, with `Array` for arrays and `FileBytes` for long bytes objects.

    Raises ReaderError, which names `named`, if the file is damaged, or holds other values.
    """
    source = _File(file, named)
    try:
        value = _Unpickler(source).load()
        if source.tell() != source.size:
            raise pickle.UnpicklingError(f"{source.size - source.tell()} bytes after the end of the pickle")
    except ReaderError:
        raise
    except Exception as error:  # damaged pickles raise arbitrary exceptions in Python's unpickler
        problem = f"{error}" if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: {error}"
        raise ReaderError(
            f"{named}: not a pickle of plain values and arrays, or a damaged one: at byte {source.tell()} found "
            f"{problem[:_MOST_SHOWN]}"
        ) from None
    return value


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong = 2, 60, 60

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring]) + ("..." if len(value) > self.maxstring else "")

    def repr_instance(self, value: Any, level: int) -> str:
        return repr(value) if value is None or isinstance(value, (bool, float)) else type(value).__name__


def shorten_value(value: Any) -> str:
    """A short description of any value of a pickle, for a message."""
    return _Shown().repr(value)
