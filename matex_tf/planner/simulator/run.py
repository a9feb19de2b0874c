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
from matex_tf.planner.simulator.program import NotAsked, Program
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
    """Prices of collectives, as in `predict.Predictor`."""

    ranks: int
    links: predict.Links
    algorithm: str
    compression: str = ""

    def estimate_sum(self, size: float) -> float:
        """Seconds of a sum of `size` bytes, in chunks."""
        is_between = self.ranks > self.links.per_host
        chunk = collectives.CHUNK if is_between else collectives.CHUNK_WITHIN_HOST
        pieces = max(1, ceil(size / chunk))
        return pieces * self._estimate_piece(size / pieces)

    def _estimate_piece(self, size: float) -> float:
        where = self.ranks, self.links.per_host, size, self.links.network, self.links.memory
        if self.ranks > self.links.per_host and self.compression:
            if self.compression.startswith("topk:"):
                return collectives.estimate_topk(*where, float(self.compression.partition(":")[2]))
            return collectives.estimate_16_bits(*where)
        if self.algorithm in collectives.ALGORITHMS and self.ranks > self.links.per_host:
            return self.links.estimate_between_hosts(self.algorithm, self.ranks, size)
        if self.algorithm in collectives.ALGORITHMS:
            return collectives.ALGORITHMS[self.algorithm](*where)
        return self.links.list_algorithms(self.ranks)[self.algorithm](size)

    def estimate_bucket(self, size: float) -> float:
        """Seconds of a bucket, including the rendezvous before it."""
        return self.links.estimate_small(self.ranks, 0) * predict.READY_BYTES / collectives.MEETING + self.estimate_sum(
            size
        )

    def estimate_at_once(self, size: float) -> float:
        return self.links.estimate_small(self.ranks, 0) + self.estimate_sum(size)


def simulate_plan(
    plan: plan_file.Plan, ranks: int, what: WhatIf, steps: int = 20, seed: int = 1, note: rank_events.Note | None = None
) -> Outcome:
    """Simulate `steps` steps on `ranks` ranks.

    Raises:
        NotAsked: `what` names a rank that does not exist, or a change that is impossible.
    """
    if strange := [rank for rank in what.slow if rank >= ranks]:
        raise NotAsked(f"slow={strange[0]}:...: there are ranks 0 to {ranks - 1}")
    plan = dataclasses.replace(plan, ranks_per_host=what.ranks_per_host or plan.ranks_per_host)
    program = programs.make_program(plan, ranks)
    predictor = predict.Predictor(plan)
    links = predictor.links
    assumptions = []
    is_between = ranks > links.per_host
    if what.link is not None:
        links.network, links.cpu_per_byte = what.link, 0.0
        if is_between or what.servers is not None:
            assumptions.append("the given link between hosts, which uses no core")
    elif is_between and links.find_mark(ranks) == plan_file.ASSUMED:
        assumptions.append(f"{plan.network} between hosts")
    rows = max(plan.rows, 1) * (ranks if plan.scaling == "weak" else 1)
    if what.algorithm == predict.MPI and not links.is_mpi_known(ranks):
        assumptions.append(f"the best algorithm for MPI's own sums, which were not measured on {ranks} ranks")
    if what.servers is not None:
        return _simulate_with_servers(program, ranks, links.network, what, rows, assumptions, seed)
    if what.overlap and not plan.overlaps:
        raise NotAsked("overlap=on: this step's gradients are all ready at once, so that nothing can be overlapped")
    unused = [] if is_between else list_unused(what, ranks)
    planned = predictor.predict_step(ranks)
    if what.strategy and ranks > 1:
        planned = find_price(predictor, ranks, what.strategy).step
        program = programs.shorten_program(program, planned.compute)
        assumptions.append(f"what {what.strategy} exchanges, which follows from sums (docs/planner.md)")
    boundaries: buckets.Plan | None = None
    longer = 1.0
    meetings = [links.estimate_small(ranks, one.bytes, one.kind) for one in program.meetings]
    if what.strategy and ranks > 1:
        prices = rank_events.Prices((), planned.exposed, meetings)
    elif ranks == 1:  # a single rank has nothing to sum
        prices = rank_events.Prices((), 0.0, [0.0] * len(meetings))
    else:
        sums = _Sums(ranks, links, what.algorithm or planned.algorithm, what.compression)
        overlaps = planned.overlapped if what.overlap is None else what.overlap and is_between
        if overlaps and program.sizes:
            longer = predictor.estimate_slowdown(ranks, program.bytes * _count_sent(what.compression))
            program = programs.scale_program(program, longer)
            boundaries = _choose_boundaries(program, what.buckets, sums.estimate_bucket)
        prices = rank_events.Prices(
            [
                sums.estimate_bucket(sum(program.sizes[first:past]))
                for first, past in itertools.pairwise(boundaries or ())
            ],
            sums.estimate_at_once(program.bytes),
            meetings,
        )
    factors = predictor.compute.compute_spread(ranks) if what.noise is None else ()
    disturbance = rank_events.Disturbance(what.noise or 0.0, what.slow, factors)
    result = rank_events.simulate_ranks(program, ranks, steps, boundaries, prices, disturbance, seed, note)
    transfers = len(boundaries) - 1 if boundaries else int(ranks > 1)
    compute = result.mean_compute / longer  # slowdown by transfers counts as exposed, as in a plan
    return Outcome(
        result.step, compute, result.waiting, result.exposed + result.mean_compute - compute, rows, transfers,
        tuple(assumptions), result.events,
        f"{', '.join(unused)}: nothing changes on {ranks} rank{'s' * (ranks > 1)} of one host" if unused else "",
    )  # fmt: skip


