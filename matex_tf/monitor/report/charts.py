"""Charts as SVG, drawn by themselves: a page of them is 100 KB, where a library would add megabytes. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, inf, log10

import numpy as np

WIDTH, HEIGHT = 1280, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 120, 16, 30, 52
_FAR = 3.0
_LABEL, _LABELS, _LETTERS = 26, 4, 32  # heights of marks' texts, how many lie below each other, how long they are
COLOURS = 8
"""Of lines; more begin again, in dashes (see the page's style)."""
TIME = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
"""What the axis of a chart over time may count in, and of how many seconds each is."""


Units = Sequence[tuple[int, str]]


@dataclass(frozen=True)
class Line:
    """A line of a chart; of several starts, a piece for each."""

    name: str
    colour: int
    pieces: list[tuple[np.ndarray, np.ndarray]]
    """Times, in seconds, and values; NaN is a gap."""
    faint: bool = False


@dataclass(frozen=True)
class Band:
    """What many lines lie between."""

    t: np.ndarray
    least: np.ndarray
    middle: np.ndarray
    most: np.ndarray


@dataclass(frozen=True)
class Axes:
    """What a chart shows: times from 0 to `end`, seconds; values from `low` to `high`."""

    end: float
    low: float
    high: float

    def scale_x(self, t: np.ndarray) -> np.ndarray:
        return np.rint(_LEFT + (WIDTH - _LEFT - _RIGHT) * t / (self.end or 1)).astype(int)

    def scale_y(self, values: np.ndarray) -> np.ndarray:
        share = np.minimum((values - self.low) / ((self.high - self.low) or 1), 1.0)
        return np.rint(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * share).astype(int)


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


def choose_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = (high - low) / count
    scale = 10 ** floor(log10(step))
    step = next(one * scale for one in (1, 2, 5, 10) if one * scale >= step * 0.999)
    return [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def draw_chart(
    title: str, unit: str, lines: Sequence[Line], end: float, marks: Iterable[tuple[float, str]] = (),
    band_: Band | None = None, from_zero: bool = True, buckets: int = 160, units: Units = TIME,
    most: float = inf, above: Iterable[tuple[float, str]] = (), exact: bool = False,
) -> str:  # fmt: skip
    """The chart of `lines` over time. `marks` are times at which something happened.

    Args:
        above: times with what stands at the upper border there.
        exact: whether the page has the values themselves, for who points at a line; else their heights tell them.
        band_: what lies behind the lines.
        from_zero: whether the values begin at 0, or at the least of them.
        buckets: see `decimate_series`.
        units: what the axis below counts in.
        most: values above it are drawn at the upper border.
    """
    drawn = [(line, [decimate_series(t, values, buckets, end) for t, values in line.pieces]) for line in lines]
    values = [value for _, pieces in drawn for _, value in pieces] + ([band_.least, band_.most] if band_ else [])
    everything = np.concatenate(values) if values else np.zeros(0)
    if not len(everything):
        return ""
    low = min(float(everything.min()), 0.0) if from_zero else float(everything.min())
    high = float(everything.max())
    if from_zero and high > _FAR * (usual := float(np.percentile(everything, 95))) > 0:
        most = min(most, _FAR * usual)  # the first step, which compiles, would leave nothing to be seen of the others
    high = min(high, most)
    axes = Axes(end, low, high if high > low else low + 1)
    of, name = _choose_unit(axes, units)
    scale = " ".join(
        f"{value:.9g}" for value in (_LEFT, WIDTH - _RIGHT, end / of, HEIGHT - _BOTTOM, _TOP, axes.low, axes.high)
    )
    label = f"{escape(title)}, {escape(unit)}"
    told = f'data-scale="{scale}" data-unit="{name}"' + ("" if units is TIME else ' data-step="1"')
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" {told}>',
        '<path class="hair"/>',
        *_draw_axis(axes, units),
        *_draw_texts_above(axes, above),
    ]
    if band_:
        parts.append(_draw_area(axes, band_))
        parts.append(_draw_path(axes, [(band_.t, band_.middle)], "line median", "median of all ranks"))
    parts += _draw_marks(axes, marks)
    for line, pieces in drawn:
        dashes = " dashed" if line.colour % (2 * COLOURS) >= COLOURS else ""
        faint = " faint" if line.faint else ""
        parts.append(_draw_path(axes, pieces, f"line c{line.colour % COLOURS}{dashes}{faint}", line.name, exact))
    parts.append("</svg>")
    return "".join(parts)


def _draw_axis(axes: Axes, units: Units) -> Iterable[str]:
    for value in choose_ticks(axes.low, axes.high):
        y = axes.scale_y(np.array([value]))[0]
        yield f'<path class="grid" d="M{_LEFT} {y}H{WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 10}" y="{y + 8}" text-anchor="end">{format_number(value)}</text>'
    unit, name = _choose_unit(axes, units)
    ticks = choose_ticks(0, axes.end / unit, 8)
    for value in ticks if units is TIME else [one for one in ticks if abs(one - round(one)) < 1e-9]:
        x = axes.scale_x(np.array([value * unit]))[0]
        anchor = "middle" if x < WIDTH - 3 * _RIGHT else "end"
        yield f'<text x="{x}" y="{HEIGHT - 14}" text-anchor="{anchor}">{format_number(value)} {name}</text>'


def _choose_unit(axes: Axes, units: Units) -> tuple[int, str]:
    return next(one for one in units if axes.end >= 2 * one[0] or one[0] == 1)


def _draw_texts_above(axes: Axes, above: Iterable[tuple[float, str]]) -> Iterable[str]:
    for t, text in above:
        x = axes.scale_x(np.array([t]))[0]
        anchor = "middle" if x < WIDTH - 3 * _RIGHT else "end"
        yield f'<path class="grid" d="M{x} {_TOP}v8"/>'
        yield f'<text x="{x}" y="{_TOP - 8}" text-anchor="{anchor}">{escape(text)}</text>'


def _draw_marks(axes: Axes, marks: Iterable[tuple[float, str]]) -> Iterable[str]:
    """Lines across, each with its text beside it; texts of neighbours lie below each other."""
    for number, (t, text) in enumerate(marks):
        x = axes.scale_x(np.array([t]))[0]
        side, anchor = (8, "start") if x < WIDTH / 2 else (-8, "end")
        shown = text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"
        yield f'<path class="mark" d="M{x} {_TOP}V{HEIGHT - _BOTTOM}"><title>{escape(text)}</title></path>'
        yield (
            f'<text class="label" x="{x + side}" y="{_TOP + _LABEL * (1 + number % _LABELS)}" text-anchor="{anchor}">'
            f"{escape(shown)}<title>{escape(text)}</title></text>"
        )


def _draw_area(axes: Axes, one: Band) -> str:
    over = zip(axes.scale_x(one.t).tolist(), axes.scale_y(one.most).tolist())
    under = zip(axes.scale_x(one.t).tolist()[::-1], axes.scale_y(one.least).tolist()[::-1])
    points = " ".join(f"{x},{y}" for x, y in [*over, *under])
    return f'<polygon class="band" points="{points}"><title>all ranks</title></polygon>'


def _draw_path(
    axes: Axes, pieces: Iterable[tuple[np.ndarray, np.ndarray]], kind: str, name: str, exact: bool = False
) -> str:
    words = []
    for t, values in pieces:
        x, y = axes.scale_x(t).tolist(), axes.scale_y(values).tolist()
        words += [f"{'M' if place == 0 else 'L'}{a} {b}" for place, (a, b) in enumerate(zip(x, y))]
        if len(x) == 1:
            words.append("h1")
    if not words:
        return ""
    label = escape(name)
    known = " ".join(f"{value:.6g}" for _, values in pieces for value in values) if exact else ""
    told = f' data-values="{known}"' if known else ""
    return f'<path class="{kind}" data-of="{label}"{told} d="{"".join(words)}"><title>{label}</title></path>'


def format_number(value: float) -> str:
    """A number for people: three digits, thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
