"""Options of the array formats: names of variables, and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.readers.base import files
from matex_tf.readers.base.formats import ReaderError, make_dtype

Names = str | Sequence[str]


def list_names(names: Names | None) -> list[str]:
    """The option data= or labels= as a list of names. Raises TypeError if it is invalid."""
    if names is None:
        return []
    name_list = [names] if isinstance(names, str) else names
    if not isinstance(name_list, (list, tuple)) or not all(isinstance(name, str) for name in name_list):
        raise TypeError(
            f"DataSet: expected data and labels to be names in the file; given {arguments.describe_value(names)}"
        )
    return list(name_list)


def list_dtypes(dtype: Any, variable_names: dict[str, list[str]]) -> tuple[dict[str, np.dtype], set[str]]:
    """Returns the requested dtypes, keyed by "data" and "labels", and the names of variables to be read as texts.

    `dtype`: one dtype for the data, or a mapping from variables to dtypes. `variable_names`: by "data" and "labels".
    """
    if dtype is None:
        return {}, set()
    dtypes_by_name = dtype if isinstance(dtype, Mapping) else dict.fromkeys(variable_names["data"], dtype)
    field_dtypes: dict[str, np.dtype] = {}
    text_names = set()
    for name, kind in dtypes_by_name.items():
        fields = [field for field, names in variable_names.items() if name in names]
        if not fields:
            known_names = [known_name for names in variable_names.values() for known_name in names]
            raise ValueError(
                f"DataSet: dtype names {name!r}; the variables that are read are {', '.join(known_names)}"
                f"{files.suggest_similar(name, known_names)}"
            )
        given_dtype = make_dtype(kind)
        if given_dtype.kind == "U":
            text_names.add(name)
            continue
        if given_dtype.kind not in "biufc":
            raise TypeError(f"DataSet: dtype must be numeric, or str for a variable; given {given_dtype}")
        for field in fields:  # a field has one dtype, for all its variables
            field_dtypes[field] = np.result_type(given_dtype, field_dtypes.get(field, given_dtype))
    return field_dtypes, text_names


def check_holds(requested_dtype: np.dtype, stored_dtype: np.dtype, place: str) -> None:
    """Raises ReaderError if `requested_dtype` cannot represent values of `stored_dtype`. Floats may be rounded."""
    if not (np.can_cast(stored_dtype, requested_dtype) or (requested_dtype.kind == "f" and stored_dtype.kind != "c")):
        raise ReaderError(f"{place} holds values of {stored_dtype}, which dtype={requested_dtype.name!r} cannot hold")