def list_unused(what: WhatIf, ranks: int) -> list[str]:
    """The changes without effect on one host: nothing is sent between hosts, and sums use the computing cores."""
    changes: dict[str, object] = {
        "overlap=on": what.overlap,
        "buckets": what.buckets != "best",
        "link": what.link is not None,
        "compression": what.compression,
        "algorithm": what.algorithm and ranks == 1,
    }
    return [name for name, is_asked in changes.items() if is_asked]


def _count_sent(compression: str) -> float:
    """The fraction of the gradients' bytes that is sent."""
    kind, _, share = compression.partition(":")
    return {"": 1.0, "topk": 2 * float(share or 0)}.get(kind, 0.5)


def _choose_boundaries(program: Program, way: str | float, price: buckets.Price) -> buckets.Plan:
    if way == "best":
        return buckets.find_best_plan(program.ready, program.sizes, price)
    if way == "ibatch":
        return buckets.find_greedy_plan(program.ready, program.sizes, price)
    if way == "each":
        return buckets.plan_each(program.sizes)
    return buckets.plan_by_size(program.sizes, float(way))


def _simulate_with_servers(
    program: Program, ranks: int, network: AnyLink, what: WhatIf, rows: int, assumptions: list[str], seed: int
) -> Outcome:
    """Parameter servers instead of sums: each rank is a worker that pulls and pushes all parameters in each step."""
    start_up = network.estimate_message(0.0)
    layers = [network.estimate_message(size) - start_up for size in reversed(program.sizes)]
    forward = estimate_forward_times(program)
    work = ibatch.Layers(forward, layers, start_up)
    plans = {"layerwise": ibatch.plan_by_layer, "ibatch": ibatch.plan_greedy}
    plan = plans.get(what.pull or "default", ibatch.plan_whole)(work)
    one = servers.Work(
        servers.add_up_batches(layers, plan),
        servers.add_up_batches(forward, plan),
        program.compute - sum(forward),
        sum(layers),
        start_up,
    )
    noise = what.noise if what.noise is not None else 0.0
    assert what.servers is not None
    found = servers.simulate_servers(
        ranks, float(what.servers), one, SERVER_STEPS, what.synchronous, noise, what.slow, seed
    )
    assumptions = [
        *assumptions,
        f"a forward pass of {FORWARD:.2f} of the computation",
        "servers as fast as ranks, loads even, an adapter for each",
    ]
    if not what.synchronous:
        assumptions.append("asynchronous updates give other results than the script alone")
    step = found.compute_step()
    return Outcome(
        step, program.compute, 0.0, step - program.compute, rows, len(plan), tuple(assumptions), found.events
    )


def estimate_forward_times(program: Program) -> list[float]:
    """Seconds of each layer's forward pass, first layer first: `FORWARD` of the computation, divided like the backward
    pass.
    """
    backward = [later - earlier for earlier, later in itertools.pairwise([FORWARD * program.compute, *program.ready])]
    shares = [max(0.0, one) for one in reversed(backward)]
    whole = sum(shares)
    count = max(1, len(program.sizes))
    return [FORWARD * program.compute * (one / whole if whole else 1 / count) for one in shares]
