"""Chooses the number of ranks, and gives the reason in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from matex_tf import settings
from matex_tf.memory import MARGIN
from matex_tf.planner.compute import BUSY, count_measured_rows
from matex_tf.planner.plan_file import SIGNS, Plan
from matex_tf.planner.predict import Prediction, Predictor

TARGET = 0.7
WORTH = 1.05
"""Improvements with a smaller speedup are not mentioned."""


@dataclass(frozen=True)
class Choice:
    """The best prediction, or None if none is suitable; and the reason."""

    best: Prediction | None
    reason: str


def choose_ranks(
    predictor: Predictor, predictions: Sequence[Prediction], target: float = TARGET, deadline: float = 0.0,
    steps: int = 0, memory: float = 0.0,
) -> Choice:  # fmt: skip
    """Choose the fewest ranks that do `steps` steps of a one-rank run within `deadline` seconds; without a deadline,
    the most ranks with an efficiency of at least `target`. Only predictions within `memory` bytes for each rank count.
    """
    fit = [one for one in predictions if not memory or one.memory * MARGIN <= memory]
    if not fit:
        least = min(predictions, key=lambda one: one.memory)
        return Choice(
            None,
            f"no number of ranks asked for fits {_format_gib(memory)}: with {least.ranks} a rank takes "
            f"{_format_gib(least.memory)}, "
            f"and {MARGIN - 1:.0%} are kept free{_suggest_less_memory(predictor, memory)}",
        )
    if deadline:
        return _choose_by_deadline(predictor, fit, deadline, steps)
    good = [one for one in fit if one.efficiency >= target]
    if not good:
        best = max(fit, key=lambda one: one.efficiency)
        return Choice(
            best,
            f"no number of ranks reaches {target:.2f}; {best.ranks} is nearest, at {best.efficiency:.2f}"
            f"{describe_helps(predictor, best)}",
        )
    best = max(good, key=lambda one: one.rows_a_second or 1 / one.step)
    alone = predictor.predict_step(1)
    times = best.rows_a_second / alone.rows_a_second if alone.rows_a_second else alone.step / best.step
    slower = f". The script alone, with all cores of its host, is {1 / times:.2f} times as fast" if times < 1 else ""
    return Choice(
        best, f"best for efficiency {target:g}: {_describe_ranks(best)}{slower}{_describe_next(predictor, fit, best)}"
    )


def find_most_rows(predictor: Predictor, memory: float) -> int:
    """The largest number of rows that one rank can compute at once within `memory` bytes; 0 if one row exceeds it."""
    every = range(1, predictor.plan.rows + 1)
    return max(
        (rows for rows in every if predictor.compute.estimate_memory_of_rows(rows) * MARGIN <= memory), default=0
    )


def find_part_rows(predictor: Predictor, memory: float) -> int:
    """The largest microbatch (MATEX_MICROBATCH) with which a rank takes at most `memory` bytes; 0: none.

    By measurement, a row takes more memory in a microbatch than in a slice that is computed at once, at most twice as
    much (docs/planner.md); twice is assumed. Two more sets of gradients are added, as with `auto`.
    """
    plan = predictor.plan
    # the dependence of memory on the rows of a microbatch was not measured
    if plan.microbatch or count_measured_rows(plan) < 2:
        return 0
    peak, room = predictor.compute.estimate_memory_of_rows, memory / MARGIN - 2 * plan.gradient_bytes
    fits = (rows for rows in range(1, plan.rows + 1) if 2 * peak(rows) - peak(0) <= room)
    return max(fits, default=0)


def _suggest_less_memory(predictor: Predictor, memory: float) -> str:
    """Advice for less memory, if none of the requested numbers of ranks fits."""
    plan, size = predictor.plan, f"--memory {memory / 2**30:.2f}GiB"
    if not plan.rows:
        return ". Each rank computes the whole batch: neither more ranks nor MATEX_MICROBATCH reduce that"
    rows = find_most_rows(predictor, memory) if count_measured_rows(plan) > 1 else 0
    more = (
        f". {ceil(plan.rows / rows)} ranks would fit, with {rows} rows each"
        if rows and plan.scaling == "strong"
        else ""
    )
    if plan.microbatch:
        parts = "parts that fit" if plan.microbatch == settings.AUTO else f"parts of {plan.microbatch} rows"
        return f"{more}. That was measured with {parts} (MATEX_MICROBATCH)"
    if not rows and count_measured_rows(plan) > 1:
        least = _format_gib(predictor.compute.estimate_memory_of_rows(1))
        return f". One row takes {least}, which neither more ranks nor MATEX_MICROBATCH reduce"
    found = find_part_rows(predictor, memory)
    value = f"; by what was measured, MATEX_MICROBATCH={found} fits" if found else ""
    return (
        f"{more}. If the model computes each row by itself (no BatchNormalization), parts of a slice may fit: "
        f"matex run {size} chooses them (MATEX_MICROBATCH=auto){value}. MATEX_MICROBATCH=auto matex plan {size} shows "
        "the cost"
    )


def _choose_by_deadline(predictor: Predictor, fit: Sequence[Prediction], deadline: float, steps: int) -> Choice:
    if not steps:
        return Choice(
            None, f"no choice by --deadline, because the steps of an epoch {describe_no_epoch(predictor.plan)}"
        )
    weak = predictor.plan.scaling == "weak"
    took = {one: one.step * steps / (one.ranks if weak else 1) for one in fit}
    soon = [one for one in fit if took[one] <= deadline]
    if not soon:
        best = min(fit, key=lambda one: took[one])
        return Choice(
            None, f"no number of ranks ends in {deadline:.0f} s; the soonest is {best.ranks}: {took[best]:.0f} s"
        )
    best = min(soon, key=lambda one: one.ranks)
    return Choice(best, f"the fewest that end in {deadline:.0f} s: {_describe_ranks(best)}, {took[best]:.0f} s")


def describe_no_epoch(plan: Plan) -> str:
    """Explains why times of epochs are missing, and how to provide them."""
    return f"are not known: {plan.why_no_epoch}. --epoch-steps NUMBER sets them"


def _describe_ranks(one: Prediction) -> str:
    return f"{one.ranks} rank{'s' * (one.ranks > 1)} on {one.hosts} host{'s' * (one.hosts > 1)}"


def list_limits(one: Prediction, alone: float) -> dict[str, float]:
    """The parts of a step in addition to its even share of the computation, in seconds."""
    return {
        "computation that no number of ranks lowers": max(one.compute - alone / one.ranks, 0.0),
        "sums that nothing hides": one.exposed,
        "small collectives": one.small,
        "waiting for the slowest rank": one.waiting,
    }


def _describe_next(predictor: Predictor, fit: Sequence[Prediction], best: Prediction) -> str:
    later = [one for one in fit if one.ranks > best.ranks]
    if not later:
        return describe_helps(predictor, best)
    after = min(later, key=lambda one: one.ranks)
    alone, _ = predictor.compute.estimate_alone(after.ranks)
    alone = alone * after.ranks if predictor.plan.scaling == "weak" else alone
    found = list_limits(after, alone)
    what = max(found, key=lambda name: found[name])
    return (
        f". With {after.ranks} a step is {best.step / after.step:.2f} times as fast, at efficiency "
        f"{after.efficiency:.2f}: {found[what] / after.step:.0%} of it is {what}"
        f"{describe_helps(predictor, after)}"
    )


def describe_helps(predictor: Predictor, one: Prediction) -> str:
    """Describes changes that make `one` faster, by falling speedup in rows a second; "" if there are none."""
    helps = sorted(list_helps(predictor, one), key=lambda help: -help[1])
    told = [f"{name} ({SIGNS[mark]}{times:.2f} times as fast)" for name, times, mark in helps if times >= WORTH]
    return f". What would help {one.ranks}, most first: {', '.join(told)}" if told else ""


def list_helps(predictor: Predictor, one: Prediction) -> list[tuple[str, float, str]]:
    """Possible changes, as (description, speedup in rows a second, mark of the prediction).

    Sizes are measured one after another. If other processes used the cores meanwhile, sizes are not comparable, and no
    advice that compares them is given.
    """
    plan, ranks, found = predictor.plan, one.ranks, []
    if one.hosts > 1:
        squeezed = predictor.predict_step(ranks, 0.5)
        found.append(("MATEX_COMPRESSION=fp16, which changes results", one.step / squeezed.step, squeezed.mark))
    if max(size.busy for size in plan.sizes) > BUSY:
        return found
    if ranks > 1 and count_measured_rows(plan) > 1:
        larger = Predictor(replace(plan, rows=2 * plan.rows, whole=None)).predict_step(ranks)
        times = larger.rows_a_second / one.rows_a_second
        found.append(("twice the rows in a batch, which changes the training", times, larger.mark))
    fewer = [
        (per_host, Predictor(replace(plan, ranks_per_host=per_host)).predict_step(ranks))
        for per_host in (plan.ranks_per_host >> halvings for halvings in range(1, plan.ranks_per_host.bit_length()))
        if per_host < ranks
    ]
    if fewer:
        per_host, best = min(fewer, key=lambda pair: pair[1].step)
        name = f"{per_host} rank{'s' * (per_host > 1)} a host, on {best.hosts} hosts in place of {one.hosts}"
        found.append((name, one.step / best.step, best.mark))
    return found


def _format_gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
