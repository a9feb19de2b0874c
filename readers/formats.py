"""What a format is: a class that opens, counts, and reads rows a to b; and the register of them by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from os import PathLike
from typing import Any

import numpy as np

PARTS = ("training", "testing")
FIELDS = ("data", "labels")


class ReaderError(ValueError):
    """A file isn't what its format says; the text names file, place, expected and found."""


class Format(ABC):
    """One format of files. Knows nothing of ranks: any process may ask for any rows.

    A subclass takes the path and its own keyword options in `__init__`, which opens: it finds the files, reads their
    headers, and raises FileNotFoundError or ReaderError where something is wrong. `register` makes it known by name.
    """

    @abstractmethod
    def count(self, part: str) -> int:
        """How many rows the part ("training" or "testing") has."""

    @abstractmethod
    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of the part's "data" or "labels": all of them, in the machine's byte order.

        No more than those rows is to be held in memory. Raises ReaderError where the file ends early or cannot be
        decoded.
        """

    @abstractmethod
    def describe(self) -> str:
        """What the headers say, in a few words; where ranks read the same files they have the same text."""


_formats: dict[str, type[Format]] = {}


def register(*names: str) -> Any:
    """Class decorator: make a Format known as `DataSet(name, path)`, for each of `names`, in any case."""

    def add(kind: type[Format]) -> type[Format]:
        for name in names:
            _formats[name.upper()] = kind
        return kind

    return add


def open_format(name: str, path: str | PathLike, options: dict[str, Any]) -> Format:
    """The registered format `name`, opened at `path`.

    Raises ValueError naming the choices for an unknown name, TypeError naming the right options for an unknown option.
    """
    kind = _formats.get(str(name).upper())
    if kind is None:
        raise ValueError(f"DataSet: there is no format {name!r}; the formats are {', '.join(sorted(_formats))}")
    known = list(inspect.signature(kind).parameters)[1:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        right = f"its options are {', '.join(known)}" if known else "it has no options of its own"
        raise TypeError(f"DataSet: the format {str(name).upper()} has no option {unknown[0]!r}; {right}")
    return kind(path, **options)
