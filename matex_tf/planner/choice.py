"""Chooses the number of ranks for `matex plan`, and explains in a sentence why, and what would make them faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from matex_tf import settings
from matex_tf.memory import MARGIN
from matex_tf.planner.compute import BUSY, count_measured_rows
from matex_tf.planner.plan_file import SIGNS, Plan
from matex_tf.planner.predict import Prediction, Predictor

TARGET = 0.7
"""The default of --target, the minimum efficiency: the speedup of the ranks divided by their number."""
MIN_SPEEDUP = 1.05
"""Changes with a smaller speedup are not mentioned."""


@dataclass(frozen=True)
class Choice:
    """The chosen prediction, and the reason. `best` is None if no prediction is suitable."""

    best: Prediction | None
    reason: str


class Help(NamedTuple):
    """A change of the run that makes its steps faster."""

    description: str
    speedup: float
    """Rows a second with the change over rows a second without it."""
    mark: str
    """The basis of the prediction with the change: measured, extrapolated or assumed."""


def choose_ranks(
    predictor: Predictor, predictions: Sequence[Prediction], target: float = TARGET, deadline: float = 0.0,
    steps: int = 0, memory: float = 0.0,
) -> Choice:  # fmt: skip
    """Choose the fewest ranks that end within `deadline` seconds. Without a deadline, choose the fastest of the
    efficient numbers of ranks.

    Args:
        target: the minimum efficiency of efficient ranks.
        steps: the steps of the script alone for which the deadline holds.
        memory: the limit of a rank in bytes; predictions above it do not count. 0: no limit.
    """
    fitting = [prediction for prediction in predictions if not memory or prediction.memory * MARGIN <= memory]
    if not fitting:
        smallest = min(predictions, key=lambda prediction: prediction.memory)
        reason = (
            f"no number of ranks asked for fits {_format_gib(memory)}: with {smallest.ranks} a rank takes "
            f"{_format_gib(smallest.memory)}, and {MARGIN - 1:.0%} are kept free"
        )
        return Choice(None, f"{reason}{_suggest_less_memory(predictor, memory)}")
    if deadline:
        return _choose_by_deadline(predictor, fitting, deadline, steps)
    efficient = [prediction for prediction in fitting if prediction.efficiency >= target]
    if not efficient:
        best = max(fitting, key=lambda prediction: prediction.efficiency)
        reason = f"no number of ranks reaches {target:.2f}; {best.ranks} is nearest, at {best.efficiency:.2f}"
        return Choice(best, f"{reason}{describe_helps(predictor, best)}")
    # If no step is sharded, all rates are 0: compare steps instead.
    best = max(efficient, key=lambda prediction: prediction.rows_a_second or 1 / prediction.step)
    reason = f"best for efficiency {target:g}: {_describe_ranks(best)}"
    alone = predictor.predict_step(1)
    speedup = best.rows_a_second / alone.rows_a_second if alone.rows_a_second else alone.step / best.step
    if speedup < 1:
        reason += f". The script alone, with all cores of its host, is {1 / speedup:.2f} times as fast"
    return Choice(best, f"{reason}{_describe_next(predictor, fitting, best)}")


def find_most_rows(predictor: Predictor, memory: float) -> int:
    """The largest number of rows that one rank can compute at once within `memory` bytes; 0 if one row exceeds it."""
    estimate_peak = predictor.compute.estimate_memory_of_rows
    return max(
        (rows for rows in range(1, predictor.plan.rows + 1) if estimate_peak(rows) * MARGIN <= memory), default=0
    )


def _suggest_less_memory(predictor: Predictor, memory: float) -> str:
    """Advice for less memory, if none of the requested numbers of ranks fits."""
    plan, size = predictor.plan, f"--memory {memory / 2**30:.2f}GiB"
    if not plan.rows:
        return ". Each rank computes the whole batch: neither more ranks nor MATEX_MICROBATCH reduce that"
    is_memory_of_rows_known = count_measured_rows(plan) > 1
    rows = find_most_rows(predictor, memory) if is_memory_of_rows_known else 0
    more_ranks = ""
    if rows and plan.scaling == "strong":
        more_ranks = f". {ceil(plan.rows / rows)} ranks would fit, with {rows} rows each"
    if plan.microbatch:
        parts_text = "parts that fit" if plan.microbatch == settings.AUTO else f"parts of {plan.microbatch} rows"
        return f"{more_ranks}. That was measured with {parts_text} (MATEX_MICROBATCH)"
    if not rows and is_memory_of_rows_known:
        row_gib = _format_gib(predictor.compute.estimate_memory_of_rows(1))
        return f". One row takes {row_gib}, which neither more ranks nor MATEX_MICROBATCH reduce"
    return (
        f"{more_ranks}. If the model computes each row by itself (no BatchNormalization), parts of a slice may fit: "
        f"matex run {size} chooses them (MATEX_MICROBATCH=auto). MATEX_MICROBATCH=auto matex plan {size} shows the "
        "cost"
    )


def _choose_by_deadline(predictor: Predictor, fitting: Sequence[Prediction], deadline: float, steps: int) -> Choice:
    if not steps:
        reason = f"no choice by --deadline, because the steps of an epoch {describe_no_epoch(predictor.plan)}"
        return Choice(None, reason)
    weak = predictor.plan.scaling == "weak"  # each rank then trains its own batches, and fewer steps suffice
    run_seconds = {prediction: prediction.step * steps / (prediction.ranks if weak else 1) for prediction in fitting}
    in_time = [prediction for prediction in fitting if run_seconds[prediction] <= deadline]
    if not in_time:
        best = min(fitting, key=lambda prediction: run_seconds[prediction])
        soonest = f"the soonest is {best.ranks}: {run_seconds[best]:.0f} s"
        return Choice(None, f"no number of ranks ends in {deadline:.0f} s; {soonest}")
    best = min(in_time, key=lambda prediction: prediction.ranks)
    return Choice(best, f"the fewest that end in {deadline:.0f} s: {_describe_ranks(best)}, {run_seconds[best]:.0f} s")


def describe_no_epoch(plan: Plan) -> str:
    """Explains why times of epochs are missing, and how to provide them."""
    return f"are not known: {plan.why_no_epoch}. --epoch-steps NUMBER sets them"


def _describe_ranks(best: Prediction) -> str:
    return f"{best.ranks} rank{'s' * (best.ranks > 1)} on {best.hosts} host{'s' * (best.hosts > 1)}"


def _list_limits(prediction: Prediction, alone: float) -> dict[str, float]:
    """Seconds of the parts of a step that limit its speed.

    `alone`: seconds in which one rank computes all rows. Only computation beyond an even part of `alone` is a limit.
    """
    return {
        "computation that no number of ranks lowers": max(prediction.compute - alone / prediction.ranks, 0.0),
        "sums that nothing hides": prediction.exposed,
        "small collectives": prediction.small,
        "waiting for the slowest rank": prediction.waiting,
    }


def _describe_next(predictor: Predictor, fitting: Sequence[Prediction], best: Prediction) -> str:
    """Describes the step with the next larger number of ranks, and the largest part that limits it."""
    larger = [prediction for prediction in fitting if prediction.ranks > best.ranks]
    if not larger:
        return describe_helps(predictor, best)
    following = min(larger, key=lambda prediction: prediction.ranks)
    alone, _ = predictor.compute.estimate_alone(following.ranks)
    batches = following.ranks if predictor.plan.scaling == "weak" else 1  # of a step; weak: one for each rank
    limits = _list_limits(following, batches * alone)
    largest = max(limits, key=lambda name: limits[name])
    return (
        f". With {following.ranks} a step is {best.step / following.step:.2f} times as fast, at efficiency "
        f"{following.efficiency:.2f}: {limits[largest] / following.step:.0%} of it is {largest}"
        f"{describe_helps(predictor, following)}"
    )


def describe_helps(predictor: Predictor, prediction: Prediction) -> str:
    """Describes changes that make `prediction` faster, by falling speedup; "" if there are none."""
    helps = sorted(list_helps(predictor, prediction), key=lambda help: -help.speedup)
    suggestions = [
        f"{help.description} ({SIGNS[help.mark]}{help.speedup:.2f} times as fast)"
        for help in helps
        if help.speedup >= MIN_SPEEDUP
    ]
    return f". What would help {prediction.ranks}, most first: {', '.join(suggestions)}" if suggestions else ""


def list_helps(predictor: Predictor, prediction: Prediction) -> list[Help]:
    """Possible changes: compression, a larger batch, fewer ranks on a host.

    Sizes are measured one after another. If other processes used the cores meanwhile, sizes are not comparable, and no
    change is listed that needs a comparison of sizes.
    """
    plan, ranks, helps = predictor.plan, prediction.ranks, []
    if prediction.hosts > 1:
        half_bytes = predictor.predict_step(ranks, squeeze=0.5)  # a step that sends half of the gradients' bytes
        speedup = prediction.step / half_bytes.step
        helps.append(Help("MATEX_COMPRESSION=fp16, which changes results", speedup, half_bytes.mark))
    if max(size.busy for size in plan.sizes) > BUSY:
        return helps
    if ranks > 1 and count_measured_rows(plan) > 1:
        # `whole` has measured steps with whole batches of `plan.rows` rows, so it does not hold for larger batches.
        larger = Predictor(replace(plan, rows=2 * plan.rows, whole=None)).predict_step(ranks)
        speedup = larger.rows_a_second / prediction.rows_a_second
        helps.append(Help("twice the rows in a batch, which changes the training", speedup, larger.mark))
    # A half of the ranks on a host, a quarter, and so on.
    halved = (plan.ranks_per_host >> halvings for halvings in range(1, plan.ranks_per_host.bit_length()))
    spread = {
        per_host: Predictor(replace(plan, ranks_per_host=per_host)).predict_step(ranks)
        for per_host in halved
        if per_host < ranks
    }
    if spread:
        per_host, best = min(spread.items(), key=lambda item: item[1].step)
        name = f"{per_host} rank{'s' * (per_host > 1)} a host, on {best.hosts} hosts in place of {prediction.hosts}"
        helps.append(Help(name, prediction.step / best.step, best.mark))
    return helps


def _format_gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
