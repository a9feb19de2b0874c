"""Option types of `matex plan`: numbers of ranks, sizes of memory, lengths of time."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from matex_tf import settings
from matex_tf.costs import collectives

MAX_RANKS = 1 << 20
_TIMES = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "": 1}


class Ranks(click.ParamType):
    """Numbers of ranks, such as 1,2,4,...,1024. Three dots continue the two numbers before them."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        words = [word.strip() for word in str(value).split(",")]
        found: list[int] = []
        for i, word in enumerate(words):
            if word == "..." and len(found) >= 2 and i + 1 < len(words) and words[i + 1].isdigit():
                found += _continue_series(found[-2], found[-1], int(words[i + 1]))
            elif word.isascii() and word.isdigit() and 1 <= int(word) <= MAX_RANKS:
                found.append(int(word))
            else:
                option = param.opts[-1] if param else "--ranks"
                raise click.UsageError(f"{option} expects numbers such as 1,2,4,...,1024; {value!r} was given")
        return sorted(set(found))


def _continue_series(previous: int, last: int, end: int) -> list[int]:
    """The numbers between `last` and `end` that continue `previous`, `last`, by doubling or by adding."""
    doubles = last == 2 * previous
    series = []
    while last < end:
        previous, last = last, 2 * last if doubles else last + max(last - previous, 1)
        if last < end:
            series.append(last)
    return series


class Numbers(click.ParamType):
    """Positive whole numbers, separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            found = [int(one) for one in value.split(",")]
        except ValueError:
            found = []
        if not found or min(found) < 1:
            self.fail(f"expected numbers of 1 or more as 4,16,64; given {value!r}", param, ctx)
        return found


HERE = -1.0
"""The value of `here`: a rank's share of the free memory of this host, or of the limit of its container or job."""


class Bytes(click.ParamType):
    """A size such as 16GiB, or `here`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if str(value).strip().lower() == "here":
            return HERE
        if isinstance(value, float):
            return value
        try:
            if re.fullmatch(r"[0-9.e+-]+", value.strip()):
                raise ValueError("a size with its unit, such as 12GiB")
            return settings.parse_size(value)
        except ValueError as error:
            raise click.UsageError(f"--memory expects {error}, or here; {value!r} was given") from None


class Time(click.ParamType):
    """A length of time such as 6h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([0-9.]+)\s*(s|m|min|h|d|)", str(value).strip().lower())
        if not match or float(match[1]) <= 0:
            raise click.UsageError(f"--deadline expects a time such as 90min or 6h; {value!r} was given")
        return float(match[1]) * _TIMES[match[2]]


class Network(click.ParamType):
    """A network by name, or by its latency in seconds and its bytes per second."""

    name = "network"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            return ""
        try:
            collectives.parse_network(str(value))
        except ValueError as error:
            raise click.UsageError(f"--network: {error}") from None
        return str(value)


class Output(click.ParamType):
    """A writable output file."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value and (why := explain_unwritable(Path(value))):
            raise click.UsageError(f"{param.opts[-1] if param else 'a file'} cannot write {value}: {why}")
        return str(value)


def explain_unwritable(path: Path) -> str:
    """Why a file cannot be written; "" if it can."""
    folder = path.absolute().parent
    if path.is_dir():
        return "that is a folder"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    return "" if os.access(path if path.exists() else folder, os.W_OK) else "it may not be written"
