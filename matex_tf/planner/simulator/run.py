"""Simulates the steps of a plan on any number of ranks, with what-if changes, for `matex simulate`.

`simulate_plan` makes the program of a rank and the prices of its transfers. It runs the events of `simulator.ranks` or,
for parameter servers, of `simulator.servers`, and summarizes them in an `Outcome`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf.costs import collectives
from matex_tf.costs.collectives import AnyLink
from matex_tf.planner import buckets, plan_file, predict
from matex_tf.planner.papers import ibatch
from matex_tf.planner.simulator import program as programs
from matex_tf.planner.simulator import ranks as rank_events
from matex_tf.planner.simulator import servers
from matex_tf.planner.simulator.program import ImpossibleRequest, Program
from matex_tf.planner.simulator.what_if import WhatIf
from matex_tf.planner.strategies import find_price

FORWARD = 1 / 3
"""The forward pass as a fraction of a step's computation, for parameter servers: assumed."""
SERVER_STEPS = 60
"""Simulated steps of each worker with parameter servers."""


@dataclass(frozen=True)
class Outcome:
    """The simulated steps. Times are means in seconds: `step` = `compute` + `waiting` + `exposed`."""

    step: float
    compute: float
    waiting: float
    """For the slowest rank."""
    exposed: float
    """Of transfers that do not overlap with computation."""
    rows: int
    """Of all ranks in a step."""
    transfers: int
    """The number in an update."""
    assumptions: tuple[str, ...]
    """Values that were not measured."""
    events: int
    note: str = ""
    """Names changes without effect."""


@dataclass(frozen=True)
class _Sums:
    """Seconds of sums over `ranks` ranks by one algorithm, as in `predict.Predictor`, or with compression."""

    ranks: int
    links: predict.Links
    algorithm: str
    compression: str

    def estimate_bucket(self, size: float) -> float:
        """Seconds of a bucket, including the rendezvous before it."""
        return self.links.estimate_bucket_rendezvous(self.ranks) + self._estimate_sum(size)

    def estimate_at_once(self, size: float) -> float:
        """Seconds of one sum of all gradients, including the rendezvous before it."""
        return self.links.estimate_small(self.ranks, 0) + self._estimate_sum(size)

    def _estimate_sum(self, size: float) -> float:
        return predict.estimate_chunks(self._estimate_chunk, self.links.find_chunk_bytes(self.ranks), size)

    def _estimate_chunk(self, size: float) -> float:
        chunk = self.ranks, self.links.per_host, size, self.links.network, self.links.memory
        if self.algorithm not in collectives.ALGORITHMS:  # the sum in shared memory, of the ranks of one host
            return self.links.list_algorithms(self.ranks)[self.algorithm](size)
        if self.ranks <= self.links.per_host:
            return collectives.ALGORITHMS[self.algorithm](*chunk)
        if self.compression.startswith("topk:"):
            return collectives.estimate_topk(*chunk, float(self.compression.partition(":")[2]))
        if self.compression:
            return collectives.estimate_16_bits(*chunk)
        return self.links.estimate_between_hosts(self.algorithm, self.ranks, size)


@dataclass(frozen=True)
class _Step:
    """A step to simulate: the computation, slowed down by its transfers, and the transfers with their prices."""

    program: Program
    prices: rank_events.Prices
    boundaries: buckets.Plan | None = None
    """Buckets that overlap with the computation; None: one transfer after the computation."""
    slowdown: float = 1.0


