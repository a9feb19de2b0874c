"""The file of a plan, `plan.json`: measurements of a script and of links, and assumptions.

Times are in seconds, sizes in bytes. A step lasts from the time at which the last gradient of the preceding step is
ready to the time at which its own last gradient is ready. It does not include sums over ranks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf.runtime import atomic

FORMAT = 3
"""The version of the file; other versions are refused."""
MEASURED, EXTRAPOLATED, ASSUMED = "measured", "extrapolated", "assumed"
"""Marks: the basis of a predicted number, from the most to the least certain one."""
SIGNS = {MEASURED: "", EXTRAPOLATED: "~", ASSUMED: "?"}
"""The sign of each mark, shown before the number."""
LINK_BYTES = (256, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
"""The sizes of the sums that measure a link."""
ONE_HOST, TWO_HOSTS, ALL_RANKS = "one host", "two hosts", "all ranks of two hosts"
SCOPES = (ONE_HOST, TWO_HOSTS, ALL_RANKS)
"""The ranks of a measured link: all ranks of one host, one on each of two hosts, or all ranks of two hosts."""


class PlanFileError(ValueError):
    """A file is not a plan, or has a format that this version does not read."""


@dataclass(frozen=True)
class Gradient:
    """One gradient of an update, as recorded by the engine."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Collective:
    """A collective of a step other than the sums of its update: kind, name for messages, and bytes of one rank.

    Kinds: collective (a sum, or a barrier of 0 bytes), allgather, broadcast, message (Python objects) and announcement
    (of an update: a rendezvous without data). The bytes are those of one measured size (`Size.bytes`).
    """

    kind: str
    name: str
    bytes: int


@dataclass(frozen=True)
class Input:
    """The cost of the input of a step, for a rank: to read and decode its part of a batch."""

    seconds: float
    """Core seconds."""
    bytes: float
    """Bytes read."""


@dataclass(frozen=True)
class Size:
    """Measurements of phantom ranks: the script as rank 0 of `ranks`, in `copies` concurrent copies on this host."""

    ranks: int
    copies: int
    rows: int
    """Rows of the slice of rank 0; 0 if the step is not sharded and every rank computes all rows."""
    steps: tuple[float, ...]
    """Seconds of each step, of all copies."""
    ready: tuple[float, ...]
    """For each of the plan's gradients, the median time from the start of the step until it is ready."""
    at: tuple[float, ...]
    """For each of the plan's collectives, the median time from the start of the step until it begins."""
    base_bytes: int
    """Resident memory before the first step."""
    peak_bytes: int
    """The largest peak of resident memory (VmHWM) of a copy."""
    busy: float = 0.0
    """The share of this host's cores that other processes used meanwhile."""
    update: float = 0.0
    """Seconds of the optimizers' updates, at the beginning of a step; 0 if not measured."""
    cores: float | None = None
    """Number of cores that a copy kept busy while it trained; None if not measured."""
    bytes: tuple[int, ...] = ()
    """The bytes of each of the plan's collectives; medians. Empty if they were not measured."""
    input: Input | None = None
    """The mean over the copies; None if steps do not take batches of a `tf.data` pipeline before they begin."""

    @property
    def typical(self) -> float:
        """Typical seconds of a step: the median."""
        return statistics.median(self.steps)


@dataclass(frozen=True)
class LinkMeasurement:
    """Measured sums over `ranks` ranks on `hosts` hosts, for each size in `bytes`."""

    scope: str
    ranks: int
    hosts: int
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Seconds of a sum on the computing thread (inline)."""
    asleep: tuple[float, ...]
    """Seconds of a sum on the thread of overlapped updates, which sleeps while it waits."""
    cpu_per_byte: float
    """Core seconds of one rank for each byte of a sum."""
    kept: str = ""
    """Host and time of an earlier run that measured it; "" if it was measured for this plan."""


@dataclass(frozen=True)
class Update:
    """The parts of optimizers' updates that can be sharded (`MATEX_STRATEGY=sharded`), in bytes over all ranks."""

    gradients: int = 0
    """Gradients that only the update uses."""
    weights: int = 0
    """The weights that it updates."""
    slots: int = 0
    """The optimizers' variables for these weights."""
    whole: int = 0
    """Other variables of the optimizers."""
    why_not: str = ""
    """The reason why nothing, or not everything, can be sharded."""
    not_async: str = ""
    """The reason against the strategy `async`, as far as it is known before training; "" if there is none."""
    not_local: str = ""
    """The same for the strategy `local:H`."""


