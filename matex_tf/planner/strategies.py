"""Predicts the step and the memory of each strategy (docs/strategies.md), and recommends one, for `matex plan`.

The price of a strategy is its predicted step and memory. With `allreduce` every rank updates all weights. The step of
another strategy differs from it in one part:

    sharded, servers:S   the update: each owner (all ranks, or S of them) updates one piece of the weights, and has the
                         optimizer's variables (slots) for it. In `servers:S:only` the owners do not train.
    local:H              the sums of gradients: ranks average their weights every H steps instead
    async                the computation: each rank trains whole batches by itself, on weights that a host shares
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from matex_tf import settings
from matex_tf.costs import collectives, pieces
from matex_tf.memory import MARGIN
from matex_tf.planner.plan_file import ASSUMED, EXTRAPOLATED, MEASURED, PlanFileError
from matex_tf.planner.predict import MPI, SHARED_MEMORY, Prediction, Predictor, find_weakest

SHOWN_PERIOD = 8
"""The period of `local` that is shown."""
MAX_STEP_RATIO = 0.95
"""Another strategy is recommended if its step takes at most this fraction of the step of allreduce, or if allreduce
does not fit the memory.
"""


@dataclass(frozen=True)
class Price:
    """A strategy's step and memory."""

    strategy: str
    step: Prediction
    slots: float
    """Bytes of the optimizers' variables, on the rank with the most."""
    memory: float
    """Peak bytes of that rank."""

    @property
    def is_statistical(self) -> bool:
        """Whether the strategy (`local:H` or `async`) gives other results than the script alone."""
        return settings.is_statistical(self.strategy)

    @property
    def memory_mark(self) -> str:
        """The mark of `memory`: the optimizers' variables of other strategies than allreduce were not measured."""
        return find_weakest(self.step.compute_mark, MEASURED if self.strategy == "allreduce" else EXTRAPOLATED)


@dataclass(frozen=True)
class Refusal:
    """A strategy that is impossible for the script, and the reason."""

    strategy: str
    why: str


def estimate_strategies(predictor: Predictor, ranks: int, requested: str = "") -> tuple[list[Price], list[Refusal]]:
    """(prices of the possible strategies on `ranks` ranks, allreduce first; the impossible ones).

    Args:
        requested: a strategy of the user's settings, whose number of owners, or period, is also estimated; "": none.
    """
    update = predictor.plan.update
    allreduce = predictor.predict_step(ranks)
    all_slots = float(update.whole + update.slots)
    prices = [Price("allreduce", allreduce, all_slots, allreduce.memory)]
    refusals: list[Refusal] = []
    if ranks == 1:
        return prices, refusals
    if update.weights:
        if 0 < settings.count_only_serving(requested) < ranks:
            prices.append(_estimate_only_serving(predictor, ranks, requested))
        # Each rank owns a piece (`sharded`), one rank of each host, one rank of all, or the requested number of ranks.
        owner_counts = {ranks, allreduce.hosts, 1, min(_read_number(requested, "servers", ranks), ranks)}
        for owners in sorted(owner_counts, reverse=True):
            slots = update.whole + update.slots / owners  # on an owner; `whole` cannot be in pieces
            step = predict_pieces(predictor, allreduce, owners)
            prices.append(Price(_name_pieces(owners, ranks), step, slots, allreduce.memory - all_slots + slots))
    else:
        refusals.append(Refusal("sharded, servers:S", update.why_not or "no optimizer of Keras updates weights"))
    why_not_async = update.not_async
    if allreduce.hosts > 1:
        why_not_async = why_not_async or "the ranks are on several hosts, which share no memory"
    elif predictor.plan.scaling == "weak":
        why_not_async = why_not_async or "with weak scaling each rank already has its own batch"
    if why_not_async:
        refusals.append(Refusal("async", why_not_async))
    else:
        step = predict_async(predictor, ranks)
        whole_batch = predictor.plan.whole  # its measurement
        prices.append(Price("async", step, all_slots, whole_batch.peak_bytes if whole_batch else step.memory))
    if update.not_local:
        refusals.append(Refusal("local:H", update.not_local))
    else:
        period = _read_number(requested, "local", SHOWN_PERIOD)
        step = predict_local(predictor, allreduce, period)
        prices.append(Price(f"local:{period}", step, all_slots, step.memory))
    return prices, refusals


