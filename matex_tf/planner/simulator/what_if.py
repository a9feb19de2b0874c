"""Parses and checks what-if changes, such as `overlap=off` or `link=2us,25GB/s`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matex_tf import arguments, settings
from matex_tf.costs import collectives
from matex_tf.costs.collectives import Link
from matex_tf.planner.simulator.program import ImpossibleRequest

BUCKETS = ("best", "ibatch", "each")
PULLS = ("default", "layerwise", "ibatch")
ALGORITHMS = collectives.EXACT
_OF_SUMS = ("overlap", "buckets", "algorithm", "compression", "servers", "pull")
"""Changes that cannot be combined with a strategy."""

Changed = dict[str, Any]
"""Fields of `WhatIf` by name."""

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class WhatIf:
    """The requested changes; None, "" or an empty mapping keeps the plan's own value."""

    overlap: bool | None = None
    buckets: str | float = "best"
    """A method of `BUCKETS`, or the bytes at which a bucket is closed."""
    algorithm: str | None = None
    compression: str = ""
    """fp16, bf16 or topk:SHARE."""
    link: Link | None = None
    """Between hosts."""
    slow: dict[int, float] = field(default_factory=dict)
    """Maps ranks to factors of their computation."""
    noise: float | None = None
    """The relative standard deviation of a step's computation; None: it is drawn from the measured steps."""
    ranks_per_host: int | None = None
    strategy: str = ""
    servers: int | None = None
    """The number of parameter servers."""
    synchronous: bool = False
    pull: str | None = None
    """One of `PULLS`, with servers."""


def read_changes(words: Sequence[str]) -> WhatIf:
    """Parse `words` such as "overlap=off".

    Raises:
        ImpossibleRequest: an unknown name, with the nearest known one; or an invalid value, with the valid form.
    """
    what_if = WhatIf()
    for word in words:
        name, equals, value = word.partition("=")
        if name not in READERS:
            similar = arguments.find_similar(name, READERS, cutoff=0.5)
            hint = f"did you mean {similar}? " if similar else ""
            raise ImpossibleRequest(f"there is no what-if {name!r}; {hint}There are {', '.join(READERS)}")
        form, read_one = READERS[name]
        try:
            if not equals or not value:
                raise ValueError(word)
            what_if = dataclasses.replace(what_if, **read_one(value))
        except (ValueError, KeyError, TypeError):
            hint = _suggest_nearest(value, form)
            raise ImpossibleRequest(f"expected {name}={form}; given {word!r}{hint}") from None
    if what_if.pull is not None and what_if.servers is None:
        raise ImpossibleRequest("pull= applies to parameter servers: add servers=NUMBER")
    if what_if.strategy:
        of_sums = [word for word in words if word.partition("=")[0] in _OF_SUMS]
        if of_sums:
            raise ImpossibleRequest(
                f"strategy= cannot be combined with {of_sums[0]}, which applies to allreduce or to XAI's servers"
            )
    return what_if


def parse_seconds(text: str) -> float:
    """Parse a time such as "2us" into seconds. Raises ValueError."""
    return _parse_quantity(text, _SECONDS)


def parse_bytes(text: str) -> float:
    """Parse a size such as "25MiB" into bytes. Raises ValueError."""
    return _parse_quantity(text, _BYTES)


def _parse_quantity(text: str, units: dict[str, float]) -> float:
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?\d+)?)\s*([A-Za-z]+)", text.strip())
    if not match or match[2] not in units or float(match[1]) < 0:
        raise ValueError(text)
    return float(match[1]) * units[match[2]]


def _suggest_nearest(value: str, form: str) -> str:
    similar = arguments.find_similar(value, re.split(r"[|,]", form))
    return f"; did you mean {similar}?" if similar not in ("", value) else ""


def _make_choice_parser(name: str, choices: Sequence[str]) -> Callable[[str], Changed]:
    return lambda value: {name: choices[choices.index(value)]}


def _parse_buckets(value: str) -> Changed:
    if value in BUCKETS:
        return {"buckets": value}
    bucket_bytes = parse_bytes(value)
    if bucket_bytes <= 0:
        raise ValueError(value)
    return {"buckets": bucket_bytes}


def _parse_compression(value: str) -> Changed:
    kind, _, share = value.partition(":")
    if value in ("fp16", "bf16") or (kind == "topk" and 0 < float(share) <= 1):
        return {"compression": value}
    raise ValueError(value)


def _parse_link(value: str) -> Changed:
    if value in collectives.NETWORKS:
        return {"link": collectives.NETWORKS[value]}
    start_up, _, rate = value.partition(",")
    if not rate.endswith("/s"):
        raise ValueError(value)
    rate_in_bytes = parse_bytes(rate[:-2])
    if rate_in_bytes == 0:
        raise ValueError(value)
    return {"link": Link(parse_seconds(start_up), 1 / rate_in_bytes)}


def _parse_slow(value: str) -> Changed:
    pairs = [pair.split(":") for pair in value.split(",")]
    slow = {int(rank): float(factor) for rank, factor in pairs}
    if min(slow) < 0 or min(slow.values()) <= 0:
        raise ValueError(value)
    return {"slow": slow}


def _parse_noise(value: str) -> Changed:
    noise = float(value)
    if not 0 <= noise < 1:
        raise ValueError(value)
    return {"noise": noise}


def _make_whole_parser(name: str) -> Callable[[str], Changed]:
    def read_whole(value: str) -> Changed:
        number = int(value)
        if number < 1:
            raise ValueError(value)
        return {name: number}

    return read_whole


def _parse_servers(value: str) -> Changed:
    number, _, mode = value.partition(",")
    return {**_make_whole_parser("servers")(number), "synchronous": {"": False, "async": False, "sync": True}[mode]}


def _parse_strategy(value: str) -> Changed:
    if settings.is_asynchronous(value) or settings.count_only_serving(value):
        raise ValueError(value)
    return {"strategy": settings.parse_strategy(value)}


# A parser raises ValueError, KeyError or TypeError for an invalid value.
READERS: dict[str, tuple[str, Callable[[str], Changed]]] = {
    "overlap": ("on|off", lambda value: {"overlap": {"on": True, "off": False}[value]}),
    "buckets": ("best|ibatch|each|25MiB", _parse_buckets),
    "algorithm": ("|".join(ALGORITHMS), _make_choice_parser("algorithm", ALGORITHMS)),
    "compression": ("fp16|bf16|topk:0.01", _parse_compression),
    "link": (f"2us,25GB/s or {'|'.join(collectives.NETWORKS)}", _parse_link),
    "slow": ("RANK:FACTOR,... as 3:1.2", _parse_slow),
    "noise": ("0.03, a part of a step's computation", _parse_noise),
    "strategy": ("sharded|servers:S|local:H", _parse_strategy),
    "ranks-per-host": ("NUMBER", _make_whole_parser("ranks_per_host")),
    "servers": ("NUMBER,async|sync", _parse_servers),
    "pull": ("|".join(PULLS), _make_choice_parser("pull", PULLS)),
}
"""By name: the form of the value, for messages, and its parser."""
