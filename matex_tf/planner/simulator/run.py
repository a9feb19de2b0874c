"""Simulates a plan's step on any number of ranks, with what-if changes, and summarizes the result."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from math import ceil

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


@dataclass(frozen=True)
class Outcome:
    """Mean seconds of a step, of its computation, of waiting for the slowest rank, and of exposed transfers.

    `rows`: of all ranks in a step. `transfers`: number in an update. `assumptions`: values that were not measured.
    `note`: changes that have no effect.
    """

    step: float
    compute: float
    waiting: float
    exposed: float
    rows: int
    transfers: int
    assumptions: tuple[str, ...]
    events: int
    note: str = ""


@dataclass(frozen=True)
class _Sums:
    """The seconds of sums over `ranks` ranks by one algorithm, as in `predict.Predictor`, or with compression."""

    ranks: int
    links: predict.Links
    algorithm: str
    compression: str = ""

    def estimate_sum(self, size: float) -> float:
        """Seconds of a sum of `size` bytes, in chunks."""
        is_between = self.ranks > self.links.per_host
        chunk = collectives.CHUNK if is_between else collectives.CHUNK_WITHIN_HOST
        chunks = max(1, ceil(size / chunk))
        return chunks * self._estimate_chunk(size / chunks)

    def _estimate_chunk(self, size: float) -> float:
        message = self.ranks, self.links.per_host, size, self.links.network, self.links.memory
        if self.ranks > self.links.per_host and self.compression:
            if self.compression.startswith("topk:"):
                return collectives.estimate_topk(*message, float(self.compression.partition(":")[2]))
            return collectives.estimate_16_bits(*message)
        if self.algorithm in collectives.ALGORITHMS and self.ranks > self.links.per_host:
            return self.links.estimate_between_hosts(self.algorithm, self.ranks, size)
        if self.algorithm in collectives.ALGORITHMS:
            return collectives.ALGORITHMS[self.algorithm](*message)
        return self.links.list_algorithms(self.ranks)[self.algorithm](size)

    def estimate_bucket(self, size: float) -> float:
        """Seconds of a bucket, including the rendezvous before it."""
        rendezvous = self.links.estimate_small(self.ranks, 0) * predict.READY_BYTES / collectives.MEETING
        return rendezvous + self.estimate_sum(size)

    def estimate_at_once(self, size: float) -> float:
        """Seconds of one sum of all gradients, including the rendezvous before it."""
        return self.links.estimate_small(self.ranks, 0) + self.estimate_sum(size)


def simulate_plan(
    plan: plan_file.Plan,
    ranks: int,
    what_if: WhatIf,
    steps: int = 20,
    seed: int = 1,
    note: rank_events.Note | None = None,
) -> Outcome:
    """Simulate `steps` steps on `ranks` ranks.

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
    rows = max(plan.rows, 1) * (ranks if plan.scaling == "weak" else 1)
    if what_if.algorithm == predict.MPI and not links.is_mpi_known(ranks):
        assumptions.append(f"the best algorithm for MPI's own sums, which were not measured on {ranks} ranks")
    if what_if.servers is not None:
        return _simulate_with_servers(program, ranks, links.network, what_if, rows, assumptions, seed)
    if what_if.overlap and not plan.overlaps:
        raise ImpossibleRequest(
            "overlap=on: this step's gradients are all ready at once, so that nothing can be overlapped"
        )
    unused = [] if is_between else list_unused(what_if, ranks)
    planned = predictor.predict_step(ranks)
    boundaries: buckets.Plan | None = None  # of buckets that overlap with computation
    slowdown = 1.0
    meetings = [links.estimate_small(ranks, meeting.bytes, meeting.kind) for meeting in program.meetings]
    if ranks == 1:  # a single rank has nothing to sum
        prices = rank_events.Prices((), 0.0, [0.0] * len(meetings))
    elif what_if.strategy:  # one exchange after the computation, priced as in a plan
        planned = find_price(predictor, ranks, what_if.strategy).step
        program = programs.shorten_program(program, planned.compute)
        assumptions.append(f"what {what_if.strategy} exchanges, which follows from sums (docs/planner.md)")
        prices = rank_events.Prices((), planned.exposed, meetings)
    else:
        sums = _Sums(ranks, links, what_if.algorithm or planned.algorithm, what_if.compression)
        overlaps = planned.overlapped if what_if.overlap is None else what_if.overlap and is_between
        if overlaps and program.sizes:
            slowdown = predictor.estimate_slowdown(ranks, program.bytes * _count_sent(what_if.compression))
            program = programs.scale_program(program, slowdown)
            boundaries = _choose_boundaries(program, what_if.buckets, sums.estimate_bucket)
        bucket_sizes = [sum(program.sizes[first:stop]) for first, stop in itertools.pairwise(boundaries or ())]
        bucket_seconds = [sums.estimate_bucket(size) for size in bucket_sizes]
        prices = rank_events.Prices(bucket_seconds, sums.estimate_at_once(program.bytes), meetings)
    factors = predictor.compute.compute_spread(ranks) if what_if.noise is None else ()
    disturbance = rank_events.Disturbance(what_if.noise or 0.0, what_if.slow, factors)
    result = rank_events.simulate_ranks(program, ranks, steps, boundaries, prices, disturbance, seed, note)
    transfers = len(boundaries) - 1 if boundaries else int(ranks > 1)
    compute = result.mean_compute / slowdown  # slowdown by transfers counts as exposed, as in a plan
    return Outcome(
        result.step, compute, result.waiting, result.exposed + result.mean_compute - compute, rows, transfers,
        tuple(assumptions), result.events,
        f"{', '.join(unused)}: nothing changes on {ranks} rank{'s' * (ranks > 1)} of one host" if unused else "",
    )  # fmt: skip


