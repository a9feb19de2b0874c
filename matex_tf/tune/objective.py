"""The objective of trials: a value that Keras logs, that the script reports, or that it prints. Pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf import arguments


@dataclass(frozen=True)
class Point:
    """The value of the objective after an epoch, after a call of `matex_tf.report`, or in a printed line."""

    epoch: int  # from 1; the number of the report or of the line, if they name no epoch
    value: float


@dataclass(frozen=True)
class Objective:
    """The value that trials minimize or maximize."""

    name: str = "val_loss"
    maximize: bool = False
    regex: str = ""  # matches printed values; "": the value is logged under its name
    take: str = "last"  # the epoch whose value is the trial's result: last or best

    def compute_cost(self, value: float) -> float:
        """The value to be minimized."""
        return -value if self.maximize else value

    def read_curve(self, lines: Iterable[Mapping[str, Any]], output: str = "") -> list[Point]:
        """The objective from the logged `lines` of a trial or, with a regular expression, from its `output`.

        Raises:
            ValueError: the expression matches text that is not a number.
        """
        if self.regex:
            pattern = re.compile(self.regex, re.MULTILINE)
            matches = pattern.finditer(drop_overwritten(output))
            # Without a group, the number is the text of the match: group 0.
            return [Point(number, _parse_number(match[pattern.groups])) for number, match in enumerate(matches, 1)]
        matching_lines = (line for line in drop_repeated(lines) if self.name in line.get("logs", {}))
        return [
            Point(int(line.get("epoch") or number), float(line["logs"][self.name]))
            for number, line in enumerate(matching_lines, 1)
        ]

    def choose_value(self, curve: Sequence[Point]) -> float:
        """The trial's result: the value of the curve that `take` selects. The curve is not empty; may be NaN."""
        if self.take == "best":
            finite_values = [point.value for point in curve if math.isfinite(point.value)]
            return min(finite_values, key=self.compute_cost, default=math.nan)
        return curve[-1].value

    def explain_missing(self, lines: Iterable[Mapping[str, Any]]) -> str:
        """Explains the absence of the objective in a finished trial."""
        if self.regex:
            return f"nothing in its output matches {self.regex!r}"
        logged_names = list(dict.fromkeys(name for line in lines for name in line.get("logs", {})))
        if not logged_names:
            return (
                f"{self.name} never appeared: no epoch of Keras' fit ended, and matex_tf.report was not called. "
                "A script that prints it is read by objective: {regex: 'test loss ([\\d.]+)'}"
            )
        similar = arguments.find_similar(self.name, logged_names)
        hint = f"; did you mean {similar}?" if similar else ""
        if self.name.startswith("val_") and not any(name.startswith("val_") for name in logged_names):
            hint = ": fit has no validation data. Pass it some, or name another objective"
        return f"{self.name} never appeared; the logged values are {', '.join(logged_names)}{hint}"


def drop_repeated(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Keep only the last of the lines for one epoch of one call of `fit`: a restarted trial repeats epochs."""
    last_lines: dict[Any, Mapping[str, Any]] = {}
    for index, line in enumerate(lines):
        key = index if line.get("call") is None else (line["call"], line["epoch"])  # a report has no call of `fit`
        last_lines[key] = line
    return list(last_lines.values())


def drop_overwritten(output: str) -> str:
    """The output as a terminal shows it: of a line that carriage returns overwrite, such as a progress bar, the end."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in output.split("\n"))


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"the regular expression matched {text!r}, which is not a number") from None
