"""The base class of formats, and the register of formats by name.

A format is a class that opens files, counts their rows, and reads rows a to b. `rows/opening.py` opens formats; scripts
may `register` their own. A part is "training", "validation" or "testing", a field "data" or "labels".
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.errors import ReaderError as ReaderError
from matex_tf.readers.base import files

PARTS = ("training", "validation", "testing")
FIELDS = ("data", "labels")


def make_dtype(kind: Any) -> np.dtype:
    """The NumPy dtype of an option dtype=. Raises TypeError."""
    try:
        return np.dtype(kind)
    except TypeError:
        raise TypeError(
            f"DataSet: expected dtype to be a NumPy dtype, or one for each column or variable in a dictionary; given "
            f"{arguments.describe_value(kind)}"
        ) from None


def check_categories(path: Path, subject: str, count: int, dtype: np.dtype) -> None:
    """Raises ReaderError if `dtype` cannot represent 0 to `count` - 1, the integers of `count` different texts."""
    if dtype.kind in "iu":
        largest = np.iinfo(dtype).max
    elif dtype.kind == "b":
        largest = 1
    else:
        largest = 2 ** np.finfo(dtype).nmant  # the bits of the mantissa
    if count - 1 > largest:
        raise ReaderError(
            f"{path}: expected at most {largest + 1} different texts in {subject}, the integers of its dtype {dtype}; "
            f"found {count}; give a wider dtype="
        )


def assign_values(target: np.ndarray, values: np.ndarray, find_place: Callable[[tuple[int, ...]], str]) -> None:
    """Write `values` into `target`, of the same shape. Floats may be rounded.

    Raises ReaderError for a finite number that `target` can only hold as an infinity. `find_place(index)` returns the
    position of the value at an index, for messages.
    """
    with np.errstate(over="ignore"):
        target[...] = values
    if np.can_cast(values.dtype, target.dtype):
        return
    is_lost = np.isinf(target) & np.isfinite(values)
    if is_lost.any():
        index = tuple(int(number) for number in np.argwhere(is_lost)[0])
        raise ReaderError(
            f"{find_place(index)}: {values[index]} is too large for dtype={target.dtype.name!r}; give a wider one"
        )


@dataclass(frozen=True)
class Ranks:
    """The ranks that read a data set together: this rank, the number of ranks, and the host of each."""

    rank: int = 0
    size: int = 1
    hosts: Sequence[str] = field(default=("",))

    @property
    def leader(self) -> int:
        """The first rank on this rank's host."""
        return self.hosts.index(self.hosts[self.rank])


