"""Predicts the step and the memory of each strategy (docs/strategies.md), and recommends one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from matex_tf import settings
from matex_tf.costs import collectives, pieces
from matex_tf.costs.collectives import AnyLink
from matex_tf.memory import MARGIN
from matex_tf.planner.plan_file import ASSUMED, EXTRAPOLATED, MEASURED, PlanFileError, Update
from matex_tf.planner.predict import Links, Prediction, Predictor, estimate_chunks, find_weakest

PERIOD = 8
"""The period of `local` that is shown."""
WORTH = 0.95
"""A strategy other than allreduce is recommended if its step takes at most this fraction, or for memory."""


@dataclass(frozen=True)
class Price:
    """A strategy's step, the optimizers' variables of the rank that has most, and its total memory; both in bytes."""

    strategy: str
    step: Prediction
    slots: float
    memory: float

    @property
    def is_statistical(self) -> bool:
        return settings.is_statistical(self.strategy)

    @property
    def memory_mark(self) -> str:
        """With other strategies the peak is measured except for the optimizers' variables."""
        return find_weakest(self.step.compute_mark, MEASURED if self.strategy == "allreduce" else EXTRAPOLATED)


@dataclass(frozen=True)
class Refusal:
    """A strategy that is impossible for the script, and the reason."""

    strategy: str
    why: str


def estimate_strategies(predictor: Predictor, ranks: int, asked: str = "") -> tuple[list[Price], list[Refusal]]:
    """The strategies that are possible on `ranks` ranks, allreduce first, and the impossible ones.

    Args:
        asked: a strategy whose number of owners or steps is included.
    """
    update = predictor.plan.update or Update(why_not="this plan is of an older version, which did not measure it")
    usual = predictor.predict_step(ranks)
    all_slots = float(update.whole + update.slots)
    made = [Price("allreduce", usual, all_slots, usual.memory)]
    refused: list[Refusal] = []
    if ranks == 1:
        return made, refused
    if update.weights:
        if 0 < settings.count_only_serving(asked) < ranks:
            made.append(_estimate_only_serving(predictor, update, ranks, asked))
        for owners in list_numbers_of_owners(ranks, usual.hosts, _read_number(asked, "servers", ranks)):
            slots = update.whole + update.slots / owners
            step = predict_pieces(predictor, usual, update, owners)
            made.append(Price(_name_pieces(owners, ranks), step, slots, usual.memory - all_slots + slots))
    else:
        refused.append(Refusal("sharded, servers:S", update.why_not or "no optimizer of Keras updates weights"))
    if why := update.not_async or _find_async_obstacle(predictor, usual):
        refused.append(Refusal("async", why))
    else:
        step = predict_async(predictor, ranks)
        whole = predictor.plan.whole
        made.append(Price("async", step, all_slots, whole.peak_bytes if whole else step.memory))
    if update.not_local:
        refused.append(Refusal("local:H", update.not_local))
    else:
        period = _read_number(asked, "local", PERIOD)
        step = predict_local(predictor, usual, period)
        made.append(Price(f"local:{period}", step, all_slots, step.memory))
    return made, refused


def _estimate_only_serving(predictor: Predictor, update: Update, ranks: int, strategy: str) -> Price:
    """Ranks of which the last own the pieces, and compute one row of each batch instead of a slice."""
    plan, owners = predictor.plan, settings.count_only_serving(strategy)
    training = ranks - owners
    # A slice of the training ranks equals a slice of all ranks of a larger batch.
    larger = plan if plan.scaling == "weak" else replace(plan, rows=ceil(plan.rows * ranks / training))
    made = Predictor(larger)
    usual = made.predict_step(ranks)
    step = predict_pieces(made, usual, update, owners)
    slots = update.whole + update.slots / owners
    serves = made.compute.estimate_memory_of_rows(1) - update.slots + update.slots / owners
    batches = training if plan.scaling == "weak" else 1
    step = replace(
        step,
        rows_a_second=plan.rows * batches / step.step,
        efficiency=batches * predictor.compute.estimate_alone(ranks)[0] / (ranks * step.step),
    )
    return Price(strategy, step, slots, max(usual.memory - update.slots, serves))


