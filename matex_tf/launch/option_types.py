"""Types of the options of `matex run`, `matex plan` and `matex simulate`: each converts the text of an option."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from matex_tf import settings
from matex_tf.costs import collectives

MAX_RANKS = 1 << 20
MAX_COUNT = 2**31 - 1  # MPI counts are 32-bit integers
HERE = -1.0  # the size `here`: a rank's share of the free memory of this host, or of the limit of its container or job
_TIME_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "": 1}  # in seconds


class Parsed(click.ParamType):
    """An option whose text `parse` converts. The text of a ValueError of `parse` is the expected value: "a time".

    `name` in capitals stands for the value in the help page.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]):
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, already converted
        try:
            return self.parse(value.strip())
        except ValueError as error:
            option = param.opts[-1] if param else "this option"
            raise click.UsageError(f"{option} expects {error}; {value!r} was given") from None


def _is_count(text: str, largest: int) -> bool:
    """Whether `text` is a whole number from 1 to `largest`."""
    return re.fullmatch(r"\d{1,10}", text, re.ASCII) is not None and 1 <= int(text) <= largest


def make_count(noun: str) -> Parsed:
    """The type of a number, 1 or more, of what `noun` names."""

    def parse_count(text: str) -> int:
        if not _is_count(text, MAX_COUNT):
            raise ValueError(f"the number of {noun}, 1 or more")
        return int(text)

    return Parsed(noun, parse_count)


def parse_ranks(text: str) -> list[int]:
    """Numbers of ranks, such as 1,2,4,...,1024. Three dots continue the two numbers before them. Raises ValueError."""
    items = [item.strip() for item in text.split(",")]
    counts: list[int] = []
    for item, next_item in zip(items, [*items[1:], ""]):
        if item == "..." and len(counts) >= 2 and _is_count(next_item, MAX_RANKS):
            counts += _continue_series(counts[-2], counts[-1], int(next_item))
        elif _is_count(item, MAX_RANKS):
            counts.append(int(item))
        else:
            raise ValueError("numbers such as 1,2,4,...,1024")
    return sorted(set(counts))


def _continue_series(previous: int, last: int, end: int) -> list[int]:
    """The numbers between `last` and `end`: doubled each time if `last` is twice `previous`, else with equal steps."""
    is_doubling = last == 2 * previous
    series = []
    while last < end:
        previous, last = last, 2 * last if is_doubling else last + max(last - previous, 1)
        if last < end:
            series.append(last)
    return series


def _parse_numbers(text: str) -> list[int]:
    items = [item.strip() for item in text.split(",")]
    if not all(_is_count(item, MAX_COUNT) for item in items):
        raise ValueError("numbers of 1 or more as 4,16,64")
    return [int(item) for item in items]


def _parse_bytes(text: str) -> float:
    if text.lower() == "here":
        return HERE
    try:
        if re.fullmatch(r"[0-9.e+-]+", text):  # a number without a unit
            raise ValueError("a size with its unit, such as 12GiB")
        return settings.parse_size(text)
    except ValueError as error:
        raise ValueError(f"{error}, or here") from None


def _parse_time(text: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(s|m|min|h|d|)", text.lower(), re.ASCII)
    if not match or float(match[1]) <= 0:
        raise ValueError("a time such as 90min or 6h")
    return float(match[1]) * _TIME_UNITS[match[2]]


def _parse_network(text: str) -> str:
    try:
        if text:
            collectives.parse_network(text)
    except ValueError as error:
        raise click.UsageError(f"--network: {error}") from None
    return text


RANKS = Parsed("ranks", parse_ranks)
NUMBERS = Parsed("numbers", _parse_numbers)
HOSTS = Parsed("hosts", lambda text: tuple(name.strip() for name in text.split(",") if name.strip()))
BYTES = Parsed("size", _parse_bytes)
TIME = Parsed("time", _parse_time)  # such as 6h, in seconds
NETWORK = Parsed("network", _parse_network)
"""A network by name, or by its latency in seconds and its bytes per second; "" if it is not named."""


def check_writable(option: str, path: Path) -> None:
    """Raises click.UsageError if the output file of `option` cannot be written."""
    folder = path.absolute().parent
    if path.is_dir():
        reason = "that is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "it may not be written"
    else:
        return
    raise click.UsageError(f"{option} cannot write {path}: {reason}")
