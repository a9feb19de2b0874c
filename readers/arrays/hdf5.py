"""The HDF5 format: any numeric or text dataset, in any group, read by h5py."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import h5py
from matex_tf.readers.arrays import contents, library
from matex_tf.readers.arrays.dimensions import Dimension, make_dimension
from matex_tf.readers.arrays.stack import Stack
from matex_tf.readers.arrays.texts import TextVariable
from matex_tf.readers.arrays.variable import Variable, check_numeric
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, register

SIGNATURE = b"\x89HDF\r\n\x1a\n"
NETCDF_ENDINGS = (".nc", ".nc4", ".cdf", ".netcdf")
# netCDF-4 renames a variable that has the name of a dimension but is not its coordinate.
_HIDDEN = "_nc4_non_coord_"


@register("HDF5")
class Hdf5(Stack):
    """Datasets of one file, or of several files that are concatenated ("run_*.h5", sorted by name).

    `data` and `labels` are paths in the file ("group/x"); `sample` is the axis of samples, by default the first.
    `dtype` is the dtype of the returned data, or {dataset: dtype}; str reads numbers stored as text as categories.
    Texts become integers (`DataSet.categories`). `parallel=True` opens files through MPI-IO; h5py must be built with
    MPI.
    """

    kind = "HDF5"

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return head.startswith(SIGNATURE) and path.suffix.lower() not in NETCDF_ENDINGS

    def require_parallel(self) -> None:
        if not h5py.get_config().mpi:
            raise ReaderError(
                "parallel=True: expected an h5py built with MPI, found one without, such as the wheels from PyPI; "
                "build h5py against a parallel HDF5. Without parallel=True each rank opens the file by itself and "
                "reads its own rows, which needs no such build"
            )

    def open_file(self, path: Path) -> Any:
        if not h5py.is_hdf5(path):
            expected = f"an HDF5 file, which begins with {SIGNATURE.hex(' ')}"
            raise files.make_magic_error(path, expected, files.read_head(path))
        return h5py.File(path, "r")

    def open_together(self, path: Path, communicator: Any) -> Any:
        return h5py.File(path, "r", driver="mpio", comm=communicator)

    def find_variable(self, file: Any, path: Path, name: str) -> Variable | None:
        dataset = _find_dataset(file, name)
        if dataset is None:
            return None
        if h5py.check_string_dtype(dataset.dtype) is None:
            return _Variable(self, path, name, dataset)
        texts, names = dataset.asstr("utf-8", "replace"), _list_dimension_names(dataset)
        read_dimension = functools.partial(_read_dimension, dataset)
        return TextVariable(self, path, name, dataset.shape or (), names, read_dimension, texts.__getitem__)

    def check_whole(self, file: Any, path: Path, name: str) -> None:
        check_whole(path, name)

    def list_names(self, file: Any) -> list[str]:
        names: list[str] = []

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and not _is_bare_dimension(item):
                names.append(name.replace(_HIDDEN, ""))

        file.visititems(visit)
        return names


def check_whole(path: Path, name: str) -> None:
    """Raises ReaderError if a file or object that the variable `name` of an HDF5 file refers to is missing.

    HDF5 reports a missing link without its target, and a missing source of a virtual dataset not at all.
    """

    def find_composed() -> tuple[Path, str] | None:
        """File and name of the dataset, if it is made of other datasets or files; else None."""
        with h5py.File(path, "r") as file:
            contents.check_links(path, file, name.strip("/"))
            dataset = _find_dataset(file, name)
            is_composed = dataset is not None and (dataset.is_virtual or dataset.external)
            return (Path(dataset.file.filename), str(dataset.name).strip("/")) if is_composed else None

    if composed_dataset := library.call_library(find_composed):
        contents.check_sources(*composed_dataset)


def _find_dataset(file: Any, name: str) -> Any:
    """The dataset of a variable, including a variable that netCDF-4 has renamed; None if there is none."""
    *groups, dataset_name = name.strip("/").split("/")
    for candidate in (dataset_name, _HIDDEN + dataset_name):
        dataset = file.get("/".join([*groups, candidate]))
        if isinstance(dataset, h5py.Dataset) and not _is_bare_dimension(dataset):
            return dataset
    return None


def _is_bare_dimension(dataset: Any) -> bool:
    """Returns whether netCDF-4 created the dataset for a dimension without coordinates."""
    name = dataset.attrs.get("NAME", b"")
    return bytes(name if isinstance(name, bytes) else str(name).encode()).startswith(b"This is a netCDF dimension but")


def _find_name(dimension: Any) -> str:
    """The name of a dimension: its label, or the name of its attached scale (a dataset, often with its coordinates)."""
    if dimension.label or not len(dimension):
        return str(dimension.label)
    return str(dimension[0].name).rpartition("/")[2].removeprefix(_HIDDEN)


def _list_dimension_names(dataset: Any) -> list[str]:
    return [_find_name(dimension) for dimension in dataset.dims]


def _read_dimension(dataset: Any, axis: int) -> Dimension:
    """The dimension of a dataset at an axis, with the coordinates of its scale."""
    dimension = dataset.dims[axis]
    scale = dimension[0] if len(dimension) else None
    if scale is None or _is_bare_dimension(scale):
        return Dimension(_find_name(dimension))
    units = scale.attrs.get("units", "")
    text = units.decode("utf-8", "replace") if isinstance(units, bytes) else units
    return make_dimension(_find_name(dimension), scale[()], text)


class _Variable(Variable):
    """A dataset of numbers, with samples along `axis`. `arrangement` brings them into the order of the first file."""

    def __init__(self, owner: Hdf5, path: Path, name: str, dataset: Any):
        if dataset.shape is None:
            raise ReaderError(f"{path}: expected numbers in {name!r}, found an empty dataset")
        is_ragged = h5py.check_vlen_dtype(dataset.dtype) is not None
        kind = "numbers of rows of different lengths (VLEN)" if is_ragged else ""
        self.dtype = check_numeric(path, name, dataset.dtype, kind)
        read_dimension = functools.partial(_read_dimension, dataset)
        super().__init__(owner, path, name, dataset.shape, _list_dimension_names(dataset), read_dimension)
        self._dataset = dataset
        if dataset.chunks:
            self.chunk = int(dataset.chunks[self.axis])

    def fill_array(self, target: np.ndarray, start: int, stop: int) -> None:
        # If stored samples have the order, memory layout and dtype of `target`, HDF5 writes into it without a copy.
        is_in_order = self.axis == 0 and self.arrangement is None and target.flags.c_contiguous
        if not is_in_order or target.dtype != self._dataset.dtype or not target.size:
            super().fill_array(target, start, stop)
            return
        for begin, end in self.split_slabs(start, stop, self.choose_slab(target.nbytes)):
            piece = target[begin - start : end - start]
            self._owner.fetch(self._path, self, lambda variable: variable.read_into(piece, begin, end))  # noqa: B023

    def read_samples(self, start: int, stop: int) -> np.ndarray:
        # Indexing is not used: h5py has a fast path for it that is never collective.
        samples = np.empty((*self.shape[: self.axis], stop - start, *self.shape[self.axis + 1 :]), self._dataset.dtype)
        if samples.size:
            self._dataset.read_direct(samples, self.make_index(start, stop))
        return np.moveaxis(samples, self.axis, 0)

    def read_into(self, piece: np.ndarray, start: int, stop: int) -> None:
        self._dataset.read_direct(piece, np.s_[start:stop])

    def enter_collective(self) -> contextlib.AbstractContextManager[object]:
        return self._dataset.collective