def find_price(predictor: Predictor, ranks: int, strategy: str) -> Price:
    """The price of a strategy, given as in the setting, on `ranks` ranks; for `auto`, of the fastest one.

    Raises:
        PlanFileError: the strategy is impossible for the script, or unknown.
    """
    made, refused = estimate_strategies(predictor, ranks, strategy)
    if strategy == "auto":
        return min((one for one in made if one.strategy in ("allreduce", "sharded")), key=lambda one: one.step.step)
    name = settings.get_strategy_name(strategy)
    pieces_of = _name_pieces(_read_number(strategy, "servers", ranks), ranks)
    wanted = {"servers": pieces_of, "async": "async"}.get(name, strategy)
    if settings.count_only_serving(strategy):
        wanted = strategy
    found = next((one for one in made if one.strategy == wanted), None)
    if found is None:
        why = [one.why for one in refused if name in one.strategy] or [f"there are {ranks} ranks"]
        raise PlanFileError(f"{strategy}: {why[0]}")
    return found


def _name_pieces(owners: int, ranks: int) -> str:
    return "sharded" if owners == ranks else f"servers:{owners}"


def _read_number(strategy: str, name: str, otherwise: int) -> int:
    """The number in `strategy` if it has this name, else `otherwise`."""
    found = settings.get_strategy_number(strategy, otherwise)
    return found if settings.get_strategy_name(strategy) == name else otherwise


def list_numbers_of_owners(ranks: int, hosts: int, asked: int) -> list[int]:
    """Candidate numbers of owners: all ranks, one on each host, one, and `asked`, up to the number of ranks."""
    return sorted({ranks, hosts, 1, min(asked, ranks)}, reverse=True)


def predict_pieces(predictor: Predictor, usual: Prediction, update: Update, owners: int) -> Prediction:
    """The step in which each of `owners` ranks updates a piece of the weights. `usual`: the step of allreduce."""
    links, ranks = predictor.links, usual.ranks
    took, mark = predictor.compute.estimate_update(ranks), usual.compute_mark
    if not took:
        mark = ASSUMED
        took = min(pieces.estimate_update(1, update.weights, update.slots, collectives.MEMORY), usual.compute)
    exposed = usual.exposed
    if ranks <= links.per_host:
        # Gradients that are used elsewhere, too, are summed completely.
        whole = max(predictor.plan.gradient_bytes - update.gradients, 0)
        exposed = links.estimate_small(ranks, 0) + sum(
            _estimate_within_host(links, size, functools.partial(of, *how))
            for size, of, how in (
                (whole, collectives.estimate_shared_memory, (ranks,)),
                (update.gradients, pieces.estimate_gradient_pieces, (ranks, owners)),
            )
            if size
        )
        published = links.scale_measured(
            update.weights, functools.partial(pieces.estimate_publishing_in_memory, ranks, owners, update.weights)
        )
    else:
        # A ring goes around twice. Gradients go around once, with more or less traffic for fewer or more owners.
        share = update.gradients / predictor.plan.gradient_bytes
        exposed = predictor.predict_step(ranks, 1 - share + share * ranks / (2 * owners)).exposed
        half = functools.partial(pieces.estimate_pieces_by_messages, ranks, links.per_host, owners)
        most = min(collectives.CHUNK, ranks * pieces.SHORT) if predictor.plan.overlaps else collectives.CHUNK
        published = half(update.weights, links.network, links.memory, most)
        if predictor.plan.overlaps:
            # New weights arrive during the next forward pass, which ends when the first gradient is ready, and during
            # the remaining time of the backward pass after gradients, which have priority.
            ready = predictor.compute.estimate_ready_times(ranks)
            backward = max(ready) - min(ready)
            beside = max(backward - half(update.gradients, links.network, links.memory), 0.0)
            published = max(published - min(ready) - beside, 0.0)
    exposed += links.estimate_small(ranks, 0) + published
    marks = mark, find_weakest(usual.link_mark, EXTRAPOLATED)
    return predictor.make_prediction(
        ranks, usual.compute - took * (1 - 1 / owners), exposed, usual.algorithm, usual.overlapped, marks
    )


def _estimate_within_host(links: Links, size: float, estimate: Callable[[float, AnyLink], float]) -> float:
    """Seconds of an operation that takes `estimate(bytes, memory)` within a host, in chunks."""
    return estimate_chunks(
        lambda part: links.scale_measured(part, functools.partial(estimate, part)),
        collectives.CHUNK_WITHIN_HOST, 0.0, size,
    )  # fmt: skip