def _estimate_only_serving(predictor: Predictor, ranks: int, strategy: str) -> Price:
    """The price of `servers:S:only`: the last S ranks own the pieces. They also run the script, and compute one row
    that counts for nothing instead of a slice.
    """
    plan, update, owners = predictor.plan, predictor.plan.update, settings.count_only_serving(strategy)
    training_ranks = ranks - owners
    # Each training rank has the slice that it would have of a larger batch on all ranks. So predict this larger batch.
    larger_plan = plan if plan.scaling == "weak" else replace(plan, rows=ceil(plan.rows * ranks / training_ranks))
    larger_predictor = Predictor(larger_plan)
    allreduce = larger_predictor.predict_step(ranks)
    step = predict_pieces(larger_predictor, allreduce, owners)
    slots = update.whole + update.slots / owners
    # An owner has its share of the slots that can be in pieces; a training rank has none of these slots.
    owner_bytes = larger_predictor.compute.estimate_memory_of_rows(1) - update.slots + update.slots / owners
    batches = training_ranks if plan.scaling == "weak" else 1
    step = replace(
        step,
        rows_a_second=plan.rows * batches / step.step,  # this and the efficiency: of the real batch
        efficiency=batches * predictor.compute.estimate_alone(ranks)[0] / (ranks * step.step),
    )
    return Price(strategy, step, slots, max(allreduce.memory - update.slots, owner_bytes))


def find_price(predictor: Predictor, ranks: int, strategy: str) -> Price:
    """The price of a strategy, given as in the setting, on `ranks` ranks; for `auto`, of the fastest one.

    Raises:
        PlanFileError: the strategy is impossible for the script, or unknown.
    """
    price_list, refusals = estimate_strategies(predictor, ranks, strategy)
    prices_by_name = {price.strategy: price for price in price_list}
    if strategy == "auto":  # a run tries these two, and takes the faster one
        exact_prices = [prices_by_name[name] for name in ("allreduce", "sharded") if name in prices_by_name]
        return min(exact_prices, key=lambda price: price.step.step)
    family = settings.get_strategy_name(strategy)
    name = strategy
    if family == "async":
        name = "async"
    elif family == "servers" and not settings.count_only_serving(strategy):
        name = _name_pieces(_read_number(strategy, "servers", ranks), ranks)
    if name not in prices_by_name:  # a refusal may name several strategies
        reasons = [refusal.why for refusal in refusals if family in refusal.strategy] or [f"there are {ranks} ranks"]
        raise PlanFileError(f"{strategy}: {reasons[0]}")
    return prices_by_name[name]


def _name_pieces(owners: int, ranks: int) -> str:
    return "sharded" if owners == ranks else f"servers:{owners}"


def _read_number(strategy: str, name: str, default: int) -> int:
    """The number in a `strategy` with this name, such as 4 in servers:4; for other strategies `default`."""
    if settings.get_strategy_name(strategy) != name:
        return default
    return settings.get_strategy_number(strategy, default)


