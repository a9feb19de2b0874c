"""Parallel coordinates: an axis for each parameter, and a line through all axes for each trial. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from matex_tf.monitor.report.charts import format_number
from matex_tf.tune.space import Choice, Config, Parameter, Value

_WIDTH, _HEIGHT = 1280, 400  # of the chart, in pixels
_SIDE, _TOP, _BOTTOM = 90, 24, 70  # margins
_MAX_LETTERS = 14  # maximum letters of a name or a choice


Axis = tuple[str, list[tuple[float, str]]]
"""The name of a vertical axis, and its ticks: positions, from 0 at the bottom to 1, with their labels."""


@dataclass(frozen=True)
class Line:
    """The line of a trial."""

    name: str
    text: str  # shown under the pointer
    style: str  # classes of CSS
    positions: list[float | None]  # on each axis, from 0 to 1; None: the line passes below the axis


def compute_position(parameter: Parameter, value: Value) -> float:
    """The position of a value on the axis of `parameter`, from 0 to 1."""
    if isinstance(parameter, Choice):
        return parameter.choices.index(str(value)) / max(len(parameter.choices) - 1, 1)
    scale = math.log if parameter.log else float
    low, high = scale(parameter.low), scale(parameter.high)
    return (scale(float(value)) - low) / (high - low)


def find_position(parameter: Parameter, config: Config) -> float | None:
    """The position of a trial on the axis of `parameter`; None if it has no valid value."""
    value = config.get(parameter.name)
    return compute_position(parameter, value) if value is not None and parameter.allows(value) else None


def make_axis(parameter: Parameter) -> Axis:
    """The axis of `parameter`: its choices, or the ends of its range."""
    if isinstance(parameter, Choice):
        return parameter.name, [(compute_position(parameter, choice), choice) for choice in parameter.choices]
    return parameter.name, [(0.0, format_number(parameter.low)), (1.0, format_number(parameter.high))]


def draw_coordinates(axes: Sequence[Axis], lines: Sequence[Line]) -> str:
    """Draw the chart as SVG."""
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="parallel coordinates of all trials">']
    spacing = (_WIDTH - 2 * _SIDE) / max(len(axes) - 1, 1)
    columns = [round(_SIDE + spacing * index) for index in range(len(axes))]
    for x, (name, ticks) in zip(columns, axes):
        parts.append(f'<path class="grid" d="M{x} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(name[:_MAX_LETTERS])}</text>')
        parts += [
            f'<text x="{x + 6}" y="{_compute_y(position) + 7}">{escape(text[:_MAX_LETTERS])}</text>'
            for position, text in ticks
        ]
    for line in lines:
        points = " ".join(f"{x} {_compute_y(position)}" for x, position in zip(columns, line.positions))
        parts.append(
            f'<path class="{line.style}" data-of="{escape(line.name)}" d="M{points}">'
            f"<title>{escape(line.text)}</title></path>"
        )
    return "".join([*parts, "</svg>"])


def _compute_y(position: float | None) -> int:
    """The y coordinate of a position on an axis, from 0 to 1; below the axis for None."""
    bottom = _HEIGHT - _BOTTOM
    return bottom + 26 if position is None else round(bottom - (bottom - _TOP) * position)
