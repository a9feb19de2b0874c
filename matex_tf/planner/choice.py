"""Chooses the number of ranks for `matex plan`, and explains in a sentence why, and what would make them faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Improvement(NamedTuple):
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
    """Choose among `predictions`, one for each requested number of ranks: the fewest ranks that end within `deadline`
    seconds; without a deadline, the fastest of the efficient numbers of ranks.

    Args:
        target: the minimum efficiency of efficient ranks.
        deadline: 0: none.
        steps: the steps of the script alone for which the deadline holds; 0: the steps of an epoch are unknown.
        memory: the limit of a rank in bytes; predictions above it do not count. 0: no limit.
    """
    candidates = [prediction for prediction in predictions if not memory or prediction.memory * MARGIN <= memory]
    if not candidates:
        smallest_prediction = min(predictions, key=lambda prediction: prediction.memory)
        reason = (
            f"no number of ranks asked for fits {_format_gib(memory)}: with {smallest_prediction.ranks} a rank takes "
            f"{_format_gib(smallest_prediction.memory)}, and {MARGIN - 1:.0%} are kept free"
        )
        return Choice(None, f"{reason}{_suggest_less_memory(predictor, memory)}")
    if deadline:
        return _choose_by_deadline(predictor, candidates, deadline, steps)
    efficient_predictions = [prediction for prediction in candidates if prediction.efficiency >= target]
    if not efficient_predictions:
        best = max(candidates, key=lambda prediction: prediction.efficiency)
        reason = f"no number of ranks reaches {target:.2f}; {best.ranks} is nearest, at {best.efficiency:.2f}"
        return Choice(best, f"{reason}{describe_improvements(predictor, best)}")
    # If no step is sharded, the rows of a batch are unknown (0), and so are all rates: compare steps instead.
    best = max(efficient_predictions, key=lambda prediction: prediction.rows_a_second or 1 / prediction.step)
    reason = f"best for efficiency {target:g}: {_describe_ranks(best)}"
    single_rank = predictor.predict_step(1)
    speedup = (
        best.rows_a_second / single_rank.rows_a_second if single_rank.rows_a_second else single_rank.step / best.step
    )
    if speedup < 1:
        reason += f". The script alone, with all cores of its host, is {1 / speedup:.2f} times as fast"
    return Choice(best, f"{reason}{_describe_next(predictor, candidates, best)}")


def find_most_rows(predictor: Predictor, memory: float) -> int:
    """The largest number of rows that one rank can compute at once within `memory` bytes; 0 if one row exceeds it."""
    estimate_peak = predictor.compute.estimate_memory_of_rows
    return max(
        (rows for rows in range(1, predictor.plan.rows + 1) if estimate_peak(rows) * MARGIN <= memory), default=0
    )


def _suggest_less_memory(predictor: Predictor, memory: float) -> str:
    """The end of the sentence "no number of ranks fits": what reduces memory here, more ranks or MATEX_MICROBATCH."""
    plan, memory_option = predictor.plan, f"--memory {memory / 2**30:.2f}GiB"
    if not plan.rows:
        return ". Each rank computes the whole batch: neither more ranks nor MATEX_MICROBATCH reduce that"
    max_rows: int | None = None  # rows that fit; None: unknown, because only one number of rows was measured
    more_ranks_text = ""
    if count_measured_rows(plan) > 1:
        max_rows = find_most_rows(predictor, memory)
        if max_rows and plan.scaling == "strong":
            more_ranks_text = f". {ceil(plan.rows / max_rows)} ranks would fit, with {max_rows} rows each"
    if plan.microbatch:
        parts_text = "parts that fit" if plan.microbatch == settings.AUTO else f"parts of {plan.microbatch} rows"
        return f"{more_ranks_text}. That was measured with {parts_text} (MATEX_MICROBATCH)"
    if max_rows == 0:
        row_gib = _format_gib(predictor.compute.estimate_memory_of_rows(1))
        return f". One row takes {row_gib}, which neither more ranks nor MATEX_MICROBATCH reduce"
    return (
        f"{more_ranks_text}. If the model computes each row by itself (no BatchNormalization), parts of a slice may "
        f"fit: matex run {memory_option} chooses them (MATEX_MICROBATCH=auto). "
        f"MATEX_MICROBATCH=auto matex plan {memory_option} shows the cost"
    )


def _choose_by_deadline(predictor: Predictor, candidates: Sequence[Prediction], deadline: float, steps: int) -> Choice:
    if not steps:
        reason = f"no choice by --deadline, because the steps of an epoch {describe_no_epoch(predictor.plan)}"
        return Choice(None, reason)
    is_weak = predictor.plan.scaling == "weak"  # each rank then trains its own batches, and fewer steps suffice
    run_seconds = {
        prediction: prediction.step * steps / (prediction.ranks if is_weak else 1) for prediction in candidates
    }
    timely_predictions = [prediction for prediction in candidates if run_seconds[prediction] <= deadline]
    if not timely_predictions:
        best = min(candidates, key=lambda prediction: run_seconds[prediction])
        soonest_text = f"the soonest is {best.ranks}: {run_seconds[best]:.0f} s"
        return Choice(None, f"no number of ranks ends in {deadline:.0f} s; {soonest_text}")
    best = min(timely_predictions, key=lambda prediction: prediction.ranks)
    return Choice(best, f"the fewest that end in {deadline:.0f} s: {_describe_ranks(best)}, {run_seconds[best]:.0f} s")


def describe_no_epoch(plan: Plan) -> str:
    """Explains why times of epochs are missing, and how to provide them."""
    return f"are not known: {plan.why_no_epoch}. --epoch-steps NUMBER sets them"


def _describe_ranks(best: Prediction) -> str:
    return f"{best.ranks} rank{'s' * (best.ranks > 1)} on {best.hosts} host{'s' * (best.hosts > 1)}"


def _describe_next(predictor: Predictor, candidates: Sequence[Prediction], best: Prediction) -> str:
    """Describes the step with the next larger number of ranks, and the largest part that limits it."""
    larger_predictions = [prediction for prediction in candidates if prediction.ranks > best.ranks]
    if not larger_predictions:
        return describe_improvements(predictor, best)
    next_prediction = min(larger_predictions, key=lambda prediction: prediction.ranks)
    alone_seconds, _ = predictor.compute.estimate_alone(next_prediction.ranks)
    batches = next_prediction.ranks if predictor.plan.scaling == "weak" else 1  # of a step; weak: one for each rank
    # Only computation beyond an even part of the computation of all rows by one rank is a limit.
    even_seconds = batches * alone_seconds / next_prediction.ranks
    limit_seconds = {
        "computation that no number of ranks lowers": max(next_prediction.compute - even_seconds, 0.0),
        "sums that nothing hides": next_prediction.exposed,
        "small collectives": next_prediction.small,
        "waiting for the slowest rank": next_prediction.waiting,
    }
    largest_limit = max(limit_seconds, key=lambda name: limit_seconds[name])
    return (
        f". With {next_prediction.ranks} a step is {best.step / next_prediction.step:.2f} times as fast, at efficiency "
        f"{next_prediction.efficiency:.2f}: {limit_seconds[largest_limit] / next_prediction.step:.0%} of it is "
        f"{largest_limit}{describe_improvements(predictor, next_prediction)}"
    )


def describe_improvements(predictor: Predictor, prediction: Prediction) -> str:
    """Describes changes that make `prediction` faster, by falling speedup; "" if there are none."""
    improvements = sorted(list_improvements(predictor, prediction), key=lambda improvement: -improvement.speedup)
    suggestions = [
        f"{description} ({SIGNS[mark]}{speedup:.2f} times as fast)"
        for description, speedup, mark in improvements
        if speedup >= MIN_SPEEDUP
    ]
    return f". What would help {prediction.ranks}, most first: {', '.join(suggestions)}" if suggestions else ""


def list_improvements(predictor: Predictor, prediction: Prediction) -> Iterator[Improvement]:
    """Possible changes: compression, a larger batch, fewer ranks on a host.

    Sizes are measured one after another. If other processes used the cores meanwhile, sizes are not comparable, and no
    change is listed that needs a comparison of sizes.
    """
    plan, ranks = predictor.plan, prediction.ranks
    if prediction.hosts > 1:
        compressed_step = predictor.predict_step(ranks, squeeze=0.5)  # a step that sends half of the gradients' bytes
        speedup = prediction.step / compressed_step.step
        yield Improvement("MATEX_COMPRESSION=fp16, which changes results", speedup, compressed_step.mark)
    if max(size.busy for size in plan.sizes) > BUSY:
        return
    if ranks > 1 and count_measured_rows(plan) > 1:
        # `whole` was measured with batches of `plan.rows` rows, so it does not hold for larger batches.
        larger_batch_step = Predictor(replace(plan, rows=2 * plan.rows, whole=None)).predict_step(ranks)
        speedup = larger_batch_step.rows_a_second / prediction.rows_a_second
        yield Improvement("twice the rows in a batch, which changes the training", speedup, larger_batch_step.mark)
    # A half of the ranks on a host, a quarter, and so on.
    smaller_per_host = (plan.ranks_per_host >> halvings for halvings in range(1, plan.ranks_per_host.bit_length()))
    steps_by_per_host = {
        per_host: Predictor(replace(plan, ranks_per_host=per_host)).predict_step(ranks)
        for per_host in smaller_per_host
        if per_host < ranks
    }
    if steps_by_per_host:
        per_host, best = min(steps_by_per_host.items(), key=lambda item: item[1].step)
        description = (
            f"{per_host} rank{'s' * (per_host > 1)} a host, on {best.hosts} hosts in place of {prediction.hosts}"
        )
        yield Improvement(description, prediction.step / best.step, best.mark)


def _format_gib(byte_count: float) -> str:
    return f"{byte_count / 2**30:.2f} GiB"