def list_unused(what_if: WhatIf, ranks: int) -> list[str]:
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
    kind, _, share = compression.partition(":")
    return {"": 1.0, "topk": 2 * float(share or 0)}.get(kind, 0.5)


def _choose_boundaries(program: Program, method: str | float, price: buckets.Price) -> buckets.Plan:
    if method == "best":
        return buckets.find_best_plan(program.ready, program.sizes, price)
    if method == "ibatch":
        return buckets.find_greedy_plan(program.ready, program.sizes, price)
    if method == "each":
        return buckets.plan_each(program.sizes)
    return buckets.plan_by_size(program.sizes, float(method))


def _simulate_with_servers(
    program: Program, ranks: int, network: AnyLink, what_if: WhatIf, rows: int, assumptions: list[str], seed: int
) -> Outcome:
    """Parameter servers instead of sums: each rank is a worker that pulls and pushes all parameters in each step."""
    start_up = network.estimate_message(0.0)
    layers = [network.estimate_message(size) - start_up for size in reversed(program.sizes)]
    forward = estimate_forward_times(program)
    plans = {"layerwise": ibatch.plan_by_layer, "ibatch": ibatch.plan_greedy}
    plan = plans.get(what_if.pull or "default", ibatch.plan_whole)(ibatch.Layers(forward, layers, start_up))
    work = servers.Work(
        servers.add_up_batches(layers, plan),
        servers.add_up_batches(forward, plan),
        program.compute - sum(forward),
        sum(layers),
        start_up,
    )
    noise = what_if.noise if what_if.noise is not None else 0.0
    assert what_if.servers is not None
    result = servers.simulate_servers(
        ranks, float(what_if.servers), work, SERVER_STEPS, what_if.synchronous, noise, what_if.slow, seed
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
        step, program.compute, 0.0, step - program.compute, rows, len(plan), tuple(assumptions), result.events
    )


def estimate_forward_times(program: Program) -> list[float]:
    """Seconds of each layer's forward pass, first layer first: `FORWARD` of the computation, split as is backward."""
    backward = [later - earlier for earlier, later in itertools.pairwise([FORWARD * program.compute, *program.ready])]
    shares = [max(0.0, seconds) for seconds in reversed(backward)]
    whole = sum(shares)
    count = max(1, len(program.sizes))
    return [FORWARD * program.compute * (seconds / whole if whole else 1 / count) for seconds in shares]
