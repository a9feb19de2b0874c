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
    several = [names] if isinstance(names, str) else names
    if not isinstance(several, (list, tuple)) or not all(isinstance(name, str) for name in several):
        raise TypeError(
            f"DataSet: expected data and labels to be names in the file; given {arguments.describe_value(names)}"
        )
    return list(several)


def list_dtypes(dtype: Any, variable_names: dict[str, list[str]]) -> tuple[dict[str, np.dtype], set[str]]:
    """Returns the requested dtypes, keyed by "data" and "labels", and the names of variables to be read as texts.

    `dtype`: one dtype for the data, or a mapping from variables to dtypes. `variable_names`: by "data" and "labels".
    """
    if dtype is None:
        return {}, set()
    by_name = dtype if isinstance(dtype, Mapping) else dict.fromkeys(variable_names["data"], dtype)
    found: dict[str, np.dtype] = {}
    text_names = set()
    for name, kind in by_name.items():
        fields = [field for field, names in variable_names.items() if name in names]
        if not fields:
            there = [known_name for names in variable_names.values() for known_name in names]
            raise ValueError(
                f"DataSet: dtype names {name!r}; the variables that are read are {', '.join(there)}"
                f"{files.suggest_similar(name, there)}"
            )
        given = make_dtype(kind)
        if given.kind == "U":
            text_names.add(name)
            continue
        if given.kind not in "biufc":
            raise TypeError(f"DataSet: dtype must be numeric, or str for a variable; given {given}")
        for field in fields:  # a field has one dtype, for all its variables
            found[field] = np.result_type(given, found.get(field, given))
    return found, text_names


def check_holds(given: np.dtype, stored: np.dtype, where: str) -> None:
    """Raises ReaderError if dtype `given` cannot represent the values of dtype `stored`. Floats may be rounded."""
    if not (np.can_cast(stored, given) or (given.kind == "f" and stored.kind != "c")):
        raise ReaderError(f"{where} holds values of {stored}, which dtype={given.name!r} cannot hold")
