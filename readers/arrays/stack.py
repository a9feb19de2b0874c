"""Base class of the array formats (NetCDF, HDF5, Zarr): concatenates files, and stacks variables as channels.

Calls of the C libraries go through `library.py`; with parallel=True, reads are collective transfers (`collective.py`).
Files may store dimensions in different orders: an `Arrangement` brings their samples into the order of the first file.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.readers.arrays import collective, contents, dimensions, library, options
from matex_tf.readers.arrays.texts import agree_on_texts
from matex_tf.readers.arrays.variable import Variable
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import Format, Ranks, ReaderError, check_categories, split_range
from matex_tf.readers.base.unchanged import Unchanged
from matex_tf.sharding import slice_bounds
from matex_tf.sharding.shard_arrays import ShardArray
from matex_tf.world import world

_NO_NAME = "(no name)"  # says that the dimension of samples has none, so every variable uses the number of the axis


class Stack(Format):
    """Samples along one dimension of the variables `data` and `labels`. Several variables become the last axis,
    channels: data=["u", "v"] with samples of 8x9 numbers gives rows [8, 9, 2].

    The constructor reads the headers of all files one after another. The first file and variable of a field set the
    dimensions, shape and dtype of its samples; `_compare_variable` compares all others with them.
    """

    kind = "file"
    allow_folder = False
    # Whether integers may be missing, because the format can mark a number as missing.
    marks_missing = False

    def __init__(
        self,
        path: str | PathLike[str] | Sequence[Any],
        data: options.Names | None = None,
        labels: options.Names | None = None,
        sample: str | int | None = None,
        parallel: bool = False,
        dtype: Any = None,
    ):
        if arguments.check_flag("DataSet", "parallel", parallel):
            self.require_parallel()
        self.parallel = parallel and world.is_active()
        self.files = files.find_files(path, self.allow_folder)
        self._transfers: collective.Transfers | None = None
        if isinstance(sample, bool) or not (sample is None or isinstance(sample, (str, int))):
            raise TypeError(
                f"DataSet: expected sample to be a dimension's name or number; given {arguments.describe_value(sample)}"
            )
        self._sample = sample
        # The name of the dimension of samples. `find_axis` sets it for the first variable, if sample= is not a name.
        self._sample_name = ""
        self.variable_names = {"data": options.list_names(data), "labels": options.list_names(labels)}
        # Whether a field is one variable, so that its rows have no axis of channels.
        self._is_one_variable = {"data": isinstance(data, str), "labels": isinstance(labels, str)}
        self.labelled = bool(self.variable_names["labels"])
        self.compared = [file for path in self.files for file in self.list_compared(path)]
        self._unchanged = Unchanged(self.compared)
        # By dtype=: the dtypes of fields, and the variables to be read as texts.
        self._field_dtypes, self._text_names = options.list_dtypes(dtype, self.variable_names)
        self.categories = {}
        self._open_file: tuple[Path | None, library.OpenFile | None] = (None, None)
        # Of the samples of each field ("data" or "labels"), as in the first file and variable.
        self._dimensions: dict[str, list[dimensions.Dimension]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype] = {}
        self._chunks = {"data": 1, "labels": 1}  # by field: the number of samples in the largest chunk
        # By field, file and variable: how its samples come into the order of the first ones.
        self._arrangements: dict[tuple[str, Path, str], dimensions.Arrangement] = {}
        self._texts: dict[str, None] = {}  # the names of the text variables, in order of appearance (an ordered set)
        self._lengths: list[int] = []  # the number of samples of each file
        try:
            for file in self.files:
                self._read_headers(file)
        except Exception as error:
            try:
                self.close_file()  # the exception refers to this object, which would keep the file open
            finally:
                raise error  # also if closing fails
        self.surveys = int(bool(self._texts))  # the number of searches of all files before any row is read (`survey`)

    def require_parallel(self) -> None:
        """Raises ReaderError if the library was built without MPI-IO, which `parallel=True` needs."""
        raise ReaderError(
            f"parallel=True: {self.kind} does not support collective reads. Without parallel=True each rank reads its "
            "own rows independently"
        )

    @abstractmethod
    def open_file(self, path: Path) -> Any:
        """Open a file; the result has a method `close`."""

    def open_together(self, path: Path, communicator: Any) -> Any:
        """Open a file on all ranks of an MPI communicator. Called only if `require_parallel` raises no error."""
        raise NotImplementedError

    @abstractmethod
    def find_variable(self, file: Any, path: Path, name: str) -> Variable | None:
        """The variable `name`; None if there is none. Raises ReaderError for a variable without numbers or texts."""

    def list_compared(self, path: Path) -> list[Path]:
        """The files whose contents show whether two ranks see the same data at `path`."""
        return [path]

    def check_whole(self, file: Any, path: Path, name: str) -> None:
        """Raises ReaderError if a file or object that the variable `name` refers to is missing."""

    @abstractmethod
    def list_names(self, file: Any) -> list[str]:
        """The names of all variables, as `find_variable` takes them."""

    def _keep_open(self, path: Path) -> Any:
        """The open file `path`. It stays open for the next read, which mostly uses the same file."""
        if self._open_file[0] != path:
            self.close_file()
            with self.convert_errors(path):
                self._open_file = (path, library.OpenFile(lambda: self.open_file(path)))
        assert self._open_file[1] is not None
        return self._open_file[1].file

    def close_file(self) -> None:
        """Close the open file, if any."""
        file, self._open_file = self._open_file[1], (None, None)
        if file is not None:
            file.close()

    def read_together(self, action: Callable[[], Any]) -> Any:
        if not self.parallel:
            return action()
        self._transfers = collective.Transfers(self)
        try:
            return self._transfers.run_action(action)
        finally:
            self._transfers = None

    def fetch(self, path: Path, variable: Variable, action: Callable[[Any], Any], size: int = 0) -> Any:
        """Return `action(variable)`, a library call that reads `size` bytes; collective during a collective read."""
        if self._transfers is not None:
            return self._transfers.fetch(path, variable.name, action)
        return library.call_library(lambda: action(variable), library.estimate_seconds(size))

    def convert_errors(self, path: Path, activity: str = "opening") -> contextlib.AbstractContextManager[None]:
        return contents.convert_errors(path, self.kind, activity)

    def _read_headers(self, path: Path) -> None:
        """Find the variables of a file, and compare them with those of the first file."""
        file = self._keep_open(path)
        lengths = {}
        for field, names in self.variable_names.items():
            # Without data=, `_require_variable` raises an error that lists the variables of the file.
            required_names: Sequence[str | None] = names or ([] if field == "labels" else [None])
            for name in required_names:
                if name is not None:
                    with self.convert_errors(path, f"looking for {name!r} in"):
                        self.check_whole(file, path, name)
                variable = self._require_variable(file, path, name)
                lengths[variable.name] = variable.length
                self._compare_variable(field, path, variable)
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{count} in {name!r}" for name, count in lengths.items())
            raise ReaderError(f"{path}: expected the same number of samples in every variable, found {counts}")
        self._lengths.append(next(iter(lengths.values())))

    def _open_variable(self, field: str, path: Path, name: str) -> Variable:
        """The variable of a file, with its arrangement. Raises ReaderError if the file has changed."""
        for file in self.list_compared(path):
            self._unchanged.check(file)
        variable = self._require_variable(self._keep_open(path), path, name)
        variable.arrangement = self._arrangements.get((field, path, variable.name))
        return variable

    def _require_variable(self, file: Any, path: Path, name: str | None) -> Variable:
        """The variable `name`; errors list the names of the file. None: data= was not given, which is an error."""
        with self.convert_errors(path, "looking for variables in"):
            variable = library.call_library(lambda: self.find_variable(file, path, name)) if name is not None else None
            if variable is not None:
                return variable
            names = library.call_library(lambda: self.list_names(file))
        names_text = files.format_names(names, most=30)
        if name is None:
            raise TypeError(f"{path}: data= has to name the variable to read; the file has {names_text}")
        suggestion = files.suggest_similar(name, names)
        raise ReaderError(f"{path}: expected a variable {name!r}, found none{suggestion}; the file has {names_text}")

    def _compare_variable(self, field: str, path: Path, variable: Variable) -> None:
        """Set the arrangement of a variable. Raises ReaderError if shape or dtype of samples differ from the first."""
        shape = variable.row_shape
        if len(self.files) * len(self.variable_names[field]) > 1:  # there are others to compare with
            with self.convert_errors(path, f"reading the dimensions of {variable.name!r} from"):
                stored_dimensions = library.call_library(variable.list_dimensions)
            first_name, first_file = self.variable_names[field][0], self.files[0]
            try:
                arrangement = dimensions.match_dimensions(
                    self._dimensions.setdefault(field, stored_dimensions), stored_dimensions
                )
            except dimensions.DifferentDimensions as error:
                raise ReaderError(
                    f"{path}, {variable.name!r}: expected, as for {first_name!r} of {first_file}, {error}"
                ) from None
            if arrangement is not None:
                self._arrangements[field, path, variable.name] = arrangement
                shape = arrangement.order_shape(shape)
        if variable.is_text:
            self._texts[variable.name] = None
        requested_dtype = self._field_dtypes.get(field)
        if requested_dtype is not None and not variable.is_text:
            options.check_holds(requested_dtype, variable.dtype, f"{path}: {variable.name!r}")
        dtype = variable.dtype if requested_dtype is None else requested_dtype
        first_shape, first_dtype = self._shapes.setdefault(field, shape), self._dtypes.setdefault(field, dtype)
        if (shape, dtype) != (first_shape, first_dtype):
            common_dtype = np.result_type(first_dtype, dtype)
            hint = f"; dtype={common_dtype.name!r}, or another one, reads both" if shape == first_shape else ""
            raise ReaderError(
                f"{path}: expected samples of {variable.name!r} like those of {self.variable_names[field][0]!r} in "
                f"{self.files[0]}, {list(first_shape)} {first_dtype}; found {list(shape)} {dtype}{hint}"
            )
        self._chunks[field] = max(self._chunks[field], variable.chunk)

    def find_axis(self, path: Path, name: str, dimension_names: Sequence[str], shape: Sequence[int]) -> int:
        """The axis of samples of a variable with this shape and these names of dimensions.

        It is the axis with the name of the first variable's dimension of samples; if no axis has this name, the axis of
        the number sample= (by default 0), or of the name sample=.
        """
        if not shape:
            raise ReaderError(f"{path}: expected a dimension of samples in {name!r}, found a single value")
        names = [
            dimension_name if dimensions.Dimension(dimension_name).is_named else None
            for dimension_name in dimension_names
        ]
        # Other variables may have the first variable's dimension of samples at another axis.
        if self._sample_name in names:
            return names.index(self._sample_name)
        sample = 0 if self._sample is None else self._sample
        if isinstance(sample, int) and -len(shape) <= sample < len(shape):
            self._sample_name = self._sample_name or names[sample] or _NO_NAME
            return sample % len(shape)
        if isinstance(self._sample, str) and self._sample in dimension_names:
            return list(dimension_names).index(self._sample)
        dimensions_text = ", ".join(map(str, dimension_names)) or f"{len(shape)} without names"
        raise ReaderError(
            f"{path}: expected the dimension {self._sample!r} in {name!r} (sample=), found the dimensions "
            f"{dimensions_text}{files.suggest_similar(self._sample, dimension_names)}"
        )

    def count(self, part: str) -> int:
        return sum(self._lengths) if part == "training" else 0

    def find_dtype(self, field: str) -> np.dtype:
        """The dtype of the rows of a field. With missing="nan", integers that may be missing become float64."""
        has_texts = not self._texts.keys().isdisjoint(self.variable_names[field])
        stored_dtype = self._dtypes[field]
        # Only floats have a NaN.
        may_be_missing = has_texts or (self.marks_missing and stored_dtype.kind in "iu")
        return np.dtype("f8") if may_be_missing and self.missing == "nan" else stored_dtype

    # A variable of texts needs one survey (see `Format`): every rank counts the texts of its block of the samples, and
    # `settle` makes one list of the texts of all ranks, in which the index of a text is its integer.

    def survey(self, turn: int, ranks: Ranks) -> dict[str, Counter[str]]:
        text_counts: dict[str, Counter[str]] = {name: Counter() for name in self._texts}
        start, stop = slice_bounds.deal_block(self.count("training"), ranks.rank, ranks.size)
        for file_index, begin, end in split_range(self._lengths, start, stop):
            path = self.files[file_index]
            for name, counts in text_counts.items():
                with self.convert_errors(path, f"reading {name!r} from"):
                    counts += self._require_variable(self._keep_open(path), path, name).count_texts(begin, end)  # type: ignore[attr-defined]
        return text_counts

    def settle(self, turn: int, ranks: Ranks, found: Sequence[dict[str, Counter[str]]]) -> None:
        for name in self._texts:
            text_counts = [rank_texts[name] for rank_texts in found]
            self.categories[name] = agree_on_texts(self.files[0], name, text_counts, name in self._text_names)
            for field in [field for field, names in self.variable_names.items() if name in names]:
                check_categories(self.files[0], repr(name), len(self.categories[name]), self.find_dtype(field))

    def chunk_rows(self, part: str, field: str) -> int:
        return self._chunks[field]

    def describe(self) -> str:
        descriptions = [
            f"{names or None}: {self._shapes.get(field)} {self._dtypes.get(field)}"
            for field, names in self.variable_names.items()
        ]
        return f"{', '.join(descriptions)}, samples {self._lengths}"

    def read(self, part: str, field: str, start: int, stop: int) -> np.ndarray:
        names = self.variable_names[field]
        file_ranges = list(split_range(self._lengths, start, stop))
        if len(file_ranges) == 1 and self._is_one_variable[field]:  # then one call may return the rows, without a copy
            file_index, begin, end = file_ranges[0]
            path = self.files[file_index]
            with self.convert_errors(path, f"reading {names[0]!r} from"):
                samples = self._open_variable(field, path, names[0]).read_at_once(begin, end)
            if samples is not None and samples.dtype == self.find_dtype(field):
                return samples
        shape = self._shapes[field] if self._is_one_variable[field] else (*self._shapes[field], len(names))
        rows = ShardArray((stop - start, *shape), self.find_dtype(field))
        filled_rows = 0
        for file_index, begin, end in file_ranges:
            path, target = self.files[file_index], rows[filled_rows : filled_rows + end - begin]
            filled_rows += end - begin
            for channel, name in enumerate(names):
                with self.convert_errors(path, f"reading {name!r} from"):
                    variable = self._open_variable(field, path, name)
                    variable.fill_array(target if self._is_one_variable[field] else target[..., channel], begin, end)
        return rows

    def describe_place(self, part: str, field: str, row: int, index: tuple[int, ...]) -> str:
        file_index, row_in_file, _ = next(split_range(self._lengths, row, row + 1))
        names = self.variable_names[field]
        name = names[0] if self._is_one_variable[field] else names[index[-1]]
        index = index if self._is_one_variable[field] else index[:-1]
        path = self.files[file_index]
        variable = self._open_variable(field, path, name)
        return f"{path}, {name!r}{[row_in_file, *variable.find_stored_index(index)]}"