def simulate_plan(
    plan: plan_file.Plan, ranks: int, what_if: WhatIf, steps: int = 20, seed: int = 1,
    note: rank_events.Note | None = None,
) -> Outcome:  # fmt: skip
    """Simulate `steps` steps of the plan on `ranks` ranks, with the changes `what_if`.

    Args:
        note: called with the events of each rank, for a timeline.

    Raises:
        ImpossibleRequest: `what_if` names a rank that does not exist, or a change that is impossible.
    """
    if unknown_ranks := [rank for rank in what_if.slow if rank >= ranks]:
        raise ImpossibleRequest(f"slow={unknown_ranks[0]}:...: there are ranks 0 to {ranks - 1}")
    plan = dataclasses.replace(plan, ranks_per_host=what_if.ranks_per_host or plan.ranks_per_host)
    program = programs.make_program(plan, ranks)
    predictor = predict.Predictor(plan)
    links = predictor.links
    assumptions = []
    is_between = ranks > links.per_host
    if what_if.link is not None:
        links.network, links.cpu_per_byte = what_if.link, 0.0
        if is_between or what_if.servers is not None:
            assumptions.append("the given link between hosts, which uses no core")
    elif is_between and links.find_mark(ranks) == plan_file.ASSUMED:
        assumptions.append(f"{plan.network} between hosts")
    if what_if.algorithm == predict.MPI and not links.is_mpi_known(ranks):
        assumptions.append(f"the best algorithm for MPI's own sums, which were not measured on {ranks} ranks")
    rows = max(plan.rows, 1) * (ranks if plan.scaling == "weak" else 1)
    if what_if.servers is not None:
        return _simulate_with_servers(program, ranks, links.network, what_if, what_if.servers, rows, assumptions, seed)
    if what_if.overlap and not plan.overlaps:
        raise ImpossibleRequest(
            "overlap=on: this step's gradients are all ready at once, so that nothing can be overlapped"
        )
    if what_if.strategy and ranks > 1:
        assumptions.append(f"what {what_if.strategy} exchanges, which follows from sums (docs/planner.md)")
    step = _prepare_step(predictor, program, ranks, what_if)
    factors = predictor.compute.compute_spread(ranks) if what_if.noise is None else ()
    disturbance = rank_events.Disturbance(what_if.noise or 0.0, what_if.slow, factors)
    result = rank_events.simulate_ranks(
        step.program, ranks, steps, step.boundaries, step.prices, disturbance, seed, note
    )
    compute = result.mean_compute / step.slowdown
    unused = [] if is_between else _list_unused(what_if, ranks)
    return Outcome(
        step=result.step, compute=compute, waiting=result.waiting,
        exposed=result.exposed + result.mean_compute - compute,  # a slowdown by transfers is exposed, as in a plan
        rows=rows, transfers=len(step.boundaries) - 1 if step.boundaries else int(ranks > 1),
        assumptions=tuple(assumptions), events=result.events,
        note=f"{', '.join(unused)}: nothing changes on {ranks} rank{'s' * (ranks > 1)} of one host" if unused else "",
    )  # fmt: skip


def _prepare_step(predictor: predict.Predictor, program: Program, ranks: int, what_if: WhatIf) -> _Step:
    """The step of one of `ranks` ranks with the changes `what_if`, other than servers."""
    links = predictor.links
    meetings = [links.estimate_small(ranks, meeting.bytes, meeting.kind) for meeting in program.meetings]
    if ranks == 1:  # nothing is summed
        return _Step(program, rank_events.Prices((), 0.0, meetings))
    if what_if.strategy:  # one exchange after the computation, priced as in a plan
        planned = find_price(predictor, ranks, what_if.strategy).step
        shortened = programs.shorten_program(program, planned.compute)
        return _Step(shortened, rank_events.Prices((), planned.exposed, meetings))
    planned = predictor.predict_step(ranks)
    sums = _Sums(ranks, links, what_if.algorithm or planned.algorithm, what_if.compression)
    at_once = sums.estimate_at_once(program.bytes)
    can_overlap = ranks > links.per_host and bool(program.sizes)
    if not can_overlap or not (planned.overlapped if what_if.overlap is None else what_if.overlap):
        return _Step(program, rank_events.Prices((), at_once, meetings))
    slowdown = predictor.estimate_slowdown(ranks, program.bytes * _count_sent(what_if.compression))
    slowed = programs.scale_program(program, slowdown)
    boundaries = _choose_boundaries(slowed, what_if.buckets, sums.estimate_bucket)
    bucket_sizes = [sum(program.sizes[first:stop]) for first, stop in itertools.pairwise(boundaries)]
    prices = rank_events.Prices([sums.estimate_bucket(size) for size in bucket_sizes], at_once, meetings)
    return _Step(slowed, prices, boundaries, slowdown)


