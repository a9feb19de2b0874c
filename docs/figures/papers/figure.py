"""A published number, the calculated number, and the method of the calculation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CALCULATED, FITTED, PREDICTED, UNEXPLAINED = "calculated", "fitted", "predicted", "not explained"


@dataclass(frozen=True)
class Figure:
    """A line of the table: section and description; published and calculated number; method, and a remark."""

    where: str
    what: str
    theirs: str
    ours: str
    how: str
    remark: str = ""


def format_list(values: Iterable[object], form: str) -> str:
    """Formats each value by `form`, joined by commas."""
    return ", ".join(format(value, form) for value in values)
