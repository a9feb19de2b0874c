"""Simulates the steps of a plan on any number of ranks, with what-if changes, for `matex simulate`.

`simulate_plan` makes the program of a rank, which is its step without communication, and the prices of its transfers,
in seconds. It simulates ranks (`simulator.ranks`) or workers of parameter servers (`simulator.servers`), and summarizes
them in an `Outcome`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf import settings
from matex_tf.planner import buckets, plan_file, predict
from matex_tf.planner.papers import ibatch
from matex_tf.planner.simulator import servers
from matex_tf.planner.simulator.program import Program, make_program, scale_program
from matex_tf.planner.simulator.ranks import Disturbance, Note, Prices, Result, simulate_ranks
from matex_tf.planner.simulator.what_if import ImpossibleRequest, WhatIf
from matex_tf.planner.strategies import find_price

FORWARD = 1 / 3
"""The forward pass as a fraction of a step's computation, for parameter servers: assumed."""
SERVER_STEPS = 60
"""Simulated steps of each worker with parameter servers."""


@dataclass(frozen=True)
class Outcome(Result):
    """The simulated steps, of ranks that sum or of workers with servers, for the table of `matex simulate`."""

    rows: int
    """Of all ranks in a step."""
    assumptions: tuple[str, ...]
    """Values that were not measured."""
    note: str = ""
    """Names requested changes without effect; "" if there are none."""


@dataclass(frozen=True)
class _Step:
    """A step to simulate: the computation, slowed down by its transfers, and the transfers with their prices."""

    program: Program
    prices: Prices
    boundaries: buckets.Plan | None = None
    """Buckets that overlap with the computation; None: one transfer after the computation."""
    slowdown: float = 1.0
    """The factor of the computation in `program`, because overlapped transfers use its cores."""


def simulate_plan(
    plan: plan_file.Plan, ranks: int, what_if: WhatIf, steps: int = 20, seed: int = 1, note: Note | None = None
) -> Outcome:
    """Simulate `steps` steps of the plan on `ranks` ranks, with the changes `what_if`.

    Args:
        note: called with all events, for a timeline.

    Raises:
        ImpossibleRequest: `what_if` names a rank that does not exist, or a change that is impossible.
    """
    if unknown_ranks := [rank for rank in what_if.slow if rank >= ranks]:
        raise ImpossibleRequest(f"slow={unknown_ranks[0]}:...: there are ranks 0 to {ranks - 1}")
    plan = dataclasses.replace(plan, ranks_per_host=what_if.ranks_per_host or plan.ranks_per_host)
    predictor, program = predict.Predictor(plan), make_program(plan, ranks)
    link_assumptions = _change_link(predictor, ranks, what_if)
    if what_if.servers is not None:
        return _simulate_with_servers(predictor, program, ranks, what_if, seed, link_assumptions)
    return _simulate_with_sums(predictor, program, ranks, what_if, steps, seed, note, link_assumptions)


def _change_link(predictor: predict.Predictor, ranks: int, what_if: WhatIf) -> list[str]:
    """Set the link between hosts to the requested one. Returns the assumptions about the link that is used."""
    plan, links = predictor.plan, predictor.links
    uses_network = ranks > links.per_host or what_if.servers is not None  # each server has its own adapter
    if what_if.link is not None:
        links.network, links.cpu_per_byte = what_if.link, 0.0
        return ["the given link between hosts, which uses no core"] if uses_network else []
    is_measured = plan.find_link(plan_file.TWO_HOSTS, plan_file.ALL_RANKS) is not None
    return [f"{plan.network} between hosts"] if uses_network and not is_measured else []


def _count_rows(plan: plan_file.Plan, ranks: int) -> int:
    """Rows of all ranks in a step; 1 per batch if its rows are unknown, so that rates count batches."""
    return max(plan.rows, 1) * (ranks if plan.scaling == "weak" else 1)


