"""What a pickle of plain values and NumPy arrays may hold beside them, and any of it as a short text."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lying:
    """Bytes of the file that were not read."""

    offset: int
    length: int


@dataclass(frozen=True)
class Text:
    """A long text whose letters stand for bytes (Latin-1), as Python 3 writes bytes for Python 2; bytes of UTF-8."""

    data: bytes


class Array:
    """An array as its pickle describes it: shape, the name of its dtype, its bytes, and their order."""

    shape: Any = None
    dtype: Any = None
    fortran: Any = False
    content: Any = None


class Dtype:
    name: Any = None


@dataclass(frozen=True)
class Name:
    module: str
    name: str

    @property
    def what(self) -> str:
        # The same functions under the names of NumPy 1 and 2.
        return f"{self.module.replace('numpy._core', 'numpy.core')}.{self.name}"


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong = 2, 60, 60

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring]) + ("..." if len(value) > self.maxstring else "")

    def repr_instance(self, value: Any, level: int) -> str:
        return repr(value) if value is None or isinstance(value, (bool, float)) else type(value).__name__


def shorten_value(value: Any) -> str:
    """A short text of any value of a pickle, for a message."""
    return _Shown().repr(value)