@dataclass(frozen=True)
class Plan:
    """The measurements of a script and of links: the basis of all predictions."""

    script: tuple[str, ...]
    host: str
    cores: int
    ranks_per_host: int
    scaling: str
    """As MATEX_SCALING. strong: ranks divide the script's batch; weak: each rank has a batch of that size."""
    overlaps: bool
    """Whether gradients become ready one by one, so that sums can overlap with the computation."""
    rows: int
    """Rows of the script's batch; 0 if no step is sharded."""
    epoch_steps: int
    """Steps of an epoch of the script alone; 0 if unknown."""
    gradients: tuple[Gradient, ...]
    """In the order in which they are reduced."""
    collectives: tuple[Collective, ...]
    """The other collectives of a step, in their order."""
    sizes: tuple[Size, ...]
    """By rising number of ranks, then of copies."""
    links: tuple[LinkMeasurement, ...] = ()
    network: str = ""
    """The assumed link between hosts if none was measured: a name of `collectives.NETWORKS` or START_UP:BYTE."""
    assumptions: tuple[str, ...] = ()
    update: Update = Update()
    whole: Size | None = None
    """Steps with whole batches, with as many copies as a host has ranks; None if ranks cannot train so."""
    memory: float = 0.0
    """The memory limit of a rank in bytes during the measurement, with MATEX_MICROBATCH=auto; 0: the free memory."""
    microbatch: int = 0
    """As MATEX_MICROBATCH: rows of a microbatch, or AUTO; 0: slices are computed at once."""
    why_no_epoch: str = ""
    """The reason why the steps of an epoch could not be counted; "" if they were."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not self.sizes:
            raise PlanFileError("no size was measured")
        size_keys = [(size.ranks, size.copies) for size in self.sizes]
        if size_keys != sorted(set(size_keys)):
            raise PlanFileError("the measured sizes are not sorted by numbers of ranks and copies")
        for size in self.sizes:
            if len(size.ready) != len(self.gradients) or len(size.at) != len(self.collectives):
                raise PlanFileError(f"{size.ranks} ranks: the numbers of times, gradients and collectives differ")
            if size.bytes and len(size.bytes) != len(self.collectives):
                raise PlanFileError(f"{size.ranks} ranks: the numbers of sizes and collectives differ")
            if not size.steps or min(size.steps) <= 0:
                raise PlanFileError(f"{size.ranks} ranks: there are no positive times of steps")
        for link in self.links:
            if link.scope not in SCOPES or not len(link.bytes) == len(link.seconds) == len(link.asleep) > 1:
                raise PlanFileError(f"the link {link.scope!r} has different numbers of times and sizes")

    @property
    def gradient_bytes(self) -> int:
        return sum(gradient.bytes for gradient in self.gradients)

    def find_link(self, *scopes: str) -> LinkMeasurement | None:
        """The measurement of the first of `scopes` that was measured; None if there is none."""
        links = {link.scope: link for link in self.links}
        return next((links[scope] for scope in scopes if scope in links), None)


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan to `path`, as JSON. After an error, an earlier file remains."""
    with atomic.write_beside(os.fspath(path)) as temporary_path:
        Path(temporary_path).write_text(json.dumps(dataclasses.asdict(plan), indent=1) + "\n")


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read the plan in the file `path`.

    Raises:
        PlanFileError: the file is not a plan, or has another format.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text())
        if not isinstance(content, dict) or "sizes" not in content:
            raise PlanFileError("it does not contain a plan")
        if content.get("format") != FORMAT:
            raise PlanFileError(
                f"its format is {content.get('format')!r}, and this version reads {FORMAT}: plan the script again"
            )
        return _build_value(Plan, content)
    except (ValueError, TypeError, KeyError) as error:
        raise PlanFileError(f"no plan can be read from {os.fspath(path)}: {error}") from None


def read_link(text: str) -> LinkMeasurement:
    """Parse the measurement of a link in the last line of `text`.

    Raises:
        PlanFileError: the line is not a measurement.
    """
    lines = text.strip().splitlines()
    try:
        return typing.cast(LinkMeasurement, _build_value(LinkMeasurement, json.loads(lines[-1])))
    except (IndexError, ValueError, TypeError, AttributeError):
        raise PlanFileError(f"no measurement of a link: {lines[-1:]}") from None


def _build_value(expected_type: Any, value: Any) -> Any:
    """Convert `value`, from JSON, to `expected_type`: a dataclass, a tuple, a number or text, or an optional one."""
    if isinstance(expected_type, types.UnionType):
        expected_type, _ = typing.get_args(expected_type)  # all optional fields are `TYPE | None`
        if value is None:
            return None
    if isinstance(expected_type, type) and dataclasses.is_dataclass(expected_type):
        if not isinstance(value, dict):
            raise PlanFileError(f"expected {expected_type.__name__}, not {value!r}")
        field_types = typing.get_type_hints(expected_type)
        unknown_names = set(value) - set(field_types)
        if unknown_names:
            raise PlanFileError(f"{expected_type.__name__} has no {', '.join(sorted(unknown_names))}")
        return expected_type(**{name: _build_value(field_types[name], item) for name, item in value.items()})
    if typing.get_origin(expected_type) is tuple:
        return tuple(_build_value(typing.get_args(expected_type)[0], item) for item in value)
    if expected_type is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, expected_type):
        raise PlanFileError(f"expected {expected_type.__name__}, not {value!r}")
    return value
