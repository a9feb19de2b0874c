"""Parallel coordinates: an axis for each parameter, and a line through all axes for each trial. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from matex_tf.monitor.report.charts import format_number
from matex_tf.tune.space import Choice, Config, Parameter, Value

_WIDTH, _HEIGHT = 1280, 400  # of the chart, in pixels
_SIDE, _TOP, _BOTTOM = 90, 24, 70  # margins
_MAX_LETTERS = 14  # maximum letters of a name or a choice


@dataclass(frozen=True)
class Path:
    """The line of a trial."""

    name: str
    text: str
    """Shown under the pointer."""
    config: Config
    share: float
    """The position on the last axis, from 0 to 1."""
    colour: int
    faint: bool


@dataclass(frozen=True)
class Axis:
    """A vertical axis."""

    name: str
    ticks: list[tuple[float, str]]
    """Positions, from 0 at the bottom to 1, with their labels."""
    find_position: Callable[[Path], float | None]
    """The position of a line; None: it passes below the axis."""


def compute_position(parameter: Parameter, value: Value) -> float:
    """The position of a value on the axis of `parameter`, from 0 to 1."""
    if isinstance(parameter, Choice):
        return parameter.choices.index(str(value)) / max(len(parameter.choices) - 1, 1)
    scale = math.log if parameter.log else float
    low, high = scale(parameter.low), scale(parameter.high)
    return (scale(float(value)) - low) / (high - low)


def make_axis(parameter: Parameter) -> Axis:
    """The axis of `parameter`: its choices, or the ends of its range."""
    if isinstance(parameter, Choice):
        ticks = [(compute_position(parameter, choice), choice) for choice in parameter.choices]
    else:
        ticks = [(0.0, format_number(parameter.low)), (1.0, format_number(parameter.high))]

    def find_position(path: Path) -> float | None:
        value = path.config.get(parameter.name)
        return compute_position(parameter, value) if value is not None and parameter.allows(value) else None

    return Axis(parameter.name, ticks, find_position)


def draw_coordinates(parameters: Iterable[Parameter], last: Axis, paths: Sequence[Path]) -> str:
    """Draw the chart. If a trial has no value of a parameter, its line passes below that axis."""
    axes = [*map(make_axis, parameters), last]
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="parallel coordinates of all trials">']
    step = (_WIDTH - 2 * _SIDE) / max(len(axes) - 1, 1)
    columns = [round(_SIDE + step * number) for number in range(len(axes))]
    for x, axis in zip(columns, axes):
        parts.append(f'<path class="grid" d="M{x} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(axis.name[:_MAX_LETTERS])}</text>')
        parts += [
            f'<text x="{x + 6}" y="{_compute_y(position) + 7}">{escape(text[:_MAX_LETTERS])}</text>'
            for position, text in axis.ticks
        ]
    for path in paths:
        points = " ".join(f"{x} {_compute_y(axis.find_position(path))}" for x, axis in zip(columns, axes))
        kind = f"line c{path.colour}" + (" faint" if path.faint else "")
        parts.append(
            f'<path class="{kind}" data-of="{escape(path.name)}" d="M{points}">'
            f"<title>{escape(path.text)}</title></path>"
        )
    return "".join([*parts, "</svg>"])


def _compute_y(position: float | None) -> int:
    """The y coordinate of a position on an axis, from 0 to 1; below the axis for None."""
    bottom = _HEIGHT - _BOTTOM
    return bottom + 26 if position is None else round(bottom - (bottom - _TOP) * position)
