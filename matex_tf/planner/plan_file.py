"""The file of a plan: what was measured of a script and of the links, and what is assumed; `plan.json`.

Times are in seconds, sizes in bytes. A step begins when the gradients of the one before are there, and ends when its
own last gradient is; sums over ranks are no part of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 2
MEASURED, EXTRAPOLATED, ASSUMED = "measured", "extrapolated", "assumed"
SIGNS = {MEASURED: "", EXTRAPOLATED: "~", ASSUMED: "?"}
"""Before a figure, what it stands on."""
LINK_BYTES = (256, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
"""The sizes of the sums by which a link is measured."""
ONE_HOST, TWO_HOSTS, ALL_RANKS = "one host", "two hosts", "all ranks of two hosts"
SCOPES = (ONE_HOST, TWO_HOSTS, ALL_RANKS)


def compute_typical_step(steps: Sequence[float]) -> float:
    """The step that half of `steps` take longer than."""
    return statistics.median(steps)


class PlanFileError(ValueError):
    """A file is no plan, or none that this version reads."""


@dataclass(frozen=True)
class Gradient:
    """One gradient of an update, as the engine knows it."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Collective:
    """A collective of a step other than its update's sums: its kind, its name for people, and the bytes of one rank.

    The kinds are collective (a sum, or a barrier, of 0 bytes), allgather, broadcast, message (of Python objects) and
    announcement (of an update: ranks meet and nothing is sent). Bytes are those of one measured size (`Size.bytes`).
    """

    kind: str
    name: str
    bytes: int


@dataclass(frozen=True)
class Input:
    """What a batch of a step costs a rank to read and decode: seconds of a core, and bytes."""

    seconds: float
    bytes: float


@dataclass(frozen=True)
class Size:
    """What was measured of phantom ranks: the script as rank 0 of `ranks`, in `copies` at once on this host."""

    ranks: int
    copies: int
    rows: int
    """Rows of the slice that rank 0 computes; 0 where the step is not sharded and every rank computes all."""
    steps: tuple[float, ...]
    """How long each step took, of all copies."""
    ready: tuple[float, ...]
    """When each of the plan's gradients is ready, from the start of the step; medians."""
    at: tuple[float, ...]
    """When each of the plan's collectives begins; medians."""
    base_bytes: int
    """Resident memory before the first step."""
    peak_bytes: int
    """The most resident memory of one process, over the copies (VmHWM)."""
    busy: float = 0.0
    """The share of this host's cores that other processes took meanwhile."""
    update: float = 0.0
    """Seconds of a step in which optimizers update the weights, which are its first; 0 if that was not measured."""
    cores: float | None = None
    """How many cores a copy kept busy while it trained; None where that was not measured."""
    bytes: tuple[int, ...] = ()
    """Of each of the plan's collectives; medians. None of them where this size does not tell."""
    input: Input | None = None
    """The mean of the copies; None where the steps take no batches of a `tf.data` pipeline before they begin."""

    @property
    def typical(self) -> float:
        """The seconds of a step, typically."""
        return compute_typical_step(self.steps)


