"""The value of a formula, and whether the formula is valid there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """The value of a formula, and the reason why it is outside of the domain; "" inside."""

    value: float
    outside: str = ""

    def __str__(self) -> str:
        return f"{self.value:g}" + (f" (outside its domain: {self.outside})" if self.outside else "")


def check_positive(where: str, **given: float) -> None:
    """Raises ValueError if one of `given` is not a finite number above 0."""
    for name, value in given.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{where}: expected {name} to be above 0; given {value}")
