"""A plan's step at a number of ranks, with what is changed: priced, simulated, and what came of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from matex_tf.planner import buckets, collectives, plan_file
from matex_tf.planner.collectives import AnyLink
from matex_tf.planner.papers import ibatch
from matex_tf.planner.simulator import program as programs
from matex_tf.planner.simulator import ranks as rank_events
from matex_tf.planner.simulator import servers
from matex_tf.planner.simulator.program import NotAsked, Program
from matex_tf.planner.simulator.what_if import WhatIf

FORWARD = 1 / 3
"""The part of a step's computation that is the forward pass, where servers need it: assumed."""
SERVER_STEPS = 60


@dataclass(frozen=True)
class Outcome:
    """Mean seconds of a step, and of these: computation, waiting for the slowest, and what nothing hides of transfers.

    `rows`: of all ranks in a step. `transfers` of an update. `assumptions`: what was not measured.
    """

    step: float
    compute: float
    waiting: float
    exposed: float
    rows: int
    transfers: int
    assumptions: tuple[str, ...]
    events: int


@dataclass(frozen=True)
class _Cluster:
    ranks: int
    per_host: int
    network: AnyLink
    memory: AnyLink

    def price(self, algorithm: str | None, compression: str) -> Callable[[float], float]:
        """Seconds of a sum by its bytes, with the meeting before it."""
        where = (self.ranks, self.per_host)
        meeting = collectives.meeting(*where, self.network, self.memory)

        def once(size: float) -> float:
            if compression.startswith("topk:") and self.ranks > self.per_host:
                share = float(compression.partition(":")[2])
                return collectives.largest(*where, size, self.network, self.memory, share)
            if compression and self.ranks > self.per_host:
                return collectives.in_16_bits(*where, size, self.network, self.memory)
            if algorithm:
                return collectives.ALGORITHMS[algorithm](*where, size, self.network, self.memory)
            if self.ranks <= self.per_host:
                return collectives.shared_memory(self.ranks, size, self.memory)
            return min(
                collectives.ALGORITHMS[one](*where, size, self.network, self.memory) for one in collectives.EXACT
            )

        chunk = collectives.CHUNK if self.ranks > self.per_host else collectives.CHUNK_WITHIN_HOST

        def price(size: float) -> float:
            chunks = max(1, ceil(size / chunk))
            return meeting + chunks * once(size / chunks)

        return price


def run(
    plan: plan_file.Plan, ranks: int, what: WhatIf, steps: int = 20, seed: int = 1, note: rank_events.Note | None = None
) -> Outcome:
    """Simulate `steps` steps on `ranks` ranks.

    Raises:
        NotAsked: `what` names a rank that is not there, or nothing that could be changed.
    """
    if strange := [rank for rank in what.slow if rank >= ranks]:
        raise NotAsked(f"slow={strange[0]}:...: there are ranks 0 to {ranks - 1}")
    program = programs.of_plan(plan, ranks)
    per_host = what.ranks_per_host or plan.ranks_per_host
    overlaps = what.overlap if what.overlap is not None else plan.overlaps and ranks > per_host
    network, memory, source = programs.links_of(plan, overlaps)
    if what.link is not None:
        network, source = what.link, "given between hosts"
    cluster = _Cluster(ranks, per_host, network, memory)
    rows = max(plan.rows, 1) * (ranks if plan.scaling == "weak" else 1)
    factors = () if what.noise is not None else programs.noise_of(plan)
    assumptions = [source] if ranks > per_host else []
    if what.servers is not None:
        return _with_servers(program, cluster, what, rows, assumptions, seed)
    if what.overlap and not plan.overlaps:
        raise NotAsked("overlap=on: this step's gradients are all ready at once, so that nothing can be overlapped")
    price = cluster.price(what.algorithm, what.compression)
    if ranks == 1:  # alone there is nothing to sum
        prices, boundaries = rank_events.Prices((), 0.0, [0.0] * len(program.meetings)), None
    else:
        boundaries = _boundaries(program, what.buckets, price) if overlaps and program.sizes else None
        exact = cluster.price(what.algorithm, "")
        prices = rank_events.Prices(
            [price(sum(program.sizes[first:past])) for first, past in itertools.pairwise(boundaries or ())],
            price(program.bytes),
            [exact(size) for _, _, size in program.meetings],
        )
    disturbance = rank_events.Disturbance(what.noise or 0.0, what.slow, factors)
    result = rank_events.simulate(program, ranks, steps, boundaries, prices, disturbance, seed, note)
    transfers = len(boundaries) - 1 if boundaries else int(ranks > 1)
    return Outcome(
        result.step, result.mean_compute, result.waiting, result.exposed, rows, transfers, tuple(assumptions),
        result.events,
    )  # fmt: skip


def _boundaries(program: Program, way: str | float, price: buckets.Price) -> buckets.Plan:
    if way == "best":
        return buckets.best(program.ready, program.sizes, price)
    if way == "ibatch":
        return buckets.greedy(program.ready, program.sizes, price)
    if way == "each":
        return buckets.each(program.sizes)
    return buckets.closed_at(program.sizes, float(way))


def _with_servers(
    program: Program, cluster: _Cluster, what: WhatIf, rows: int, assumptions: list[str], seed: int
) -> Outcome:
    """Parameter servers in place of sums: each rank is a worker, and pulls and pushes all parameters each step."""
    start_up = cluster.network.message(0.0)
    layers = [cluster.network.message(size) - start_up for size in reversed(program.sizes)]
    forward = forward_times(program)
    work = ibatch.Layers(forward, layers, start_up)
    plans = {"layerwise": ibatch.by_layer, "ibatch": ibatch.greedy}
    plan = plans.get(what.pull or "default", ibatch.whole)(work)
    one = servers.Work(
        servers.by_batches(layers, plan),
        servers.by_batches(forward, plan),
        program.compute - sum(forward),
        sum(layers),
        start_up,
    )
    noise = what.noise if what.noise is not None else 0.0
    assert what.servers is not None
    found = servers.simulate(
        cluster.ranks, float(what.servers), one, SERVER_STEPS, what.synchronous, noise, what.slow, seed
    )
    assumptions = [
        *assumptions,
        f"a forward pass of {FORWARD:.2f} of the computation",
        "servers as fast as ranks, loads even, an adapter for each",
    ]
    if not what.synchronous:
        assumptions.append("asynchronous updates train otherwise than the script alone")
    step = found.step()
    return Outcome(
        step, program.compute, 0.0, step - program.compute, rows, len(plan), tuple(assumptions), found.events
    )


def forward_times(program: Program) -> list[float]:
    """Seconds of each layer's forward pass, first layer first: `FORWARD` of all, as their backward passes share it."""
    backward = [later - earlier for earlier, later in itertools.pairwise([FORWARD * program.compute, *program.ready])]
    shares = [max(0.0, one) for one in reversed(backward)]
    whole = sum(shares)
    count = max(1, len(program.sizes))
    return [FORWARD * program.compute * (one / whole if whole else 1 / count) for one in shares]
