"""Arithmetic on the entries of shapes and the like: whole numbers that are fixed, or grow with the rows."""

from __future__ import annotations

from collections.abc import Callable

from matex_tf.analysis.placement import Element


def negate(one: Element) -> Element:
    return Element(one.power, _negate_count(one.value), _negate_count(one.unit))


def _negate_count(value: int | None) -> int | None:
    return None if value is None else -value


def _read_count(one: Element) -> int | None:
    """Where it is known, what it is, or how many times the number of rows."""
    return one.value if one.power == 0 else one.unit if one.power == -1 else None


def _make_element(power: int | None, count: int | None) -> Element:
    return Element(power, count if power == 0 else None, count if power == -1 else None)


def _combine_counts(first: Element, second: Element, compute: Callable[[int, int], int]) -> int | None:
    one, other = _read_count(first), _read_count(second)
    return None if one is None or other is None else int(compute(one, other))


def _divide_counts(first: Element, second: Element) -> tuple[int | None, int | None]:
    """What remains of a division, and the quotient rounded down, where both are known."""
    one, other = _read_count(first), _read_count(second)
    if one is None or not other:
        return None, None
    return one % other, one // other


def add(first: Element, second: Element) -> Element:
    for one, other in ((first, second), (second, first)):
        if one.power == 0 and one.value == 0:
            return other
    if first.power is None or first.power != second.power:
        return Element(None)
    return _make_element(first.power, _combine_counts(first, second, lambda a, b: a + b))


def subtract(first: Element, second: Element) -> Element:
    if second.power == 0 and second.value == 0:
        return first
    if first.power is None or first.power != second.power:
        return Element(None)
    return _make_element(first.power, _combine_counts(first, second, lambda a, b: a - b))


def multiply(first: Element, second: Element) -> Element:
    if first.power is None or second.power is None:
        return Element(None)
    return _make_element(first.power + second.power, _combine_counts(first, second, lambda a, b: a * b))


def divide_exactly(first: Element, second: Element) -> Element:
    if first.power is None or second.power is None:
        return Element(None)
    remains, quotient = _divide_counts(first, second)
    return _make_element(first.power - second.power, quotient if remains == 0 else None)


def divide_down(first: Element, second: Element) -> Element:
    """A quotient rounded down: of two that grow alike with the rows it is the same for all."""
    if second.power == 0 and second.value == 1:
        return first
    if first.power is None or second.power is None:
        return Element(None)
    remains, quotient = _divide_counts(first, second)
    if remains is None:
        return Element(0 if first.power == second.power else None)
    if first.power == second.power or (second.power == 0 and remains == 0):
        return _make_element(first.power - second.power, quotient)
    return Element(None)


def compute_remainder(first: Element, second: Element) -> Element:
    if first.power is None or second.power is None:
        return Element(None)
    remains, _ = _divide_counts(first, second)
    if second.power == 0 and remains == 0:
        return Element(0, 0)
    return _make_element(first.power if first.power == second.power else None, remains)


def make_extremum(compute: Callable[[int, int], int]) -> Callable[[Element, Element], Element]:
    def element(first: Element, second: Element) -> Element:
        if first.power is None or first.power != second.power:
            return Element(None)
        return _make_element(first.power, _combine_counts(first, second, compute))

    return element


def forget_value(first: Element, second: Element) -> Element:
    return Element(0 if first.power == second.power == 0 else None)
