"""Values of formulas that are valid only in a domain, and checks of their arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """The value of a formula."""

    value: float
    outside: str = ""
    """The reason why the formula is not valid for its arguments; "" if it is valid."""


def check_positive(where: str, **values: float) -> None:
    """Raises ValueError if one of `values` is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{where}: expected {name} to be above 0; given {value}")
