"""Parses and checks what-if changes, such as `overlap=off` or `link=2us,25GB/s`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from matex_tf import arguments, settings
from matex_tf.costs import collectives
from matex_tf.costs.collectives import Link

BUCKETS = ("best", "ibatch", "each")
"""Plans of buckets: the fastest, the greedy one of the paper iBatch, one bucket for each gradient."""
PULLS = ("default", "layerwise", "ibatch")
"""Messages by which a worker receives parameters from servers: all in one, one for each layer, greedy as in iBatch."""
_NOT_WITH_STRATEGY = ("overlap", "buckets", "algorithm", "compression", "servers", "pull")
"""Changes that cannot be combined with a strategy: the simulator takes the price of its exchanges from `matex plan`."""
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}


class ImpossibleRequest(ValueError):
    """A requested simulation is impossible; the text names possible requests."""


@dataclass(frozen=True)
class WhatIf:
    """The requested changes, by `--what NAME=VALUE`. None, "" or an empty mapping keeps the plan's own value."""

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
    servers: tuple[int, bool] | None = None
    """The number of parameter servers in place of sums, and whether workers wait for each other in each step."""
    pull: str | None = None
    """One of `PULLS`, with servers."""
    words: tuple[str, ...] = ()
    """The changes as given, such as overlap=on."""


def read_changes(words: Sequence[str]) -> WhatIf:
    """Parse `words` such as "overlap=off".

    Raises:
        ImpossibleRequest: an unknown name, with the nearest known one; or an invalid value, with the valid form.
    """
    what_if = WhatIf(words=tuple(words))
    names: set[str] = set()
    for word in words:
        name, equals, value = word.partition("=")
        if name not in READERS:
            raise ImpossibleRequest(arguments.describe_unknown("what-if", name, READERS))
        if name in names:
            raise ImpossibleRequest(f"{name}= is given twice: the changes exclude each other")
        names.add(name)
        form, parse_value = READERS[name]
        try:
            if not equals or not value:
                raise ValueError(word)
            what_if = dataclasses.replace(what_if, **{name.replace("-", "_"): parse_value(value)})
        except (ValueError, KeyError, TypeError):
            hint = _suggest_nearest(value, form)
            raise ImpossibleRequest(f"expected {name}={form}; given {word!r}{hint}") from None
    if what_if.pull is not None and what_if.servers is None:
        raise ImpossibleRequest("pull= applies to parameter servers: add servers=NUMBER")
    if what_if.strategy:
        conflicting_words = [word for word in words if word.partition("=")[0] in _NOT_WITH_STRATEGY]
        if conflicting_words:
            raise ImpossibleRequest(
                f"strategy= cannot be combined with {conflicting_words[0]}, which applies to allreduce or to XAI's "
                "servers"
            )
    return what_if


def parse_seconds(text: str) -> float:
    """Parse a time such as "2us" into seconds. Raises ValueError."""
    return _parse_quantity(text, _SECONDS)


def _parse_bytes(text: str) -> float:
    """Parse a size such as "25MiB" into bytes. Unlike `settings.parse_size`, refuse Gb: networks are sold in bits."""
    return _parse_quantity(text, _BYTES)


def _parse_quantity(text: str, units: dict[str, float]) -> float:
    match = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([A-Za-z]+)", text.strip())
    if not match or match[2] not in units:
        raise ValueError(text)
    quantity = float(match[1]) * units[match[2]]
    _require(quantity < inf)
    return quantity


def _suggest_nearest(value: str, form: str) -> str:
    similar = arguments.find_similar(value, re.split(r"[|,]", form))
    return f"; did you mean {similar}?" if similar not in ("", value) else ""


# Parsers of values. They raise ValueError, KeyError or TypeError for an invalid value.


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _make_choice_parser(choices: Sequence[str]) -> Callable[[str], str]:
    return lambda value: choices[choices.index(value)]  # `index` raises ValueError for another value


def _parse_count(value: str) -> int:
    _require(int(value) >= 1)
    return int(value)


def _parse_buckets(value: str) -> str | float:
    if value in BUCKETS:
        return value
    _require(_parse_bytes(value) > 0)
    return _parse_bytes(value)


def _parse_compression(value: str) -> str:
    kind, _, share = value.partition(":")
    _require(value in ("fp16", "bf16") or (kind == "topk" and 0 < float(share) <= 1))
    return value


def _parse_link(value: str) -> Link:
    if value in collectives.NETWORKS:
        return collectives.NETWORKS[value]
    start_up, _, rate = value.partition(",")
    bytes_a_second = _parse_bytes(rate.removesuffix("/s"))
    _require(rate.endswith("/s") and bytes_a_second > 0)
    return Link(parse_seconds(start_up), 1 / bytes_a_second)


def _parse_slow(value: str) -> dict[int, float]:
    pairs = [pair.split(":") for pair in value.split(",")]
    factors = {int(rank): float(factor) for rank, factor in pairs}
    _require(len(factors) == len(pairs) and min(factors) >= 0 and all(0 < factor < inf for factor in factors.values()))
    return factors


def _parse_noise(value: str) -> float:
    _require(0 <= float(value) < 1)
    return float(value)


def _parse_servers(value: str) -> tuple[int, bool]:
    count_text, _, mode = value.partition(",")
    return _parse_count(count_text), {"": False, "async": False, "sync": True}[mode]


def _parse_strategy(value: str) -> str:
    strategy = settings.parse_strategy(value)
    # Not simulated: ranks that train at their own pace (`async`), and ranks that only serve (`servers:S:only`).
    _require(not settings.is_asynchronous(strategy) and not settings.count_only_serving(strategy))
    return strategy


READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "overlap": ("on|off", lambda value: {"on": True, "off": False}[value]),
    "buckets": ("best|ibatch|each|25MiB", _parse_buckets),
    "algorithm": ("|".join(collectives.EXACT), _make_choice_parser(collectives.EXACT)),
    "compression": ("fp16|bf16|topk:0.01", _parse_compression),
    "link": (f"2us,25GB/s or {'|'.join(collectives.NETWORKS)}", _parse_link),
    "slow": ("RANK:FACTOR,... as 3:1.2", _parse_slow),
    "noise": ("0.03, a part of a step's computation", _parse_noise),
    "strategy": ("sharded|servers:S|local:H", _parse_strategy),
    "ranks-per-host": ("NUMBER", _parse_count),
    "servers": ("NUMBER,async|sync", _parse_servers),
    "pull": ("|".join(PULLS), _make_choice_parser(PULLS)),
}
"""By the name of a change, a field of `WhatIf`: the form of its value, for messages, and the parser of the value."""
