"""Matches dimensions by name and coordinates, so that samples of all files and channels have one order, as in xarray.

For example, the first file stores samples as (latitude, longitude) from south to north. Another file stores them as
(longitude, latitude) from north to south. Then the samples of the other file are transposed and reversed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# netCDF's names for unnamed dimensions of an HDF5 file.
_NO_NAME = "phony_dim_"
# For example: days since 2000-01-01 00:00:00 UTC. The time and UTC are optional.
_TIME_UNITS = re.compile(
    r"(\w+)\s+since\s+(-?\d+)-(\d+)-(\d+)(?:(?:T|\s+)(\d+):(\d+)(?::(\d+(?:\.\d*)?))?)?\s*(?:Z|UTC|GMT|[+-]00?:?00)?",
    re.IGNORECASE,
)
_UNIT_NAMES = [names.split() for names in ("days day d", "hours hour hrs hr h", "minutes minute mins min")]
_UNIT_NAMES += [["seconds", "second", "secs", "sec", "s"]]


class DifferentDimensions(Exception):
    """Samples have dimensions that cannot be matched. The text says which dimensions differ, and how."""


@dataclass(frozen=True)
class Dimension:
    """A dimension. `name` is empty for an unnamed dimension; `coordinates` is 1-D, in `units`; None if not stored."""

    name: str
    coordinates: np.ndarray | None = None
    units: str = ""

    @property
    def is_named(self) -> bool:
        return bool(self.name) and not self.name.startswith(_NO_NAME)


@dataclass(frozen=True)
class Arrangement:
    """The permutation that brings stored samples into the order of the first file's samples: arranged samples.

    In the example of the module, axes are (1, 0), and indices are (slice(None, None, -1), slice(None)).
    """

    axes: tuple[int, ...]  # for each arranged axis, the stored axis
    indices: tuple[slice | np.ndarray, ...]  # for each arranged axis, the stored indices of its values

    def order_samples(self, samples: np.ndarray) -> np.ndarray:
        """Return stored samples, (samples, *stored shape), as (samples, *arranged shape)."""
        samples = samples.transpose(0, *(axis + 1 for axis in self.axes))
        for axis, index in enumerate(self.indices):
            samples = samples[(slice(None), *[slice(None)] * axis, index)]
        return samples

    def order_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of an arranged sample, from the shape of a stored one."""
        return tuple(shape[axis] for axis in self.axes)

    def find_stored_index(self, index: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
        """The index in a stored sample of the value at `index` of an arranged sample of this shape."""
        stored_index = [0] * len(self.axes)
        for axis, axis_indices, position, length in zip(self.axes, self.indices, index, shape):
            stored_index[axis] = int(np.arange(length)[axis_indices][position])
        return tuple(stored_index)


def match_dimensions(first: Sequence[Dimension], found: Sequence[Dimension]) -> Arrangement | None:
    """The arrangement that brings samples with dimensions `found` into the order of `first`; None if none is needed.

    Dimensions match by name. If both have coordinates, these must be equal up to their order.

    Raises:
        DifferentDimensions: nothing shows that two dimensions are the same, or their coordinates differ.
    """
    if len(first) != len(found):
        return None  # callers report different shapes
    axes = tuple(_find_axis(first, found, axis) for axis in range(len(first)))
    if len(set(axes)) < len(axes):  # with duplicate names, axes match by their order
        axes = tuple(range(len(first)))
    indices = tuple(_match_coordinates(one, found[axis]) for one, axis in zip(first, axes))
    if axes == tuple(range(len(axes))) and all(_is_whole(index) for index in indices):
        return None
    return Arrangement(axes, indices)


def _is_whole(index: slice | np.ndarray) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _find_axis(first: Sequence[Dimension], found: Sequence[Dimension], axis: int) -> int:
    """The axis in `found` of the dimension `first[axis]`, by the first rule that applies:

    1. The same axis, if the two dimensions there have equal names, or one is unnamed.
    2. The axis with the same name.
    3. The same axis, if `first` has no dimension of the other name, and both have coordinates to compare.

    Raises DifferentDimensions if none applies.
    """
    one, other = first[axis], found[axis]
    found_names = [dimension.name for dimension in found]
    if not (one.is_named and other.is_named) or one.name == other.name:
        return axis
    if one.name in found_names:
        return found_names.index(one.name)
    first_names = {dimension.name for dimension in first}
    if other.name in first_names or one.coordinates is None or other.coordinates is None:
        raise DifferentDimensions(
            f"the dimensions {_list_names(first)}, found {_list_names(found)}, and nothing shows that {one.name!r} is "
            f"{other.name!r}. If they are the same, read each as a data set of its own and join the arrays, or give "
            f"them one name in the files (ncrename -d {other.name},{one.name})"
        )
    return axis


def _list_names(dimensions: Sequence[Dimension]) -> str:
    return ", ".join(dimension.name or "(no name)" for dimension in dimensions)


def _match_coordinates(first: Dimension, found: Dimension) -> slice | np.ndarray:
    """The index that brings the coordinates of `found` into the order of `first`."""
    one, other = first.coordinates, found.coordinates
    if one is None or other is None or len(one) != len(other) or not len(one):
        return slice(None)  # coordinates are unknown, or callers report different lengths
    if "since" in first.units + found.units and _parse_units(first.units) != _parse_units(found.units):
        raise DifferentDimensions(
            f"the times along {first.name!r} in {first.units!r}, found {found.units!r}; write them in the same units"
        )
    differ = _find_differences(one, other)
    if not differ.any():
        return slice(None)
    if len(np.unique(one)) == len(one):  # duplicate values could not be told apart
        if not _find_differences(one, other[::-1]).any():
            return slice(None, None, -1)
        order, other_order = np.argsort(one, kind="stable"), np.argsort(other, kind="stable")
        if not _find_differences(one[order], other[other_order]).any():
            indices = np.empty(len(one), np.int64)
            indices[order] = other_order
            return indices
    index = int(differ.argmax())
    raise DifferentDimensions(
        f"the coordinates {one[0]} to {one[-1]} along {first.name!r}, found {other[0]} to {other[-1]}: at index "
        f"{index}, {one[index]} and {other[index]}. Interpolate the files to one grid, such as by xarray's "
        "interp_like or reindex_like, or read them as data sets of their own"
    )


def _parse_units(text: str) -> tuple[str, ...]:
    """Parse units of time into a unit and the numbers of a date and time in UTC; (`text`,) for any other form."""
    found = _TIME_UNITS.fullmatch(text.strip())
    if found is None:
        return (text,)
    unit, *numbers = found.groups()
    names = [names[0] for names in _UNIT_NAMES if unit.lower() in names]
    return (*(names or [unit]), *(str(float(number or 0)) for number in numbers))


def _find_differences(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A boolean mask of the indices at which two coordinate arrays of equal length differ by more than rounding.

    The same coordinates may be float32 in one file and float64 in another, or be computed differently. A difference
    counts as rounding up to the rounding errors of both dtypes plus a thousandth of the smallest step, if that is less
    than half a step.
    """
    kinds = {one.dtype.kind, other.dtype.kind}
    if not kinds <= set("biuf"):  # such as texts
        return np.asarray(one != other) if len(kinds) == 1 else np.ones(len(one), bool)
    if "f" not in kinds:
        return np.asarray(one != other)
    first, second = one.astype(np.float64), other.astype(np.float64)
    steps = np.concatenate([np.diff(np.sort(values)) for values in (first, second)])
    step = steps[steps > 0].min(initial=np.inf)
    with np.errstate(invalid="ignore"):
        rounding = [
            np.spacing(np.abs(values)).astype(np.float64) / 2 for values in (one, other) if values.dtype.kind == "f"
        ]
        allowed = np.sum(rounding, axis=0) + (1e-3 * step if np.isfinite(step) else 0.0)
        if (allowed >= step / 2).any():  # then rounding cannot be told from another coordinate
            allowed = np.zeros(len(one))
        same = (first == second) | (np.abs(first - second) <= allowed) | (np.isnan(first) & np.isnan(second))
    return np.asarray(~same)


def make_dimension(name: Any, values: Any, units: Any) -> Dimension:
    """A dimension with coordinates `values`, an array of netCDF4 or h5py, possibly masked; None: no coordinates."""
    if values is not None:
        # Integers keep their dtype: float64 cannot represent every int64.
        values = np.ma.filled(values.astype(np.float64), np.nan) if np.ma.is_masked(values) else np.ma.getdata(values)
        if values.ndim != 1:
            values = None
        elif values.dtype.kind == "O":
            values = values.astype(str)
    return Dimension(str(name), values, str(units))
