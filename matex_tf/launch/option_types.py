"""Types of the options of `matex run`, `matex plan` and `matex simulate`: each converts the text of an option.

A type has a method `parse`. From its ValueError, `Parsed` makes an error message that names the option.
"""

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
_TIME_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "": 1}  # in seconds


class Parsed(click.ParamType):
    """An option whose text `parse` converts. The ValueError of `parse` is a noun: what the option expects."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, already converted
        try:
            return self.parse(value.strip())
        except ValueError as error:
            option = param.opts[-1] if param else "this option"
            raise click.UsageError(f"{option} expects {error}; {value!r} was given") from None

    def parse(self, text: str) -> Any:
        """The value of the option. Raises ValueError."""
        raise NotImplementedError


def _is_count(text: str, largest: int) -> bool:
    """Whether `text` is a whole number from 1 to `largest`."""
    return text.isascii() and text.isdigit() and 1 <= int(text) <= largest


class Count(Parsed):
    """The number of `things`, 1 or more."""

    def __init__(self, things: str):
        self.things = self.name = things

    def parse(self, text: str) -> int:
        if not _is_count(text, MAX_COUNT):
            raise ValueError(f"the number of {self.things}, 1 or more")
        return int(text)


class SettingValue(Parsed):
    """A value of a MATEX_* setting, parsed by the setting's own parser."""

    name = "value"

    def __init__(self, parse_setting: Callable[[str], str]):
        self.parse_setting = parse_setting

    def parse(self, text: str) -> str:
        return self.parse_setting(text)


class Ranks(Parsed):
    """Numbers of ranks, such as 1,2,4,...,1024. Three dots continue the two numbers before them."""

    name = "ranks"

    def parse(self, text: str) -> list[int]:
        words = [word.strip() for word in text.split(",")]
        counts: list[int] = []
        for word, next_word in zip(words, [*words[1:], ""]):
            if word == "..." and len(counts) >= 2 and next_word.isdigit():
                counts += _continue_series(counts[-2], counts[-1], int(next_word))
            elif _is_count(word, MAX_RANKS):
                counts.append(int(word))
            else:
                raise ValueError("numbers such as 1,2,4,...,1024")
        return sorted(set(counts))


def _continue_series(previous: int, last: int, end: int) -> list[int]:
    """The numbers between `last` and `end` that continue `previous`, `last`: doubled as these are, else by addition."""
    doubles = last == 2 * previous
    series = []
    while last < end:
        previous, last = last, 2 * last if doubles else last + max(last - previous, 1)
        if last < end:
            series.append(last)
    return series


class Numbers(Parsed):
    """Positive whole numbers, separated by commas."""

    name = "numbers"

    def parse(self, text: str) -> list[int]:
        words = [word.strip() for word in text.split(",")]
        if not all(_is_count(word, MAX_COUNT) for word in words):
            raise ValueError("numbers of 1 or more as 4,16,64")
        return [int(word) for word in words]


HERE = -1.0
"""The value of `here`: a rank's share of the free memory of this host, or of the limit of its container or job."""


class Bytes(Parsed):
    """A size such as 16GiB, or `here`."""

    name = "size"

    def parse(self, text: str) -> float:
        if text.lower() == "here":
            return HERE
        try:
            if re.fullmatch(r"[0-9.e+-]+", text):
                raise ValueError("a size with its unit, such as 12GiB")
            return settings.parse_size(text)
        except ValueError as error:
            raise ValueError(f"{error}, or here") from None


class Time(Parsed):
    """A length of time such as 6h, in seconds."""

    name = "time"

    def parse(self, text: str) -> float:
        match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(s|m|min|h|d|)", text.lower(), re.ASCII)
        if not match or float(match[1]) <= 0:
            raise ValueError("a time such as 90min or 6h")
        return float(match[1]) * _TIME_UNITS[match[2]]


class Network(Parsed):
    """A network by name, or by its latency in seconds and its bytes per second; "" if it is not named."""

    name = "network"

    def parse(self, text: str) -> str:
        try:
            if text:
                collectives.parse_network(text)
        except ValueError as error:
            raise click.UsageError(f"--network: {error}") from None
        return text


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
