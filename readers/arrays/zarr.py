"""The Zarr format, versions 2 and 3: chunked arrays in a folder or a zip archive, read by zarr."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from matex_tf.lazy import zarr
from matex_tf.readers.arrays.dimensions import Dimension, make_dimension
from matex_tf.readers.arrays.stack import Stack
from matex_tf.readers.arrays.texts import TextVariable
from matex_tf.readers.arrays.variable import Variable, check_numeric, find_dtypes
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, register

_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")
_ROOTS = ("zarr.json", ".zgroup", ".zarray")
_ZIP = b"PK\x03\x04"


@register("ZARR")
class Zarr(Stack):
    """Arrays of one store, or of several stores that are concatenated ("run_*.zarr", sorted by name).

    `data` and `labels` are paths in the store ("group/x"), or "/" for a store that is a single array. `sample` names
    the dimension of samples, by default the first of an array. Values written by xarray are decoded as xarray does:
    packed values are unpacked (`scale_factor`, `add_offset`); `_FillValue` and `missing_value` mark missing values, and
    in version 2 so does the fill value of an array with `_ARRAY_DIMENSIONS`. A missing chunk has the fill value.
    `dtype` is the dtype of the returned data, or {array: dtype}; str reads numbers stored as text as categories. Texts
    become integers (`DataSet.categories`).
    """

    kind = "Zarr"
    marks_missing = True  # integers may be missing, too
    allow_folder = True

    @classmethod
    def recognises(cls, path: Path, head: bytes) -> bool:
        return _is_store(path, head)

    def list_compared(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return [path]
        # Of a folder: the metadata files of the store and of the arrays that are read.
        folders = {path, *(path / name.strip("/") for names in self.variable_names.values() for name in names)}
        return sorted(file for folder in folders for name in _METADATA if (file := folder / name).is_file())

    def open_file(self, path: Path) -> Any:
        head = files.read_head(path)
        if not _is_store(path, head):
            content = (
                f"a folder with {files.format_names(entry.name for entry in path.iterdir())}" if path.is_dir() else ""
            )
            raise ReaderError(
                f"{path}: expected a Zarr store, a folder or a zip archive with {' or '.join(_ROOTS)} in it; found "
                f"{content or files.describe_head(head)}"
            )
        return _Store(zarr.storage.ZipStore(str(path), mode="r") if head else str(path))  # a folder has no `head`

    def find_variable(self, file: Any, path: Path, name: str) -> Variable | None:
        array = file.find_array(name)
        if array is None:
            return None
        read_dimension = functools.partial(_read_dimension, array, name, file)
        # NumPy's kinds of texts: "U", "S", "T" (StringDType), and objects, whose types are checked at reading.
        if array.dtype.kind not in "USTO":
            return _Variable(self, path, name, array, read_dimension)
        read = functools.partial(_read_texts, path, name, array)
        return TextVariable(self, path, name, array.shape, _list_dimension_names(array), read_dimension, read)

    def list_names(self, file: Any) -> list[str]:
        return sorted(file.list_arrays())


class _Store:
    """An open store: a group, or a single array."""

    def __init__(self, store: Any):
        self._store, self._root = store, zarr.open(store, mode="r")

    def find_array(self, name: str) -> Any:
        """The array of this name; None if there is none. A store that is a single array has the array "/" only."""
        array_name, is_single = name.strip("/"), isinstance(self._root, zarr.Array)
        if is_single:
            return None if array_name else self._root
        array = self._root.get(array_name) if array_name else None
        return array if isinstance(array, zarr.Array) else None

    def list_arrays(self) -> list[str]:
        def walk(group: Any, prefix: str) -> list[str]:
            inner_names = [name for key, subgroup in group.groups() for name in walk(subgroup, f"{prefix}{key}/")]
            return [prefix + key for key, _ in group.arrays()] + inner_names

        return ["/"] if isinstance(self._root, zarr.Array) else walk(self._root, "")

    def close(self) -> None:
        if hasattr(self._store, "close"):
            self._store.close()


def _is_store(path: Path, head: bytes) -> bool:
    """Whether `path`, a folder or a file that begins with `head`, is a Zarr store."""
    if path.is_dir():
        return any((path / name).is_file() for name in _ROOTS)
    if not head.startswith(_ZIP) or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name in archive.namelist() for name in _ROOTS)


def _list_dimension_names(array: Any) -> list[str]:
    """The names of dimensions: in version 3 of the metadata, in version 2 as xarray writes them; "" if unnamed."""
    names = getattr(getattr(array, "metadata", None), "dimension_names", None)
    names = names or array.attrs.get("_ARRAY_DIMENSIONS")
    return [str(name or "") for name in names] if names and len(names) == array.ndim else [""] * array.ndim


def _read_dimension(array: Any, name: str, store: _Store, axis: int) -> Dimension:
    """The dimension at an axis of the array `name`. Its coordinates are the array of its name in the same group."""
    dimension_name = _list_dimension_names(array)[axis]
    group = name.strip("/").rpartition("/")[0]
    coordinates = store.find_array(f"{group}/{dimension_name}") if dimension_name else None
    if coordinates is None or coordinates.ndim != 1:
        return Dimension(dimension_name)
    return make_dimension(dimension_name, np.asarray(coordinates[:]), coordinates.attrs.get("units", ""))


def _read_texts(path: Path, name: str, array: Any, index: tuple[slice, ...]) -> np.ndarray:
    """Texts of the array `name`. Raises ReaderError if objects are no texts."""
    texts = np.asarray(array[index])
    if texts.dtype.kind in "TO":
        texts = texts.astype(object)
        non_text = next((value for value in texts.flat if not isinstance(value, str)), None)
        if non_text is not None:
            check_numeric(path, name, texts.dtype, f"values of type {type(non_text).__name__}")
    return texts


def _can_hold(dtype: np.dtype, number: Any) -> bool:
    """Whether a value of `dtype` can be equal to a number, up to the rounding of a float."""
    with np.errstate(invalid="ignore", over="ignore"):
        converted = number.astype(dtype)
    return bool(converted == number if dtype.kind in "biu" else np.isfinite(converted) == np.isfinite(number))


class _Variable(Variable):
    def __init__(self, owner: Zarr, path: Path, name: str, array: Any, read_dimension: Callable[[int], Dimension]):
        super().__init__(owner, path, name, array.shape, _list_dimension_names(array), read_dimension)
        self._array = array
        self.chunk = int(array.chunks[self.axis])
        attributes = dict(array.attrs)
        self._stored, self.dtype = find_dtypes(path, name, check_numeric(path, name, array.dtype), attributes)
        self._scale, self._offset = attributes.get("scale_factor"), attributes.get("add_offset")
        marks = [attributes.get(key) for key in ("_FillValue", "missing_value")]
        if getattr(getattr(array, "metadata", None), "zarr_format", 2) == 2 and "_ARRAY_DIMENSIONS" in attributes:
            marks.append(array.fill_value)
        mark_values = [value for mark in marks if mark is not None for value in self._decode_mark(mark).ravel()]
        # The values that mark a missing value. With _Unsigned, -1 and 255 are the same byte.
        dtypes = np.dtype(array.dtype), self._stored
        self._marks = [
            value.astype(self._stored) for value in mark_values if any(_can_hold(dtype, value) for dtype in dtypes)
        ]

    def _decode_mark(self, mark: Any) -> np.ndarray:
        """Decode a mark of missing values. In version 3, xarray writes floats as bytes in base 64."""
        if isinstance(mark, str) and self._stored.kind == "f":
            with contextlib.suppress(binascii.Error, struct.error):
                mark = struct.unpack("<d", base64.b64decode(mark, validate=True))[0]
        decoded = np.asarray(mark)
        if decoded.dtype.kind not in "biufc":
            raise ReaderError(
                f"{self._path}: expected a number as the mark of missing values of {self.name!r}, found {mark!r}"
            )
        return decoded

    def read_samples(self, start: int, stop: int) -> np.ndarray:
        samples = np.asarray(self._array[self.make_index(start, stop)])
        samples = np.moveaxis(samples.astype(samples.dtype.newbyteorder("="), copy=False), self.axis, 0)
        if samples.dtype != self._stored:
            samples = samples.view(self._stored)  # with _Unsigned, integers are unsigned
        missing_masks = [np.isnan(samples) if np.isnan(mark) else samples == mark for mark in self._marks]
        if self._scale is not None or self._offset is not None:
            samples = samples.astype(self.dtype)
            samples *= 1 if self._scale is None else self._scale
            samples += 0 if self._offset is None else self._offset
        if any(mask.any() for mask in missing_masks):
            return np.ma.masked_array(samples, np.logical_or.reduce(missing_masks))
        return samples
