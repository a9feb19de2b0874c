"""What a format is: a class that opens, counts, and reads rows a to b; and the register of them by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.errors import ReaderError as ReaderError

PARTS = ("training", "validation", "testing")
FIELDS = ("data", "labels")


def make_dtype(kind: Any) -> np.dtype:
    """A NumPy dtype that is given as an option. Raises TypeError."""
    try:
        return np.dtype(kind)
    except TypeError:
        raise TypeError(
            f"DataSet: expected dtype to be a NumPy dtype, or one for each column or variable in a dictionary; given "
            f"{arguments.describe_value(kind)}"
        ) from None


def check_categories(path: Path, what: str, count: int, dtype: np.dtype) -> None:
    """Raises ReaderError where `dtype` does not hold 0 to `count` - 1, the integers of that many different texts."""
    most = np.iinfo(dtype).max if dtype.kind in "iu" else 1 if dtype.kind == "b" else 2 ** np.finfo(dtype).nmant
    if count - 1 > most:
        raise ReaderError(
            f"{path}: expected at most {most + 1} different texts in {what}, the integers of its dtype {dtype}; found "
            f"{count}; give a wider dtype="
        )


@dataclass(frozen=True)
class Ranks:
    """Who shares the reading: this rank, how many there are, and the host of each."""

    rank: int = 0
    size: int = 1
    hosts: Sequence[str] = field(default=("",))

    @property
    def leader(self) -> int:
        """The first rank on this rank's host."""
        return self.hosts.index(self.hosts[self.rank])


@dataclass
class Held:
    """Rows that were read while they were counted, those of a rank after those of the rank before.

    counts: how many each rank has. rows: this rank's, by field, in arrays that follow each other.
    """

    counts: Sequence[int]
    rows: dict[str, list[np.ndarray]]


class Format(ABC):
    """One format of files. Knows nothing of MPI: any process may ask for any rows.

    A subclass takes the path and its own keyword options in `__init__`, which opens: it finds the files, reads their
    headers, and raises FileNotFoundError or ReaderError where something is wrong. `register` makes it known by name.

    Attributes:
        files: the files that it reads.
        compared: the files whose sizes and first bytes ranks compare; None for `files`.
        own_testing: whether testing rows are files of their own; else they are cut from the training rows.
        labelled: whether there are labels.
        categories: for each column of text, its values in the order of their numbers.
        missing: what becomes of missing values, as in `DataSet(missing=...)`; set before anything is read.
        surveys: how many times ranks have to look into the files together before rows can be counted.
        keep: whether rows that a survey reads may be kept; set before it.
        held: all rows, where the surveys of all ranks together have kept them.
    """

    files: Sequence[Path] = ()
    compared: Sequence[Path] | None = None
    own_testing: bool = False
    labelled: bool = True
    categories: dict[str, list[str]] = {}
    missing: Any = "error"
    surveys: int = 0
    keep: bool = False
    held: Held | None = None

    @abstractmethod
    def count(self, part: str) -> int:
        """How many rows the part has: "training", and "testing" where `own_testing`."""

    @abstractmethod
    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of the part's "data" or "labels": all of them, in the machine's byte order.

        No more than those rows is to be held in memory. What is missing is NaN. Raises ReaderError where the file
        ends early or cannot be decoded.
        """

    def describe(self) -> str:
        """What the headers say, in a few words; where ranks read the same files they have the same text."""
        return ""

    # Most formats need none of these four.

    def survey(self, turn: int, ranks: Ranks) -> Any:  # noqa: B027
        """What has to be known of the files beyond their headers, found in this rank's part of them alone.

        Runs `surveys` times on every rank after opening; what it returns must not be large.
        """

    def settle(self, turn: int, ranks: Ranks, found: Sequence[Any]) -> None:  # noqa: B027
        """Take what all ranks found, in their order; after the last turn rows can be counted and read."""

    def settled(self) -> None:  # noqa: B027
        """Every rank has settled."""

    def together(self, action: Callable[[], Any]) -> Any:
        """`action()`, which reads this rank's rows while every other rank reads its own."""
        return action()

    def chunk_rows(self, part: str, field: str) -> int:
        """How many rows the files store together, so that reading one costs as much as reading all."""
        return 1

    def place(self, part: str, field: str, row: int, index: tuple[int, ...]) -> str:
        """Where in the files the value `index` of a row stands, for a person."""
        inside = f", element {list(index)} of it" if index else ""
        return f"row {row} of the {part} {field}{inside}"

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        """Whether `path`, a folder or a file that begins with the bytes `head`, is of this format."""
        return False


_formats: dict[str, type[Format]] = {}


def register(*names: str) -> Any:
    """Class decorator: make a Format known as `DataSet(name, path)`, for each of `names`, in any case."""

    for name in names or (None,):
        if not isinstance(name, str) or not name:
            raise TypeError(
                f'register: expected names of a format, as in @register("MINE"); given {arguments.describe_value(name)}'
            )

    def add(kind: type[Format]) -> type[Format]:
        if not isinstance(kind, type) or not issubclass(kind, Format):
            raise TypeError(f"register: expected a subclass of Format; given {arguments.describe_value(kind)}")
        for name in names:
            _formats[name.upper()] = kind
        return kind

    return add


def is_known(name: str) -> bool:
    """Whether a format of that name is registered."""
    return str(name).upper() in _formats


def recognise_format(path: str | PathLike[str] | Sequence[Any]) -> str:
    """The name of the format of what lies at `path`, told by its content.

    Raises FileNotFoundError where nothing is there and ValueError where no format knows it.
    """
    from matex_tf.readers.base import files

    first = files.find_files(path, allow_folder=True)[0]
    head = b""
    if not first.is_dir():
        with open(first, "rb") as file:
            head = file.read(512)
    for name, kind in _formats.items():
        if kind.recognises(first, head):
            return name
    begin = f"begins with the bytes {files.describe_head(head)}" if head else "is a folder or has no bytes"
    raise ValueError(
        f"DataSet: {first} {begin}, which tells no format; name it: DataSet(format, path), with one of "
        f"{', '.join(sorted(_formats))}"
    )


def open_format(name: str, path: Any, options: dict[str, Any], missing: Any = "error") -> Format:
    """The registered format `name`, opened at `path`.

    Raises ValueError naming the choices for an unknown name, TypeError naming the right options for an unknown option.
    """
    kind = _formats.get(name.upper()) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(
            f"DataSet: there is no format {arguments.describe_value(name)}; the formats are "
            f"{', '.join(sorted(_formats))}"
        )
    make: Callable[..., Format] = kind
    parameters = list(inspect.signature(kind).parameters.values())[1:]
    right = [parameter.name for parameter in parameters]
    unknown = sorted(set(options) - set(right))
    if unknown:
        options_are = f"its options are {', '.join(right)}" if right else "it has no options of its own"
        raise TypeError(f"DataSet: the format {str(name).upper()} has no option {unknown[0]!r}; {options_are}")
    needed = [one.name for one in parameters if one.default is one.empty and one.name not in options]
    if needed:
        raise TypeError(f"DataSet: the format {str(name).upper()} needs the option {needed[0]}=...")
    try:
        opened = make(path, **options)
    except ImportError as error:
        raise ReaderError(
            f"{path}: the format {str(name).upper()} is read with a package that cannot be imported here ({error}). "
            "`pip install netCDF4 h5py pyarrow zarr` installs those of all formats; beside a NumPy older than 2, as "
            "TensorFlow 2.15 needs it, take 'pyarrow<23'"
        ) from error
    opened.missing = missing
    return opened