def predict_pieces(predictor: Predictor, allreduce: Prediction, owners: int) -> Prediction:
    """The step in which each of `owners` ranks updates a piece of the weights, from the step of `allreduce`."""
    links, ranks, update = predictor.links, allreduce.ranks, predictor.plan.update
    update_seconds, compute_mark = predictor.compute.estimate_update(ranks), allreduce.compute_mark
    if not update_seconds:
        compute_mark = ASSUMED
        update_seconds = pieces.estimate_update(1, update.weights, update.slots, collectives.MEMORY)
    update_seconds = min(update_seconds, allreduce.compute)  # both are estimated, each by itself
    estimate_sums = _estimate_pieces_on_one_host if ranks <= links.per_host else _estimate_pieces_between_hosts
    compute = allreduce.compute - update_seconds * (1 - 1 / owners)  # an owner updates 1/owners of the weights
    exposed = estimate_sums(predictor, ranks, owners) + links.estimate_small(ranks, 0)  # the rendezvous of publishing
    marks = compute_mark, find_weakest(allreduce.link_mark, EXTRAPOLATED)
    return predictor.make_prediction(ranks, compute, exposed, allreduce.algorithm, allreduce.overlapped, marks)


def _estimate_pieces_on_one_host(predictor: Predictor, ranks: int, owners: int) -> float:
    """Seconds of sums of gradients and of publishing new weights, which nothing hides."""
    links, update = predictor.links, predictor.plan.update

    def estimate_chunk(chunk: float) -> float:
        return links.scale_measured(chunk, functools.partial(pieces.estimate_gradient_pieces, ranks, owners, chunk))

    seconds = links.estimate_small(ranks, 0)  # the rendezvous of the sums
    # Gradients that are used elsewhere, too, are summed completely.
    if unsharded_bytes := max(predictor.plan.gradient_bytes - update.gradients, 0):
        seconds += links.estimate_sum(ranks, SHARED_MEMORY, unsharded_bytes)
    if update.gradients:
        seconds += collectives.estimate_chunks(estimate_chunk, collectives.CHUNK_WITHIN_HOST, update.gradients)
    return seconds + links.scale_measured(
        update.weights, functools.partial(pieces.estimate_publishing_in_memory, ranks, owners, update.weights)
    )


def _estimate_pieces_between_hosts(predictor: Predictor, ranks: int, owners: int) -> float:
    """Seconds of sums of gradients and of publishing new weights, as far as computation does not hide them."""
    plan, update, links = predictor.plan, predictor.plan.update, predictor.links
    # A sum goes around the ring twice. Gradients of pieces go once, in messages ranks / owners times as large. So they
    # send ranks / (2 * owners) times the bytes of a sum: half of them if all ranks are owners.
    piece_share = min(update.gradients / plan.gradient_bytes, 1.0)  # not every step has the updates of all optimizers
    sum_seconds = predictor.predict_step(ranks, 1 - piece_share + piece_share * ranks / (2 * owners)).exposed
    estimate_half = functools.partial(pieces.estimate_pieces_by_messages, ranks, links.per_host, owners)
    max_bytes = min(collectives.CHUNK, ranks * pieces.WEIGHT_BYTES) if plan.overlaps else collectives.CHUNK
    publishing_seconds = estimate_half(update.weights, links.network, links.memory, max_bytes)
    if not plan.overlaps:
        return sum_seconds + publishing_seconds
    # Two times hide the arrival of new weights: the next forward pass, which ends when the first gradient is ready; and
    # the part of the backward pass in which no gradients are sent, because gradients have priority.
    ready = predictor.compute.estimate_ready_times(ranks)
    forward_seconds, backward_seconds = min(ready), max(ready) - min(ready)
    spare_backward_seconds = max(backward_seconds - estimate_half(update.gradients, links.network, links.memory), 0.0)
    return sum_seconds + max(publishing_seconds - forward_seconds - spare_backward_seconds, 0.0)


def predict_async(predictor: Predictor, ranks: int) -> Prediction:
    """Ranks that train whole batches asynchronously: the time from batch to batch, without waiting."""
    rows, whole_batch, compute = predictor.plan.rows, predictor.plan.whole, predictor.compute
    seconds, mark = compute.estimate_whole_batch(ranks), EXTRAPOLATED
    if whole_batch is not None:  # it was measured
        seconds = whole_batch.typical
        mark = MEASURED if whole_batch.copies == compute.count_copies(ranks) else EXTRAPOLATED
    marks = mark, MEASURED  # of the links: nothing is sent
    # In `seconds`, each rank trains a batch. So a batch of the run takes seconds / ranks.
    return predictor.make_prediction(
        ranks, compute=seconds / ranks, exposed=0.0, algorithm="none", overlapped=False, marks=marks, rows=rows,
        small=0.0, waits_for_slowest=False,
    )  # fmt: skip