def _find_async_obstacle(predictor: Predictor, usual: Prediction) -> str:
    if usual.hosts > 1:
        return "the ranks are on several hosts, which share no memory"
    if predictor.plan.scaling == "weak":
        return "with weak scaling each rank already has its own batch"
    return ""


def predict_async(predictor: Predictor, ranks: int) -> Prediction:
    """Ranks that train whole batches asynchronously: the time from batch to batch, without waiting."""
    rows, whole, compute = predictor.plan.rows, predictor.plan.whole, predictor.compute
    took, mark = compute.estimate_whole_batch(ranks), EXTRAPOLATED
    if whole is not None:
        took = whole.typical
        mark = MEASURED if whole.copies == compute.count_copies(ranks) else EXTRAPOLATED
    marks = mark, MEASURED  # nothing is sent
    return predictor.make_prediction(ranks, took / ranks, 0.0, "none", False, marks, rows, small=0.0, waits=False)


def predict_local(predictor: Predictor, usual: Prediction, period: int) -> Prediction:
    """Ranks that average their weights every `period` steps, instead of reducing gradients in each step."""
    links, ranks, size = predictor.links, usual.ranks, float(predictor.plan.gradient_bytes)
    chunk = collectives.CHUNK if ranks > links.per_host else collectives.CHUNK_WITHIN_HOST
    meeting = links.estimate_small(ranks, 0)
    took = {
        name: meeting + estimate_chunks(sum_of, chunk, 0.0, size)
        for name, sum_of in links.list_algorithms(ranks).items()
    }
    best = min(took, key=lambda name: took[name])
    return predictor.make_prediction(ranks, usual.compute, took[best] / period, best, False)


def choose_strategy(prices: Sequence[Price], memory: float = 0.0) -> tuple[str, str]:
    """The best strategy among those with the result of the script alone, and the reason; ("", reason) if none fits.

    Args:
        prices: allreduce first.
        memory: memory limit of a rank in bytes; 0: no limit.
    """
    usual, *_ = prices
    fit = [one for one in prices if not memory or one.memory * MARGIN <= memory]
    exact = [one for one in fit if not one.is_statistical]
    if not exact:
        least = min((one for one in prices if not one.is_statistical), key=lambda one: one.memory)
        return "", (
            f"no strategy fits {memory / 2**30:.2f} GiB: with {least.strategy} a rank takes "
            f"{least.memory / 2**30:.2f} GiB, and {MARGIN - 1:.0%} are kept free"
        )
    best = min(exact, key=lambda one: one.step.step)
    if usual in exact and best.step.step > WORTH * usual.step.step:
        best = usual
    text = f"{best.strategy}: {_describe_reason(usual, best, exact, memory)}"
    faster = [one for one in fit if one.is_statistical and one.step.step <= WORTH * best.step.step]
    if faster:
        faster.sort(key=lambda one: one.step.step)
        shares = ", ".join(f"{one.strategy} ({one.step.step / best.step.step:.2f} of that step)" for one in faster)
        text += f". Faster, but statistical: {shares}. Compare accuracy at equal epochs first"
    return best.strategy, text


def _describe_reason(usual: Price, best: Price, exact: Sequence[Price], memory: float) -> str:
    if best is not usual:
        text = f"the result of allreduce in {best.step.step / usual.step.step:.2f} of its step"
        text += f", {_describe_slots(best, usual)}" if best.slots < usual.slots else ""
        if usual not in exact:
            text += f"; a rank takes {best.memory / 2**30:.2f} GiB, and with allreduce {usual.memory / 2**30:.2f} GiB, "
            text += f"which does not fit {memory / 2**30:.2f} GiB"
        return text
    if len(exact) == 1:
        return "no other strategy with the result of the script alone is available"
    other = min((one for one in exact if one is not usual), key=lambda one: one.step.step)
    share = other.step.step / usual.step.step
    text = f"the best other with the same result, {other.strategy}, takes {share:.2f} of its step"
    if other.slots < usual.slots:
        return f"{text}. It is meant for little memory, {_describe_slots(other, usual)}"
    return f"{text}, and the optimizer has no variables to shard"


def _describe_slots(one: Price, usual: Price) -> str:
    size, usual_size = map(settings.format_bytes, (one.slots, usual.slots))
    return f"with {size} of the optimizer's variables on a rank in place of {usual_size}"
