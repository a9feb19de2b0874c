"""The option missing=: a missing value is an error, stays NaN, or is replaced by a number. `missing` is this option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf import arguments
from matex_tf.readers.base.formats import ReaderError

_PIECE_BYTES = 4 << 20


def check_missing(missing: Any) -> None:
    """Raises ValueError for an invalid `missing=`."""
    is_number = isinstance(missing, (int, float)) and not isinstance(missing, bool)
    if not is_number and not (isinstance(missing, str) and missing in ("error", "nan")):
        raise ValueError(
            'DataSet: missing has to be "error", "nan" or a replacement number; given '
            f"{arguments.describe_value(missing)}"
        )


def replace_missing(rows: np.ndarray, missing: Any, find_place: Callable[[int, tuple[int, ...]], str]) -> None:
    """Replace each NaN in `rows`, in place, by the number `missing`; keep it ("nan"); or raise ReaderError ("error").

    `find_place(row, index)` returns the position of the value `rows[row][index]`, for messages.
    """
    if missing == "nan" or rows.dtype.kind not in "fc" or not rows.size:
        return
    step = max(1, _PIECE_BYTES // max(1, rows[:1].nbytes))  # rows of a piece: `is_missing` is as small as one piece
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        with np.errstate(invalid="ignore"):
            # The minimum of values with a NaN is NaN: one pass, without a boolean array.
            if not np.isnan(piece.min()):
                continue
        is_missing = np.isnan(piece)
        row, *index = (int(number) for number in np.argwhere(is_missing)[0])
        if missing == "error":
            raise make_missing_error(find_place(start + row, tuple(index)))
        check_fits(missing, piece.dtype, find_place(start + row, tuple(index)))
        piece[is_missing] = missing


def check_fits(missing: float, dtype: np.dtype, place: str) -> None:
    """Raises ValueError if `dtype` cannot represent the number `missing`. Floats and complex numbers may be rounded."""
    if dtype.kind in "fc":
        if float(np.finfo(dtype).max) < abs(missing) < np.inf:
            raise ValueError(
                f"DataSet: missing={missing!r} cannot be used for {place}, which is read as {dtype.name}: it is too "
                'large. Pass another number, or missing="nan"'
            )
        return
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (np.isfinite(missing) and int(missing) == missing and least <= missing <= most):
        raise ValueError(
            f"DataSet: missing={missing!r} cannot be used for {place}, which is read as {dtype.name}: integers from "
            f'{least} to {most}. Pass one of these, or missing="nan"'
        )


def make_missing_error(place: str, expected: str = "a number") -> ReaderError:
    """The error for a missing value at `place`, with missing="error"."""
    return ReaderError(
        f"{place}: expected {expected}, found a missing value. missing=0 (or another number) fills such values, "
        'missing="nan" keeps them as NaN'
    )