def predict_local(predictor: Predictor, allreduce: Prediction, period: int) -> Prediction:
    """Ranks that average their weights every `period` steps. In between, their steps have no collectives."""
    # An average is a collective of its own, unlike the sums of gradients.
    average_seconds = predictor.links.estimate_small(allreduce.ranks, predictor.plan.gradient_bytes)
    return predictor.make_prediction(
        allreduce.ranks, allreduce.compute, average_seconds / period, algorithm=MPI, overlapped=False, small=0.0
    )


def choose_strategy(prices: Sequence[Price], memory: float = 0.0) -> tuple[str, str]:
    """The best strategy with the result of the script alone, and the reason; ("", reason) if none fits.

    Args:
        prices: allreduce first.
        memory: memory limit of a rank in bytes; 0: no limit.
    """
    allreduce, *_ = prices
    fitting_prices = [price for price in prices if not memory or price.memory * MARGIN <= memory]
    exact_prices = [price for price in fitting_prices if not price.is_statistical]
    if not exact_prices:
        smallest_price = min((price for price in prices if not price.is_statistical), key=lambda price: price.memory)
        return "", (
            f"no strategy fits {memory / 2**30:.2f} GiB: with {smallest_price.strategy} a rank takes "
            f"{smallest_price.memory / 2**30:.2f} GiB, and {MARGIN - 1:.0%} are kept free"
        )
    best = min(exact_prices, key=lambda price: price.step.step)
    if allreduce in exact_prices and best.step.step > MAX_STEP_RATIO * allreduce.step.step:
        best = allreduce
    reason = f"{best.strategy}: {_describe_reason(allreduce, best, exact_prices, memory)}"
    faster_prices = [
        price for price in fitting_prices if price.is_statistical and price.step.step <= MAX_STEP_RATIO * best.step.step
    ]
    if faster_prices:
        faster_prices.sort(key=lambda price: price.step.step)
        shares = ", ".join(
            f"{price.strategy} ({price.step.step / best.step.step:.2f} of that step)" for price in faster_prices
        )
        reason += f". Faster, but statistical: {shares}. Compare accuracy at equal epochs first"
    return best.strategy, reason


def _describe_reason(allreduce: Price, best: Price, exact_prices: Sequence[Price], memory: float) -> str:
    if best is not allreduce:
        reason = f"the result of allreduce in {best.step.step / allreduce.step.step:.2f} of its step"
        reason += f", {_describe_slots(best, allreduce)}" if best.slots < allreduce.slots else ""
        if allreduce not in exact_prices:
            reason += (
                f"; a rank takes {best.memory / 2**30:.2f} GiB, and with allreduce {allreduce.memory / 2**30:.2f} GiB, "
            )
            reason += f"which does not fit {memory / 2**30:.2f} GiB"
        return reason
    if len(exact_prices) == 1:
        return "no other strategy with the result of the script alone is available"
    other_price = min((price for price in exact_prices if price is not allreduce), key=lambda price: price.step.step)
    ratio = other_price.step.step / allreduce.step.step
    reason = f"the best other with the same result, {other_price.strategy}, takes {ratio:.2f} of its step"
    if other_price.slots < allreduce.slots:
        return f"{reason}. It is meant for little memory, {_describe_slots(other_price, allreduce)}"
    return f"{reason}, and the optimizer has no variables to shard"


def _describe_slots(price: Price, allreduce: Price) -> str:
    size_text, usual_size_text = map(settings.format_bytes, (price.slots, allreduce.slots))
    return f"with {size_text} of the optimizer's variables on a rank in place of {usual_size_text}"
