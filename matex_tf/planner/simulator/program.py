"""What a rank does in a step, from what a plan has measured, at a number of ranks that was not."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from matex_tf import arguments
from matex_tf.planner import collectives, plan_file
from matex_tf.planner.collectives import AnyLink, Link, MeasuredLink


class NotAsked(ValueError):
    """What was asked for cannot be: the text says what can."""


@dataclass(frozen=True)
class Program:
    """One rank's step alone, in seconds from its start and in bytes."""

    rows: int
    """Rows of the rank's slice; 0 where every rank computes the whole batch."""
    compute: float
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    """When each gradient and all before it are ready."""
    meetings: tuple[tuple[float, str, int], ...] = ()
    """The other collectives: when each begins, its name and bytes."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


def of_plan(plan: plan_file.Plan, ranks: int) -> Program:
    """The step of a rank of `ranks`, by straight lines between the measured sizes and beyond them."""
    ranks = arguments.whole_number("simulate", "ranks", ranks)
    is_sharded = plan.rows > 0 and plan.scaling != "weak"
    rows = ceil(plan.rows / ranks) if is_sharded else plan.rows
    measured = sorted(plan.sizes, key=lambda size: size.rows)
    if len({size.rows for size in measured}) < len(measured) or len(measured) == 1 or not is_sharded:
        nearest = min(plan.sizes, key=lambda size: abs(size.ranks - ranks))
        numbers = _numbers(nearest)
    else:
        numbers = _at(rows, [size.rows for size in measured], [_numbers(size) for size in measured])
    count = len(plan.gradients)
    compute, ready, at = numbers[0], numbers[1 : count + 1], numbers[count + 1 :]
    return Program(
        rows,
        max(compute, *ready, *at, 1e-9),
        tuple(gradient.name for gradient in plan.gradients),
        tuple(gradient.bytes for gradient in plan.gradients),
        tuple(itertools.accumulate(ready, max)),
        tuple((start, one.name, one.bytes) for start, one in zip(itertools.accumulate(at, max), plan.collectives)),
    )


def noise_of(plan: plan_file.Plan) -> tuple[float, ...]:
    """How much longer or shorter each measured step was than the median of its size, as a factor."""
    return tuple(
        step / middle for size in plan.sizes for middle in [statistics.median(size.steps)] for step in size.steps
    )


def links_of(plan: plan_file.Plan, overlapped: bool) -> tuple[AnyLink, AnyLink, str]:
    """(between hosts, within a host, a word on where they come from): as measured, else as the plan assumes.

    A sum over two ranks is two messages of half of it, so that it gives what a message costs.
    """
    network = plan.link(plan_file.ALL_RANKS, plan_file.TWO_HOSTS)
    within = plan.link(plan_file.ONE_HOST)
    memory: AnyLink = _messages(within, overlapped) if within else collectives.MEMORY
    if network is not None:
        return _messages(network, overlapped), memory, "measured between hosts"
    return assumed(plan.network), memory, f"assumed between hosts: {plan.network or 'ethernet25'}"


def assumed(name: str) -> Link:
    """A network by its name, or as START_UP:BYTES, seconds to start and bytes a second."""
    if name in collectives.NETWORKS or not name:
        return collectives.NETWORKS[name or "ethernet25"]
    try:
        start_up, rate = map(float, name.split(":"))
        return Link(start_up, 1 / rate)
    except (ValueError, ZeroDivisionError):
        raise NotAsked(
            f"the network {name!r} is none of {', '.join(collectives.NETWORKS)}, nor START_UP:BYTES as 2e-6:25e9"
        ) from None


def _messages(link: plan_file.LinkMeasurement, overlapped: bool) -> MeasuredLink:
    seconds = link.asleep if overlapped else link.seconds
    half = [size / 2 for size in link.bytes]
    messages = [(sum_of - size * collectives.ADDITION) / 2 for sum_of, size in zip(seconds, half)]
    return MeasuredLink(half, [max(message, 0.0) for message in messages])


def _numbers(size: plan_file.Size) -> tuple[float, ...]:
    return (statistics.median(size.steps), *size.ready, *size.at)


def _at(rows: float, measured: Sequence[int], numbers: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Each number at `rows`, on the line through the two measured sizes on either side, or nearest."""
    right = min(max(1, bisect.bisect_left(measured, rows)), len(measured) - 1)
    part = (rows - measured[right - 1]) / (measured[right] - measured[right - 1])
    return tuple(max(0.0, low + part * (high - low)) for low, high in zip(numbers[right - 1], numbers[right]))
