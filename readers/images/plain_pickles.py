"""Loads pickles of plain values and NumPy arrays. Imports no modules and calls no functions that a pickle names."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, BinaryIO

from matex_tf.readers.base.agreement import FailedElsewhere
from matex_tf.readers.base.formats import ReaderError

_MOST_BYTES = 1 << 30  # of a file; the largest of CIFAR has 155 MB
_MOST_KEYS = 1000  # of a dict
_MOST_SHOWN = 200  # characters of an error, in messages


class Array:
    """Takes the place of a NumPy array: bytes, dtype and shape, as the pickle describes them."""

    def __init__(self, content: Any = None, dtype: Any = None, shape: Any = None, order: Any = "C"):
        self.content, self.dtype, self.shape, self.is_fortran = content, dtype, shape, order == "F"

    def __setstate__(self, state: Any) -> None:
        """`state`: version, shape, dtype, whether the order is Fortran's, and bytes, as NumPy writes them."""
        _, self.shape, self.dtype, self.is_fortran, self.content = state


class Dtype:
    """Takes the place of a NumPy dtype: its name."""

    def __init__(self, name: Any, *_: Any):
        self.name = name

    def __setstate__(self, _: Any) -> None:
        """Ignores byte order and the like: the reader accepts only single bytes."""


# Opcodes, by their bytes (see `pickletools`), of plain values, lists, tuples, the memo, calls and frames.
_OPCODES = b"(0NILJKMGUTXCB]l)tae}rqhjcRb.\x80\x88\x89\x8a\x8b\x8c\x8d\x8e\x85\x86\x87\x93\x94\x95\x96"
_Base: Any = pickle._Unpickler  # in Python: the C version takes memory for any index of the memo


class _Unpickler(_Base):
    """Python's unpickler, limited to `_OPCODES` and to the functions of `find_class`, for which it has replacements.

    A few bytes can nest a value in itself many times. So values are never printed, hashed or compared completely.
    """

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="bytes")
        self._encoded = 0  # bytes that `_encode_text` has returned

    def find_class(self, module: str, name: str) -> Any:
        """What takes the place of the five functions that NumPy and Python 3 use for arrays and bytes."""
        functions: dict[str, Callable[..., Any]] = {
            "numpy.core.multiarray._reconstruct": lambda *_: Array(),
            "numpy.core.numeric._frombuffer": Array,
            "numpy.ndarray": Array,
            "numpy.dtype": Dtype,
            "_codecs.encode": self._encode_text,
        }
        name = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if name not in functions:
            raise pickle.UnpicklingError(f"a call of {name}")
        return functions[name]

    def _encode_text(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1", "bytes"):
            raise pickle.UnpicklingError("bytes that are not a text in Latin-1")
        # A text that the pickle stores once may be encoded many times.
        self._encoded += len(text)
        if self._encoded > _MOST_BYTES:
            raise pickle.UnpicklingError(f"encoded texts of more than {_MOST_BYTES} bytes")
        return text.encode("latin-1")

    def _set_items(self, values: list[Any]) -> None:
        """Put `values`, keys and values in turn, into the dict on the stack."""
        target, keys = self.stack[-1], values[::2]
        # A chosen set of keys can make a dict quadratic in time; the hash of nested tuples can be exponential.
        if len(target) + len(keys) > _MOST_KEYS or not all(isinstance(key, (str, bytes, int)) for key in keys):
            raise pickle.UnpicklingError(f"a dict with other keys than at most {_MOST_KEYS} texts or numbers")
        target.update(zip(keys, values[1::2], strict=True))

    dispatch = {code: _Base.dispatch[code] for code in _OPCODES} | {
        ord("s"): lambda self: self._set_items([self.stack.pop(), self.stack.pop()][::-1]),
        ord("u"): lambda self: self._set_items(self.pop_mark()),
    }


def load_pickle(file: BinaryIO, size: int, named: object) -> Any:
    """Load the value in `file`, which has `size` bytes, with `Array` for arrays.

    Raises:
        ReaderError: the file is damaged, too large, or holds other values. The message names `named`.
    """
    if size > _MOST_BYTES:
        raise ReaderError(f"{named}: expected a pickle of at most {_MOST_BYTES} bytes, found {size}")
    try:
        return _Unpickler(file).load()
    except FailedElsewhere:
        raise
    except Exception as error:  # damaged pickles raise arbitrary exceptions in Python's unpickler
        found = f"{error}" if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: {error}"
        raise ReaderError(
            f"{named}: truncated, or not a pickle of plain values and arrays: found {found[:_MOST_SHOWN]}"
        ) from None