def _simulate_with_sums(
    predictor: predict.Predictor, program: Program, ranks: int, what_if: WhatIf, steps: int, seed: int,
    note: Note | None, link_assumptions: Sequence[str],
) -> Outcome:  # fmt: skip
    """Ranks that sum their gradients, or exchange them as the requested strategy does."""
    plan, links = predictor.plan, predictor.links
    if what_if.overlap and not plan.overlaps:
        raise ImpossibleRequest(
            "overlap=on: this step's gradients are all ready at once, so that nothing can be overlapped"
        )
    assumptions = list(link_assumptions)
    if what_if.algorithm == predict.MPI and not links.is_mpi_known(ranks):
        assumptions.append(f"the best algorithm for MPI's own sums, which were not measured on {ranks} ranks")
    if what_if.strategy and ranks > 1:
        assumptions.append(f"what {what_if.strategy} exchanges, which follows from sums (docs/planner.md)")
    # Without a requested noise, computation varies as in the measured steps.
    factors = predictor.compute.compute_spread(ranks) if what_if.noise is None else ()
    disturbance = Disturbance(what_if.noise or 0.0, what_if.slow, factors)
    step = _prepare_step(predictor, program, ranks, what_if)
    result = simulate_ranks(step.program, ranks, steps, step.boundaries, step.prices, disturbance, seed, note)
    compute = result.compute / step.slowdown
    unused_text = ""
    if ranks <= links.per_host:  # nothing is sent between hosts, and sums use the computing cores
        names = ("overlap=on", "buckets", "link", "compression", *(["algorithm", "strategy"] if ranks == 1 else []))
        unused_text = _describe_unused(what_if, names, f"on {ranks} rank{'s' * (ranks > 1)} of one host")
    elif not step.boundaries:
        unused_text = _describe_unused(what_if, ("buckets",), "where no sums are overlapped")
    return Outcome(
        step=result.step, compute=compute, waiting=result.waiting,
        exposed=result.exposed + result.compute - compute,  # a slowdown by transfers is exposed, as in a plan
        rows=_count_rows(plan, ranks), assumptions=tuple(assumptions), note=unused_text,
    )  # fmt: skip


def _prepare_step(predictor: predict.Predictor, program: Program, ranks: int, what_if: WhatIf) -> _Step:
    """The step of one of `ranks` ranks with the changes `what_if`, other than servers."""
    links = predictor.links
    collective_prices = [
        links.estimate_small(ranks, collective.bytes, collective.kind) for collective in program.collectives
    ]
    if ranks == 1:  # nothing is summed
        return _Step(program, Prices((), 0.0, collective_prices))
    if what_if.strategy:  # one exchange after the computation, with the seconds of a plan
        planned_step = find_price(predictor, ranks, what_if.strategy).step
        scaled_program = scale_program(program, planned_step.compute / program.compute)
        if settings.is_statistical(what_if.strategy):  # local:H, whose steps have no collectives
            scaled_program = dataclasses.replace(scaled_program, collectives=())
        return _Step(scaled_program, Prices((), planned_step.exposed, collective_prices))
    planned_step = predictor.predict_step(ranks)
    algorithm, compression = what_if.algorithm or planned_step.algorithm, what_if.compression
    at_once_price = links.estimate_small(ranks, 0) + links.estimate_sum(ranks, algorithm, program.bytes, compression)
    can_overlap = ranks > links.per_host and bool(program.sizes)
    wants_overlap = planned_step.overlapped if what_if.overlap is None else what_if.overlap
    if not (can_overlap and wants_overlap):
        return _Step(program, Prices((), at_once_price, collective_prices))
    slowdown = predictor.estimate_slowdown(ranks, program.bytes * _count_sent(compression))
    slowed_program = scale_program(program, slowdown)  # the sums use cores of the computation
    price = functools.partial(links.estimate_bucket, ranks, algorithm, compression=compression)
    boundaries = _choose_boundaries(slowed_program, what_if.buckets, price)
    bucket_prices = [price(sum(program.sizes[first:stop])) for first, stop in itertools.pairwise(boundaries)]
    return _Step(slowed_program, Prices(bucket_prices, at_once_price, collective_prices), boundaries, slowdown)