@dataclass(frozen=True)
class LinkMeasurement:
    """Sums over `ranks` ranks on `hosts` hosts, of each of `bytes`."""

    scope: str
    ranks: int
    hosts: int
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Of a sum, in the thread that computes (inline)."""
    asleep: tuple[float, ...]
    """Of a sum in the thread of overlapped updates, which sleeps while it waits."""
    cpu_per_byte: float
    """Seconds of a core of one rank for each byte that is summed."""
    kept: str = ""
    """Where and when an earlier run measured it; "" if it was measured for this plan."""


@dataclass(frozen=True)
class Update:
    """What of the optimizers' updates ranks could have in pieces (`MATEX_STRATEGY=sharded`), bytes on all ranks.

    gradients: those that nothing but the update takes; weights: the updated ones; slots: the optimizers' variables of
    these; whole: their other variables. `why_not`: why there are no pieces, or not of everything; `not_async`,
    `not_local`: why ranks cannot train so, as far as that shows before they do.
    """

    gradients: int = 0
    weights: int = 0
    slots: int = 0
    whole: int = 0
    why_not: str = ""
    not_async: str = ""
    not_local: str = ""


@dataclass(frozen=True)
class Plan:
    """All that predictions are made of."""

    script: tuple[str, ...]
    host: str
    cores: int
    ranks_per_host: int
    scaling: str
    """strong or weak, as MATEX_SCALING."""
    overlaps: bool
    """Whether gradients become ready one by one, so that sums can be hidden behind the computation."""
    rows: int
    """Rows of the script's batch; 0 if no step is sharded."""
    epoch_steps: int
    """Steps of an epoch of the script alone; 0 if that is not known."""
    gradients: tuple[Gradient, ...]
    """In the order in which they are reduced."""
    collectives: tuple[Collective, ...]
    """In their order."""
    sizes: tuple[Size, ...]
    """By rising number of ranks, and of copies at once."""
    links: tuple[LinkMeasurement, ...] = ()
    network: str = ""
    """What is assumed between hosts where no link was measured: a name of `collectives.NETWORKS` or START_UP:BYTE."""
    assumptions: tuple[str, ...] = ()
    update: Update | None = None
    """None in the file of an older version, which did not measure it."""
    whole: Size | None = None
    """Whole batches, as many copies at once as a host has ranks; None where ranks cannot train so."""
    memory: float = 0.0
    """Bytes that a rank was given while it was measured, with MATEX_MICROBATCH=auto; 0: what this host left."""
    microbatch: int = 0
    """As MATEX_MICROBATCH: the rows of a part, AUTO for those that fit; 0: slices are computed at once."""
    why_no_epoch: str = ""
    """Why the steps of an epoch could not be counted; "" where they were."""
    format: int = field(default=FORMAT)

    def __post_init__(self) -> None:
        if not self.sizes:
            raise PlanFileError("no size was measured")
        kinds = [(size.ranks, size.copies) for size in self.sizes]
        if kinds != sorted(set(kinds)):
            raise PlanFileError("the measured sizes are not by rising number of ranks, and of copies at once")
        for size in self.sizes:
            if len(size.ready) != len(self.gradients) or len(size.at) != len(self.collectives):
                raise PlanFileError(f"of {size.ranks} ranks there are not as many times as gradients and collectives")
            if size.bytes and len(size.bytes) != len(self.collectives):
                raise PlanFileError(f"of {size.ranks} ranks there are not as many sizes as collectives")
            if not size.steps or min(size.steps) <= 0:
                raise PlanFileError(f"of {size.ranks} ranks there are no times of steps")
        for link in self.links:
            if link.scope not in SCOPES or not len(link.bytes) == len(link.seconds) == len(link.asleep) > 1:
                raise PlanFileError(f"the link {link.scope!r} has not as many times as sizes")

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.bytes for gradient in self.gradients)

    def find_link(self, *scopes: str) -> LinkMeasurement | None:
        """The measurement of the first of these scopes that there is."""
        found = {link.scope: link for link in self.links}
        return next((found[scope] for scope in scopes if scope in found), None)


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan to `path`, as JSON."""
    Path(path).write_text(json.dumps(dataclasses.asdict(plan), indent=1) + "\n")


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in the file `path`.

    Raises:
        PlanFileError: it is none, or one of another version.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text())
        if not isinstance(content, dict) or "sizes" not in content:
            raise PlanFileError("it holds no plan")
        if content.get("format") != FORMAT:
            raise PlanFileError(
                f"its format is {content.get('format')!r}, and this version reads {FORMAT}: plan the script again"
            )
        return _build_value(Plan, content)
    except (ValueError, TypeError, KeyError) as error:
        raise PlanFileError(f"{os.fspath(path)} is no plan that can be read: {error}") from None


def read_link(text: str) -> LinkMeasurement:
    """The measurement of a link that is the last line of `text`.

    Raises:
        PlanFileError: it is none.
    """
    lines = text.strip().splitlines()
    try:
        link: LinkMeasurement = _build_value(LinkMeasurement, json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError, AttributeError):
        raise PlanFileError(f"no measurement of a link: {lines[-1:]}") from None
    return link


def _build_value(kind: Any, value: Any) -> Any:
    """`value`, from JSON, as the type `kind`."""
    if isinstance(kind, types.UnionType):
        kind, _ = typing.get_args(kind)
        if value is None:
            return None
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        types_of = typing.get_type_hints(kind)
        unknown = set(value) - set(types_of)
        if unknown:
            raise PlanFileError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
        return kind(**{name: _build_value(types_of[name], item) for name, item in value.items()})
    if typing.get_origin(kind) is tuple:
        return tuple(_build_value(typing.get_args(kind)[0], item) for item in value)
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise PlanFileError(f"expected {kind.__name__}, not {value!r}")
    return value
