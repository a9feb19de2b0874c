"""Checks the arguments of public functions. An error names the expected and the given value.

In each check `where` is the name of the public function, and `name` the name of its argument.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any

_MAX_LETTERS = 80  # of a value in a message


def describe_value(value: Any) -> str:
    """Describe `value` for a message: its `repr` if that is short, and its type unless it is a number, text or None."""
    try:
        text = repr(value)
    except Exception:  # an error of the script's class; the type is enough for a message
        text = ""
    if not text or len(text) > _MAX_LETTERS or "\n" in text:
        return f"a {type(value).__name__}"
    return text if isinstance(value, (int, float, str, type(None))) else f"{text}, a {type(value).__name__}"


def check_whole_number(where: str, name: str, value: Any, least: int | None = 1) -> int:
    """Return `value` as an int. Raises TypeError or ValueError if it is not a whole number of at least `least`.

    least: the least valid number; None if every whole number is valid, also a negative one.
    """
    expected = "a whole number" if least is None else f"a whole number, {least} or more"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{where}: expected {name} to be {expected}; given {describe_value(value)}") from None
    if least is not None and number < least:
        raise ValueError(f"{where}: expected {name} to be {expected}; given {describe_value(value)}")
    return number


def check_number(where: str, name: str, value: Any) -> float:
    """Return `value` as a float. Raises TypeError if it is not a number."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{where}: expected {name} to be a number; given {describe_value(value)}")
    return float(value)


def check_fraction(where: str, name: str, value: Any) -> float:
    """Return `value` as a float. Raises TypeError or ValueError if it is not a number from 0 to less than 1."""
    expected = f"{where}: {name} has to be at least 0 and less than 1; given {describe_value(value)}"
    try:
        number = check_number(where, name, value)
    except TypeError:
        raise TypeError(expected) from None
    if not 0 <= number < 1 or math.isnan(number):
        raise ValueError(expected)
    return number


def check_choice(where: str, name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value`. Raises ValueError if it is not one of the words `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{where}: {name} has to be one of {', '.join(choices)}; given {describe_value(value)}")
    return value


def check_words(where: str, name: str, value: Any) -> list[str]:
    """Return `value`, a list of texts, numbers and paths, as a list of texts.

    Raises TypeError for another value. A single text is refused, too: it would count as a list of its letters.
    """
    expected = f"{where}: expected {name} to be a list of texts, numbers or paths"
    if isinstance(value, str):
        items_text = ", ".join(map(repr, value.split())) if value.isprintable() else "..."
        raise TypeError(f"{expected}; given the text {describe_value(value)}. As a list it is [{items_text}]")
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{expected}; given {describe_value(value)}")
    for item in value:
        is_number = hasattr(item, "__float__") and not hasattr(item, "__len__")
        if not (isinstance(item, (str, os.PathLike)) or is_number):
            raise TypeError(f"{expected}; among them is {describe_value(item)}")
    return [os.fspath(item) if isinstance(item, os.PathLike) else str(item) for item in value]


def check_flag(where: str, name: str, value: Any) -> bool:
    """Return `value` as a bool. Raises TypeError if it is not True or False."""
    if type(value).__name__ not in ("bool", "bool_"):  # "bool_" is NumPy's
        raise TypeError(f"{where}: {name} has to be True or False; given {describe_value(value)}")
    return bool(value)


def find_similar(name: str, known_names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the one of `known_names` of which `name` is probably a misspelling; "" if there is none.

    cutoff: the least similarity, from 0 to 1 (`difflib.get_close_matches`).
    """
    return next(iter(difflib.get_close_matches(name, list(known_names), n=1, cutoff=cutoff)), "")


def describe_unknown(kind: str, name: str, known_names: Iterable[str]) -> str:
    """Return the message for a `name` that is not among the `known_names` of a `kind`, such as "setting"."""
    known_names = list(known_names)
    similar = find_similar(name, known_names)
    hint = f"did you mean {similar}? " if similar else ""
    return f"there is no {kind} {name}; {hint}They are {', '.join(known_names)}"
