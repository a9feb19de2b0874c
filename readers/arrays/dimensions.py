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


def match_dimensions(
    first_dimensions: Sequence[Dimension], other_dimensions: Sequence[Dimension]
) -> Arrangement | None:
    """The arrangement that brings samples with `other_dimensions` into the order of `first_dimensions`; None if none is
    needed.

    Dimensions match by name. If both have coordinates, these must be equal up to their order. Raises
    DifferentDimensions if nothing shows that two dimensions are the same, or if their coordinates differ.
    """
    if len(first_dimensions) != len(other_dimensions):
        return None  # callers report different shapes
    axes = tuple(_find_axis(first_dimensions, other_dimensions, axis) for axis in range(len(first_dimensions)))
    if len(set(axes)) < len(axes):  # with duplicate names, axes match by their order
        axes = tuple(range(len(first_dimensions)))
    indices = tuple(
        _match_coordinates(dimension, other_dimensions[axis]) for dimension, axis in zip(first_dimensions, axes)
    )
    if axes == tuple(range(len(axes))) and all(_is_whole(index) for index in indices):
        return None
    return Arrangement(axes, indices)


def _is_whole(index: slice | np.ndarray) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _find_axis(first_dimensions: Sequence[Dimension], other_dimensions: Sequence[Dimension], axis: int) -> int:
    """The axis in `other_dimensions` of the dimension `first_dimensions[axis]`, by the first rule that applies:

    1. The same axis, if the two dimensions there have equal names, or one is unnamed.
    2. The axis with the same name.
    3. The same axis, if `first_dimensions` has no dimension of the other name, and both have coordinates to compare.

    Raises DifferentDimensions if none applies.
    """
    first_dimension, other_dimension = first_dimensions[axis], other_dimensions[axis]
    other_names = [dimension.name for dimension in other_dimensions]
    if not (first_dimension.is_named and other_dimension.is_named) or first_dimension.name == other_dimension.name:
        return axis
    if first_dimension.name in other_names:
        return other_names.index(first_dimension.name)
    first_names = {dimension.name for dimension in first_dimensions}
    if (
        other_dimension.name in first_names
        or first_dimension.coordinates is None
        or other_dimension.coordinates is None
    ):
        raise DifferentDimensions(
            f"the dimensions {_list_names(first_dimensions)}, found {_list_names(other_dimensions)}, and nothing shows "
            f"that {first_dimension.name!r} is {other_dimension.name!r}. If they are the same, read each as a data set "
            "of its own and join the arrays, or give them one name in the files (ncrename -d "
            f"{other_dimension.name},{first_dimension.name})"
        )
    return axis


def _list_names(dimensions: Sequence[Dimension]) -> str:
    return ", ".join(dimension.name or "(no name)" for dimension in dimensions)


def _match_coordinates(first_dimension: Dimension, other_dimension: Dimension) -> slice | np.ndarray:
    """The index that brings the coordinates of `other_dimension` into the order of `first_dimension`."""
    first_values, other_values = first_dimension.coordinates, other_dimension.coordinates
    if first_values is None or other_values is None or len(first_values) != len(other_values) or not len(first_values):
        return slice(None)  # coordinates are unknown, or callers report different lengths
    # Values of time are comparable in equal units only: 5 days since 2000 are not 5 days since 2001.
    if "since" in first_dimension.units + other_dimension.units and _parse_units(first_dimension.units) != _parse_units(
        other_dimension.units
    ):
        raise DifferentDimensions(
            f"the times along {first_dimension.name!r} in {first_dimension.units!r}, found {other_dimension.units!r}; "
            "write them in the same units"
        )
    is_different = _find_differences(first_values, other_values)
    if not is_different.any():
        return slice(None)
    if len(np.unique(first_values)) == len(first_values):  # duplicate values could not be told apart
        if not _find_differences(first_values, other_values[::-1]).any():
            return slice(None, None, -1)
        first_order, other_order = np.argsort(first_values, kind="stable"), np.argsort(other_values, kind="stable")
        if not _find_differences(first_values[first_order], other_values[other_order]).any():
            indices = np.empty(len(first_values), np.int64)
            indices[first_order] = other_order
            return indices
    index = int(is_different.argmax())
    raise DifferentDimensions(
        f"the coordinates {first_values[0]} to {first_values[-1]} along {first_dimension.name!r}, found "
        f"{other_values[0]} to {other_values[-1]}: at index {index}, {first_values[index]} and {other_values[index]}. "
        "Interpolate the files to one grid, such as by xarray's interp_like or reindex_like, or read them as data sets "
        "of their own"
    )


def _parse_units(text: str) -> tuple[str, ...]:
    """Units of time in a form that is equal for "day since 2000-1-1" and "days since 2000-01-01 00:00"; (`text`,) for
    units of another form.
    """
    match = _TIME_UNITS.fullmatch(text.strip())
    if match is None:
        return (text,)
    unit, *numbers = match.groups()
    unit_names = [names[0] for names in _UNIT_NAMES if unit.lower() in names]
    return (*(unit_names or [unit]), *(str(float(number or 0)) for number in numbers))


def _find_differences(first_values: np.ndarray, other_values: np.ndarray) -> np.ndarray:
    """A boolean mask of the indices at which two coordinate arrays of equal length differ by more than rounding.

    The same coordinates may be float32 in one file and float64 in another, or be computed differently. A difference
    counts as rounding up to the rounding errors of both dtypes plus a thousandth of the smallest step, if that is less
    than half a step.
    """
    kinds = {first_values.dtype.kind, other_values.dtype.kind}
    if not kinds <= set("biuf"):  # such as texts
        return np.asarray(first_values != other_values) if len(kinds) == 1 else np.ones(len(first_values), bool)
    if "f" not in kinds:
        return np.asarray(first_values != other_values)
    first_floats, other_floats = first_values.astype(np.float64), other_values.astype(np.float64)
    steps = np.concatenate([np.diff(np.sort(values)) for values in (first_floats, other_floats)])
    smallest_step = steps[steps > 0].min(initial=np.inf)
    with np.errstate(invalid="ignore"):
        rounding_errors = [
            np.spacing(np.abs(values)).astype(np.float64) / 2
            for values in (first_values, other_values)
            if values.dtype.kind == "f"
        ]
        tolerance = np.sum(rounding_errors, axis=0) + (1e-3 * smallest_step if np.isfinite(smallest_step) else 0.0)
        if (tolerance >= smallest_step / 2).any():  # rounding cannot be told from a neighbour: compare exactly
            tolerance = np.zeros(len(first_values))
        is_same = (
            (first_floats == other_floats)
            | (np.abs(first_floats - other_floats) <= tolerance)
            | (np.isnan(first_floats) & np.isnan(other_floats))
        )
    return np.asarray(~is_same)


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
