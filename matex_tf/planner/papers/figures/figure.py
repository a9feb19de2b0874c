"""A number of a paper beside ours, and how ours came about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CALCULATED, FITTED, PREDICTED, UNEXPLAINED = "calculated", "fitted", "predicted", "not explained"


@dataclass(frozen=True)
class Figure:
    """One line of the table: where the paper says what; its number and ours; how ours came about, and a remark."""

    where: str
    what: str
    theirs: str
    ours: str
    how: str
    remark: str = ""


def format_list(values: Iterable[object], form: str) -> str:
    """The values, each as `form` says."""
    return ", ".join(format(value, form) for value in values)