def _list_unused(what_if: WhatIf, ranks: int) -> list[str]:
    """The changes without effect on one host: nothing is sent between hosts, and sums use the computing cores."""
    changes: dict[str, object] = {
        "overlap=on": what_if.overlap,
        "buckets": what_if.buckets != "best",
        "link": what_if.link is not None,
        "compression": what_if.compression,
        "algorithm": what_if.algorithm and ranks == 1,
    }
    return [name for name, is_requested in changes.items() if is_requested]


def _count_sent(compression: str) -> float:
    """The fraction of the gradients' bytes that is sent."""
    if compression.startswith("topk:"):
        return 2 * float(compression.partition(":")[2])  # an index and a value for each sent entry
    return 0.5 if compression else 1.0


def _choose_boundaries(program: Program, method: str | float, price: buckets.Price) -> buckets.Plan:
    """The bucket plan of a what-if `method`: one of `what_if.BUCKETS`, or the bytes of a bucket."""
    if method == "best":
        return buckets.find_best_plan(program.ready, program.sizes, price)
    if method == "ibatch":
        return buckets.find_greedy_plan(program.ready, program.sizes, price)
    if method == "each":
        return buckets.plan_each(program.sizes)
    return buckets.plan_by_size(program.sizes, float(method))


def _simulate_with_servers(
    program: Program, ranks: int, network: AnyLink, what_if: WhatIf, count: int, rows: int,
    assumptions: Sequence[str], seed: int,
) -> Outcome:  # fmt: skip
    """`count` parameter servers instead of sums: in each step each rank, a worker, pulls and pushes all parameters."""
    start_up = network.estimate_message(0.0)
    layers = [network.estimate_message(size) - start_up for size in reversed(program.sizes)]  # first layer first
    forward = _estimate_forward_times(program)
    choose_pulls = {"layerwise": ibatch.plan_by_layer, "ibatch": ibatch.plan_greedy}.get(
        what_if.pull or "", ibatch.plan_whole
    )
    pulls = choose_pulls(ibatch.Layers(forward, layers, start_up))
    work = servers.Work(
        pulls=servers.add_up_batches(layers, pulls), forward=servers.add_up_batches(forward, pulls),
        backward=program.compute - sum(forward), push=sum(layers), start_up=start_up,
    )  # fmt: skip
    result = servers.simulate_servers(
        ranks, float(count), work, SERVER_STEPS, what_if.synchronous, what_if.noise or 0.0, what_if.slow, seed
    )
    assumptions = [
        *assumptions,
        f"a forward pass of {FORWARD:.2f} of the computation",
        "servers as fast as ranks, loads even, an adapter for each",
    ]
    if not what_if.synchronous:
        assumptions.append("asynchronous updates give other results than the script alone")
    step = result.compute_step()
    return Outcome(
        step=step, compute=program.compute, waiting=0.0, exposed=step - program.compute, rows=rows,
        transfers=len(pulls), assumptions=tuple(assumptions), events=result.events,
    )  # fmt: skip


def _estimate_forward_times(program: Program) -> list[float]:
    """Seconds of each layer's forward pass, first layer first.

    All forward passes together take the fraction `FORWARD` of the computation. The forward pass of a layer is in
    proportion to its backward pass, the time since the gradient before. The first layer's gradient is the last.
    """
    forward_end = FORWARD * program.compute
    backward = [later - earlier for earlier, later in itertools.pairwise([forward_end, *program.ready])]
    weights = [max(0.0, seconds) for seconds in reversed(backward)]
    total = sum(weights)
    return [forward_end * (weight / total if total else 1 / len(weights)) for weight in weights]