def split_range(lengths: Iterable[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Split `start` to `stop`, counted over a sequence of files, into ranges of one file each.

    Yields (index of the file, first, last), counted in the file. Files of 3 and 5 rows, 2 to 6: (0, 2, 3), (1, 0, 3).
    """
    file_start = 0
    for index, length in enumerate(lengths):
        first, last = max(start - file_start, 0), min(stop - file_start, length)
        if first < last:
            yield index, first, last
        file_start += length


@dataclass
class KeptRows:
    """Rows that were read while a data set was opened: rank 0 has the first rows of the files, rank 1 the next rows."""

    counts: Sequence[int]  # the number of rows of each rank
    rows: dict[str, list[np.ndarray]]  # for each field, arrays whose concatenation is this rank's rows


class Format(ABC):
    """One format of files. It does not use MPI: any process may read any rows.

    The constructor of a subclass takes the path and its own keyword options. It finds the files, reads their headers,
    and raises FileNotFoundError or ReaderError if something is wrong. `register` gives the class a name.

    Some formats must read more than headers before rows can be counted. They do so in surveys, which run one after
    another when a data set is opened: in a survey each rank searches its part of the files (`survey`), then every rank
    receives the results of all ranks (`settle`).

    Attributes:
        files: the files that it reads.
        compared: the files whose sizes and first bytes ranks compare; None: `files`.
        own_testing: whether testing rows have files of their own; otherwise they are split from the training rows.
        labelled: whether there are labels.
        categories: for each column of text, its values in the order of their integers.
        missing: the treatment of missing values, as in `DataSet(missing=...)`; set before anything is read.
        surveys: the number of surveys.
        keep: whether surveys may keep the rows that they read; set before the first survey.
        kept: the rows, if every rank has kept its rows in a survey.
    """

    files: Sequence[Path] = ()
    compared: Sequence[Path] | None = None
    own_testing: bool = False
    labelled: bool = True
    categories: dict[str, list[str]] = {}
    missing: Any = "error"
    surveys: int = 0
    keep: bool = False
    kept: KeptRows | None = None

    @abstractmethod
    def count(self, part: str) -> int:
        """The number of rows of the part "training", or "testing" if `own_testing`."""

    @abstractmethod
    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        """Read the rows `start` to `stop` of the part's "data" or "labels", in the machine's byte order.

        It should keep no other rows in memory. Missing values are NaN. Raises ReaderError if the file ends early or
        cannot be decoded.
        """

    def describe(self) -> str:
        """The contents of the headers in a few words. Ranks that read the same files must have the same text."""
        return ""

    # Most formats need none of the following methods.

    def survey(self, turn: int, ranks: Ranks) -> Any:  # noqa: B027
        """Survey number `turn`: search this rank's part of the files. Returns a small result, for all ranks."""

    def settle(self, turn: int, ranks: Ranks, found: Sequence[Any]) -> None:  # noqa: B027
        """Use the results of all ranks, in rank order. After the last survey, rows can be counted and read."""

    def end_surveys(self) -> None:  # noqa: B027
        """Called after all ranks have finished their last `settle`, such as to remove temporary files."""

    def read_together(self, action: Callable[[], Any]) -> Any:
        """Return `action()`, which reads this rank's rows while other ranks read theirs, perhaps collectively."""
        return action()

    def chunk_rows(self, part: str, field: str) -> int:
        """The number of rows that the files store together: reading one of them costs as much as reading all."""
        return 1

    def describe_place(self, part: str, field: str, row: int, index: tuple[int, ...]) -> str:
        """The position in the files of the value `index` of a row, for messages."""
        element_text = f", element {list(index)} of it" if index else ""
        return f"row {row} of the {part} {field}{element_text}"

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        """Whether `path`, a folder or a file that begins with the bytes `head`, has this format."""
        return False


_formats: dict[str, type[Format]] = {}


def register(*names: str) -> Any:
    """Class decorator: a Format is then used by `DataSet(name, path)`, for each of `names`, in upper or lower case."""

    for name in names or (None,):  # None: no name was given, which is an error
        if not isinstance(name, str) or not name:
            raise TypeError(
                f'register: expected names of a format, as in @register("MINE"); given {arguments.describe_value(name)}'
            )

    def add_format(format_class: type[Format]) -> type[Format]:
        if not isinstance(format_class, type) or not issubclass(format_class, Format):
            raise TypeError(f"register: expected a subclass of Format; given {arguments.describe_value(format_class)}")
        for name in names:
            _formats[name.upper()] = format_class
        return format_class

    return add_format


def is_known(name: str) -> bool:
    """Whether a format of that name is registered."""
    return str(name).upper() in _formats


def recognise_format(path: str | PathLike[str] | Sequence[Any]) -> str:
    """The name of the format of the file or folder `path`, recognized by its content.

    Raises FileNotFoundError if there is no such file, and ValueError if no format recognizes it.
    """
    first_file = files.find_files(path, allow_folder=True)[0]
    head = files.read_head(first_file, 512)
    for name, format_class in _formats.items():
        if format_class.recognises(first_file, head):
            return name
    beginning = f"begins with the bytes {files.describe_head(head)}" if head else "is a folder or has no bytes"
    raise ValueError(
        f"DataSet: {first_file} {beginning}, which tells no format; name it: DataSet(format, path), with one of "
        f"{', '.join(sorted(_formats))}"
    )


def open_format(name: str, path: Any, options: dict[str, Any], missing: Any = "error") -> Format:
    """Open `path` with the registered format `name`.

    Raises ValueError for an unknown name, with the choices, and TypeError for an unknown option, with the valid ones.
    """
    format_class = _formats.get(name.upper()) if isinstance(name, str) else None
    if format_class is None:
        raise ValueError(
            f"DataSet: there is no format {arguments.describe_value(name)}; the formats are "
            f"{', '.join(sorted(_formats))}"
        )
    make_format: Callable[..., Format] = format_class
    parameters = list(inspect.signature(format_class).parameters.values())[1:]  # without the path
    option_names = [parameter.name for parameter in parameters]
    unknown_options = sorted(set(options) - set(option_names))
    if unknown_options:
        options_text = f"its options are {', '.join(option_names)}" if option_names else "it has no options of its own"
        raise TypeError(f"DataSet: the format {str(name).upper()} has no option {unknown_options[0]!r}; {options_text}")
    required_options = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    missing_options = [name for name in required_options if name not in options]
    if missing_options:
        raise TypeError(f"DataSet: the format {str(name).upper()} needs the option {missing_options[0]}=...")
    try:
        opened_format = make_format(path, **options)
    except ImportError as error:
        raise ReaderError(
            f"{path}: the format {str(name).upper()} is read with a package that cannot be imported here ({error}). "
            "`pip install netCDF4 h5py pyarrow zarr` installs the packages of all formats; for a NumPy older than "
            "2, which TensorFlow 2.15 needs, install 'pyarrow<23'"
        ) from error
    opened_format.missing = missing
    return opened_format
