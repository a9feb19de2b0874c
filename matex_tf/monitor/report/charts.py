"""Charts as data: lines over time, with few points each. The page draws them with uPlot (`page.js`). Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

_OUTLIER_FACTOR = 3.0
COLOURS = 8
"""The number of line colours; further lines reuse them."""


Row = tuple[str, float, float, float]
"""A name, and the minimum, mean and maximum of its finite values."""


@dataclass(frozen=True)
class Line:
    """A line of a chart. A run with several starts has one piece for each start."""

    name: str
    colour: int | None  # None: the colour of text, for the lines of a band
    pieces: list[tuple[np.ndarray, np.ndarray]]  # times in seconds, and values; NaN is not drawn
    kind: str = ""
    """"faint"; or "most", "least" or "median" for the lines of a band."""


def decimate_series(t: np.ndarray, values: np.ndarray, buckets: int, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a series to the minimum and maximum in each of `buckets` intervals from 0 to `end`, ordered by time."""
    is_finite = np.isfinite(values)
    t, values = t[is_finite], values[is_finite]
    if len(t) <= 2 * buckets:
        return t, values
    # The interval of each point; `borders` are the first points of all intervals but the first.
    bucket = np.minimum((t / (end or 1) * buckets).astype(int), buckets - 1)
    borders = np.flatnonzero(np.diff(bucket)) + 1
    chosen: set[int] = {0, len(t) - 1}
    for begin, stop in zip([0, *borders.tolist()], [*borders.tolist(), len(t)]):
        part = values[begin:stop]
        chosen |= {begin + int(part.argmin()), begin + int(part.argmax())}
    order = sorted(chosen)
    return t[order], values[order]


def make_band(rows: np.ndarray, t: np.ndarray) -> list[Line]:
    """The maximum, minimum and median of `rows` [ranks, times] as lines, at each time with a known value."""
    is_finite = np.isfinite(rows).any(axis=0)
    rows, t = rows[:, is_finite], t[is_finite]
    return [  # the page fills the space between the first two
        Line("most of all ranks", None, [(t, np.nanmax(rows, axis=0))], "most"),
        Line("least of all ranks", None, [(t, np.nanmin(rows, axis=0))], "least"),
        Line("median", None, [(t, np.nanmedian(rows, axis=0))], "median"),
    ]


def make_curves(lines: Sequence[Line], run: int = 0, end: float = 1.0, buckets: int = 160) -> list[dict[str, Any]]:
    """The lines of a run in the format of the page: mappings in which "t" and "values" have one list for each piece.

    Args:
        run: the index of the run on the page.
        end: the duration of the run in seconds; see `decimate_series` for `end` and `buckets`.
    """
    curves = []
    for line in lines:
        pieces = [decimate_series(t, values, buckets, end) for t, values in line.pieces]
        t, values = ([round_numbers(part) for part in parts] for parts in zip(*pieces))
        appearance = {"name": line.name, "kind": line.kind, "colour": line.colour}
        curves.append({**appearance, "run": run, "t": t, "values": values})
    return curves


def summarize_lines(lines: Sequence[Line]) -> list[Row]:
    """A row for each name, except for the lines of a band."""
    values_by_name: dict[str, list[np.ndarray]] = {}
    for line in lines:
        if line.colour is not None:
            values_by_name.setdefault(line.name, []).extend(values for _, values in line.pieces)
    rows = []
    for name, parts in values_by_name.items():
        values = np.concatenate(parts)
        values = values[np.isfinite(values)]
        rows.append((name, float(values.min()), float(values.mean()), float(values.max())))
    return rows


def make_chart(
    title: str, unit: str, curves: Sequence[dict[str, Any]], axis: str, from_zero: bool = True, max_shown: float = inf
) -> dict[str, Any] | None:
    """A chart of the curves from `make_curves`; None without values.

    Args:
        axis: the initial horizontal axis, such as "time".
        from_zero: the vertical axis begins at 0, else at the minimum.
        max_shown: larger values are drawn at the upper border.
    """
    values = np.array([value for curve in curves for piece in curve["values"] for value in piece])
    if not len(values):
        return None
    usual_max = float(np.percentile(values, 95))
    if from_zero and values.max() > _OUTLIER_FACTOR * usual_max > 0:
        # The first step, which compiles, would flatten all others.
        max_shown = min(max_shown, _OUTLIER_FACTOR * usual_max)
    options = {"zero": from_zero, "most": max_shown if max_shown < values.max() else None}
    return {"title": title, "unit": unit, "axis": axis, "curves": curves, **options}


def round_numbers(values: np.ndarray) -> list[float]:
    """Round to six significant digits, to keep the page small."""
    return [float(f"{value:.6g}") for value in values]


def format_number(value: float) -> str:
    """Format a number for readers: three digits, thousands separated."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