def _describe_unused(what_if: WhatIf, change_names: Sequence[str], situation: str) -> str:
    """A remark that names the requested ones of `change_names`, which change nothing in this `situation`; else ""."""
    requested_names = {*what_if.words, *(word.partition("=")[0] for word in what_if.words)}
    unused_names = [change_name for change_name in change_names if change_name in requested_names]
    return f"{', '.join(unused_names)}: nothing changes {situation}" if unused_names else ""


def _count_sent(compression: str) -> float:
    """The fraction of the gradients' bytes that is sent."""
    if compression.startswith("topk:"):
        return 2 * float(compression.partition(":")[2])  # an index and a value for each sent entry
    return 0.5 if compression else 1.0


def _choose_boundaries(program: Program, method: str | float, price: buckets.Price) -> buckets.Plan:
    """The bucket plan of a what-if `method`: one of `what_if.BUCKETS`, or the bytes of a bucket."""
    if method == "best":
        return buckets.find_best_plan(program.ready, program.sizes, buckets.sample_price(price, program.bytes))
    if method == "ibatch":
        return buckets.find_greedy_plan(program.ready, program.sizes, price)
    return buckets.plan_by_size(program.sizes, 0.0 if method == "each" else float(method))


def _simulate_with_servers(
    predictor: predict.Predictor, program: Program, ranks: int, what_if: WhatIf, seed: int,
    link_assumptions: Sequence[str],
) -> Outcome:  # fmt: skip
    """Parameter servers instead of sums: in each step each rank, a worker, pulls and pushes all parameters."""
    assert what_if.servers is not None
    network = predictor.links.network
    start_up = network.estimate_message(0.0)
    # Seconds of each layer, first layer first.
    transfer_times = [network.estimate_message(size) - start_up for size in reversed(program.sizes)]
    forward_times = _estimate_forward_times(program)
    planners = {"layerwise": ibatch.plan_by_layer, "ibatch": ibatch.plan_greedy}
    # A pull gets the parameters of one or more layers. Gradients and layers have opposite orders.
    plan_pulls = planners.get(what_if.pull or "", ibatch.plan_whole)
    pull_plan = plan_pulls(ibatch.Layers(forward_times, transfer_times, start_up))
    work = servers.Work(
        pulls=servers.sum_batches(transfer_times, pull_plan), forward=servers.sum_batches(forward_times, pull_plan),
        backward=program.compute - sum(forward_times), push=sum(transfer_times), start_up=start_up,
    )  # fmt: skip
    count, is_synchronous = what_if.servers
    # Computation varies only as requested, and not as measured.
    disturbance = Disturbance(what_if.noise or 0.0, what_if.slow)
    step = servers.simulate_servers(ranks, count, work, SERVER_STEPS, is_synchronous, disturbance, seed).compute_step()
    assumptions = [
        *link_assumptions,
        f"a forward pass of {FORWARD:.2f} of the computation",
        "servers as fast as ranks, loads even, an adapter for each",
    ]
    if not is_synchronous:
        assumptions.append("asynchronous updates give other results than the script alone")
    return Outcome(
        step=step, compute=program.compute, waiting=0.0, exposed=step - program.compute,
        rows=_count_rows(predictor.plan, ranks), assumptions=tuple(assumptions),
        note=_describe_unused(
            what_if, ("overlap=on", "overlap=off", "buckets", "compression", "algorithm"), "with parameter servers"
        ),
    )  # fmt: skip


def _estimate_forward_times(program: Program) -> list[float]:
    """Seconds of each layer's forward pass, first layer first.

    All forward passes together take the fraction `FORWARD` of the computation. The forward pass of a layer is in
    proportion to its backward pass: the time from the previous gradient to the gradient of the layer. Gradients become
    ready from the last layer to the first.
    """
    forward_end = FORWARD * program.compute
    backward_times = [later - earlier for earlier, later in itertools.pairwise([forward_end, *program.ready])]
    weights = [max(0.0, seconds) for seconds in reversed(backward_times)]
    total_weight = sum(weights)
    return [forward_end * (weight / total_weight if total_weight else 1 / len(weights)) for weight in weights]
