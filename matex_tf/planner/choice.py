"""Which number of ranks, and the reason in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf.memory import MARGIN
from matex_tf.planner.plan_file import Plan
from matex_tf.planner.predict import Prediction, Predictor

TARGET = 0.7


@dataclass(frozen=True)
class Choice:
    """The best of the predictions, or None where none will do; and why."""

    best: Prediction | None
    reason: str


def choose_ranks(
    predictor: Predictor, predictions: Sequence[Prediction], target: float = TARGET, deadline: float = 0.0,
    steps: int = 0, memory: float = 0.0,
) -> Choice:  # fmt: skip
    """The fewest ranks that do `steps` steps of one rank's run within `deadline` seconds, or, without one, the most
    whose efficiency is `target` or more; of those whose ranks take no more than `memory` bytes each.
    """
    fit = [one for one in predictions if not memory or one.memory * MARGIN <= memory]
    if not fit:
        least = min(predictions, key=lambda one: one.memory)
        return Choice(
            None,
            f"no number of ranks asked for fits {_format_gib(memory)}: with {least.ranks} a rank takes "
            f"{_format_gib(least.memory)}, "
            f"and {MARGIN - 1:.0%} are kept free{_suggest_microbatch(predictor, memory)}",
        )
    if deadline:
        return _choose_by_deadline(predictor, fit, deadline, steps)
    good = [one for one in fit if one.efficiency >= target]
    if not good:
        best = max(fit, key=lambda one: one.efficiency)
        return Choice(
            best, f"no number of ranks reaches {target:.2f}; {best.ranks} is nearest, at {best.efficiency:.2f}"
        )
    best = max(good, key=lambda one: one.rows_a_second or 1 / one.step)
    alone = predictor.predict_step(1)
    times = best.rows_a_second / alone.rows_a_second if alone.rows_a_second else alone.step / best.step
    slower = f". The script alone, with all cores of its host, is {1 / times:.2f} times as fast" if times < 1 else ""
    return Choice(
        best, f"best for efficiency {target:g}: {_describe_ranks(best)}{slower}{_describe_next(predictor, fit, best)}"
    )


def find_most_rows(predictor: Predictor, memory: float) -> int:
    """The most rows of a step that one rank can compute at once in so many bytes; 0 where not even one fits."""
    every = range(1, predictor.plan.rows + 1)
    return max(
        (rows for rows in every if predictor.compute.estimate_memory_of_rows(rows) * MARGIN <= memory), default=0
    )


def _suggest_microbatch(predictor: Predictor, memory: float) -> str:
    rows = find_most_rows(predictor, memory)
    return (
        f". MATEX_MICROBATCH={rows} computes slices in parts that fit; plan again with it for its cost" if rows else ""
    )


def _choose_by_deadline(predictor: Predictor, fit: Sequence[Prediction], deadline: float, steps: int) -> Choice:
    if not steps:
        return Choice(None, f"no choice by --deadline, since the steps of an epoch {describe_no_epoch(predictor.plan)}")
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
    """Why times of epochs are missing, and what to do."""
    return f"are not known: {plan.why_no_epoch}. --epoch-steps NUMBER tells them"


def _describe_ranks(one: Prediction) -> str:
    return f"{one.ranks} rank{'s' * (one.ranks > 1)} on {one.hosts} host{'s' * (one.hosts > 1)}"


def list_limits(one: Prediction, alone: float) -> dict[str, float]:
    """What a step consists of, beside its even share of the computation; seconds."""
    return {
        "computation that no number of ranks lowers": max(one.compute - alone / one.ranks, 0.0),
        "sums that nothing hides": one.exposed,
        "small collectives": one.small,
        "waiting for the slowest rank": one.waiting,
    }


def _describe_next(predictor: Predictor, fit: Sequence[Prediction], best: Prediction) -> str:
    later = [one for one in fit if one.ranks > best.ranks]
    if not later:
        return ""
    after = min(later, key=lambda one: one.ranks)
    alone, _ = predictor.compute.estimate_alone(after.ranks)
    alone = alone * after.ranks if predictor.plan.scaling == "weak" else alone
    found = list_limits(after, alone)
    what = max(found, key=lambda name: found[name])
    text = (
        f". {after.ranks} would be {best.step / after.step:.2f} times as fast a step at efficiency "
        f"{after.efficiency:.2f}: {found[what] / after.step:.0%} of it are {what}"
    )
    if what == "sums that nothing hides" and after.hosts > 1:
        squeezed = predictor.predict_step(after.ranks, 0.5).efficiency
        text += f" (MATEX_COMPRESSION=fp16, which changes results, would give {squeezed:.2f})"
    elif what.startswith("computation"):
        text += " (more rows in a batch would help, and change the training)"
    return text


def _format_gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
