"""Charts as data: lines over time, each with few points. The page draws them with uPlot (`page.js`). Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

_FAR = 3.0
COLOURS = 8
"""Of lines; more begin again."""


@dataclass(frozen=True)
class Line:
    """A line of a chart; of several starts, a piece for each."""

    name: str
    colour: int | None
    """None is that of text."""
    pieces: list[tuple[np.ndarray, np.ndarray]]
    """Times, in seconds, and values; NaN is left out."""
    kind: str = ""
    """"faint", or of a band "most", "least" or "median"."""


@dataclass(frozen=True)
class Band:
    """What many lines lie between."""

    t: np.ndarray
    least: np.ndarray
    middle: np.ndarray
    most: np.ndarray


def decimate_series(t: np.ndarray, values: np.ndarray, buckets: int, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Of each of so many stretches of the time to `end` the least and the most, in the order in which they came."""
    known = np.isfinite(values)
    t, values = t[known], values[known]
    if len(t) <= 2 * buckets:
        return t, values
    bucket = np.minimum((t / (end or 1) * buckets).astype(int), buckets - 1)
    borders = np.flatnonzero(np.diff(bucket)) + 1
    chosen: set[int] = {0, len(t) - 1}
    for begin, stop in zip([0, *borders.tolist()], [*borders.tolist(), len(t)]):
        part = values[begin:stop]
        chosen |= {begin + int(part.argmin()), begin + int(part.argmax())}
    order = sorted(chosen)
    return t[order], values[order]


def compute_band(rows: np.ndarray, t: np.ndarray) -> Band:
    """Of `rows` [ranks, times] the least, the median and the most at each time at which any is known."""
    known = np.isfinite(rows).any(axis=0)
    rows = rows[:, known]
    return Band(t[known], np.nanmin(rows, axis=0), np.nanmedian(rows, axis=0), np.nanmax(rows, axis=0))


def make_curves(
    lines: Sequence[Line], band: Band | None = None, run: int = 0, end: float = 1.0, buckets: int = 160
) -> list[dict[str, Any]]:
    """The lines of a run, and of a band its borders and its median, as the page takes them.

    Args:
        run: its place among the runs of the page.
        end: seconds of the run; see `decimate_series` for it and for `buckets`.
    """
    if band:
        lines = [
            Line("most of all ranks", None, [(band.t, band.most)], "most"),
            Line("least of all ranks", None, [(band.t, band.least)], "least"),
            Line("median", None, [(band.t, band.middle)], "median"),
            *lines,
        ]
    curves = []
    for one in lines:
        pieces = [decimate_series(t, values, buckets, end) for t, values in one.pieces]
        t, values = ([round_numbers(part) for part in parts] for parts in zip(*pieces))
        curves.append({"name": one.name, "kind": one.kind, "colour": one.colour, "run": run, "t": t, "values": values})
    return curves


def make_chart(
    title: str, unit: str, curves: Sequence[dict[str, Any]], axis: str, from_zero: bool = True, most: float = inf
) -> dict[str, Any] | None:
    """A chart of curves of `make_curves`; None without values.

    Args:
        axis: what lies below at first, such as "time".
        from_zero: whether the values begin at 0, or at the least of them.
        most: values above it are drawn at the upper border.
    """
    values = np.array([value for curve in curves for piece in curve["values"] for value in piece])
    if not len(values):
        return None
    if from_zero and values.max() > _FAR * (usual := float(np.percentile(values, 95))) > 0:
        most = min(most, _FAR * usual)  # the first step, which compiles, would leave nothing to be seen of the others
    shown = {"zero": from_zero, "most": most if most < values.max() else None}
    return {"title": title, "unit": unit, "axis": axis, "curves": curves, **shown}


def round_numbers(values: np.ndarray) -> list[float]:
    """As many digits as a person reads."""
    return [float(f"{value:.6g}") for value in values]


def format_number(value: float) -> str:
    """A number for people: three digits, thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
