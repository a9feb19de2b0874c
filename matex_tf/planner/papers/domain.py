"""A figure of a formula, and whether the formula holds there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """What a formula gives, and why it does not hold there: "" where it does."""

    value: float
    outside: str = ""

    def __str__(self) -> str:
        return f"{self.value:g}" + (f" (outside its domain: {self.outside})" if self.outside else "")


def check_positive(where: str, **given: float) -> None:
    """Raises ValueError where one of `given` is not a finite number above 0."""
    for name, value in given.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{where}: expected {name} to be above 0; given {value}")
