"""Predicts a step on any number of ranks, for `matex plan`.

A step consists of four parts: its computation, the sums of gradients that the computation does not hide (exposed), the
other collectives (small), and waiting for the slowest rank. `Compute` (compute.py) models the computation from measured
sizes, `Links` the collectives from measured links, and a `Predictor` adds both up for one plan. Each number has a mark:
measured, extrapolated or assumed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from matex_tf.costs import collectives
from matex_tf.costs.collectives import AnyLink, MeasuredLink
from matex_tf.planner import buckets
from matex_tf.planner.compute import Compute, count_slice_rows
from matex_tf.planner.plan_file import ALL_RANKS, ASSUMED, EXTRAPOLATED, MEASURED, ONE_HOST, TWO_HOSTS, Input, Plan

MPI, SHARED_MEMORY = "mpi", "shared memory"
GATHERED = ("allgather", "message")
"""Kinds of collectives in which each rank receives the data of all ranks. A message of one rank costs as much."""
COUNT_BYTES = 8
"""Bytes that each rank sends to announce the size of its gathered data."""
READY_BYTES = 24
"""Bytes of the rendezvous before each bucket, a small all-reduce by which ranks agree that its gradients are ready.
Before other collectives it has `collectives.RENDEZVOUS_BYTES`.
"""


@dataclass(frozen=True)
class Prediction:
    """A predicted step of `ranks` ranks. Times are in seconds: `step` = compute + exposed + small + waiting."""

    ranks: int
    hosts: int
    rows: int
    """Rows that a rank computes; 0 if every rank computes the complete batch."""
    compute: float
    """Seconds of a typical rank's computation."""
    exposed: float
    """Seconds of the sums of gradients that do not overlap with computation."""
    small: float
    """Seconds of the other collectives."""
    waiting: float
    """Seconds of waiting for the slowest rank."""
    step: float
    low: float
    """The lower end of the range of `step`."""
    high: float
    rows_a_second: float
    """Of all ranks together."""
    efficiency: float
    """The step of one rank with the whole batch over `ranks` * `step`; with weak scaling, over `step`."""
    memory: float
    """Peak bytes of a rank."""
    algorithm: str
    """The algorithm of the sums."""
    overlapped: bool
    """Whether the sums overlap with the computation."""
    compute_mark: str
    link_mark: str
    alone_mark: str
    """The mark of the base of efficiency: one rank with as many cores as each of these ranks."""
    input: Input | None = None
    """The cost of reading and decoding a rank's slice of a batch; None if not measured."""

    @property
    def mark(self) -> str:
        """The weaker mark of computation and links."""
        return find_weakest(self.compute_mark, self.link_mark)

    @property
    def efficiency_mark(self) -> str:
        return find_weakest(self.mark, self.alone_mark)


def find_weakest(*marks: str) -> str:
    """The mark with the least certain basis."""
    return max(marks, key=(MEASURED, EXTRAPOLATED, ASSUMED).index)


class Links:
    """The costs of sums on a plan's hosts. The simulator replaces `network` and `cpu_per_byte` for its what-ifs."""

    def __init__(self, plan: Plan):
        self.per_host = plan.ranks_per_host
        # The measured sums within a host and between hosts; None: not measured.
        self._within = plan.find_link(ONE_HOST)
        self._between = plan.find_link(ALL_RANKS, TWO_HOSTS)
        self.memory: AnyLink = collectives.MEMORY
        if self._within:
            self.memory = fit_messages(self._within.bytes, self._within.seconds, self._within.ranks)
        self.network: AnyLink = collectives.parse_network(plan.network)
        self.cpu_per_byte = self._between.cpu_per_byte if self._between else 0.0
        if self._between:
            # `asleep`: sums on the thread of overlapped updates, the usual kind of updates between hosts.
            self.network = fit_messages(self._between.bytes, self._between.asleep, self._between.hosts)

    def find_mark(self, ranks: int) -> str:
        """The mark of the link that the sums of `ranks` ranks use."""
        if ranks == 1:
            return MEASURED
        link = self._within if ranks <= self.per_host else self._between
        if link is None:
            return ASSUMED
        is_by_earlier_run = bool(link.kept)  # the network may have changed since
        return MEASURED if ranks <= 2 * link.ranks and not is_by_earlier_run else EXTRAPOLATED

    def is_mpi_known(self, ranks: int) -> bool:
        """Whether MPI's own large sums over so many ranks were measured. For more ranks its algorithm may change."""
        return ranks <= self.per_host or (self._between is not None and ranks <= self._between.ranks)

    def estimate_sum(self, ranks: int, algorithm: str, size: float, compression: str = "") -> float:
        """Seconds of a sum of `size` bytes of gradients.

        Args:
            algorithm: `SHARED_MEMORY` or a name of `collectives.EXACT`.
            compression: between hosts, in place of the algorithm: fp16, bf16 or topk:SHARE; "": none.
        """

        def estimate_chunk(chunk: float) -> float:
            if algorithm == SHARED_MEMORY:
                return self._estimate_on_one_host(ranks, chunk)
            arguments = ranks, self.per_host, chunk, self.network, self.memory
            if compression and ranks > self.per_host:
                kind, _, share = compression.partition(":")
                if kind == "topk":
                    return collectives.estimate_topk(*arguments, float(share))
                return collectives.estimate_16_bits(*arguments)
            # As in the engine: the many messages of other algorithms cost more than they save for few bytes.
            used_algorithm = MPI if chunk < collectives.MPI_ONLY_BYTES else algorithm
            return collectives.ALGORITHMS[used_algorithm](*arguments)

        max_bytes = collectives.CHUNK if ranks > self.per_host else collectives.CHUNK_WITHIN_HOST
        return collectives.estimate_chunks(estimate_chunk, max_bytes, size)

    def _estimate_on_one_host(self, ranks: int, size: float) -> float:
        """Seconds of one sum of `size` bytes: as measured, scaled to `ranks`."""
        return self.scale_measured(size, functools.partial(collectives.estimate_shared_memory, ranks, size))

    def scale_measured(self, size: float, estimate: Callable[[AnyLink], float]) -> float:
        """Seconds of an operation of `size` bytes within a host, for which a model gives `estimate(memory)` seconds.

        If sums were measured: measured sum * modelled operation / modelled sum. Otherwise the model's seconds.
        """
        if self._within is None:
            return estimate(self.memory)
        measured_sum = MeasuredLink(self._within.bytes, self._within.seconds).estimate_message(size)
        modelled_sum = collectives.estimate_shared_memory(self._within.ranks, size, collectives.MEMORY)
        return measured_sum * estimate(collectives.MEMORY) / modelled_sum

    def estimate_small(self, ranks: int, size: float, kind: str = "collective") -> float:
        """Seconds of a collective other than the sums of gradients, with `size` bytes of each rank, and its rendezvous.

        Args:
            kind: as `plan_file.Collective`.
        """
        if ranks == 1:
            return 0.0
        rendezvous = self._estimate_small_sum(ranks, collectives.RENDEZVOUS_BYTES)
        if not size:  # a barrier, or the announcement of an update
            return rendezvous
        arguments = ranks, self.per_host, size, self.network, self.memory
        if kind == "broadcast":
            return rendezvous + collectives.estimate_broadcast(*arguments)
        if kind in GATHERED:
            counts = collectives.estimate_allgather(ranks, self.per_host, COUNT_BYTES, self.network, self.memory)
            # Ranks also agree whether all of them have allocated the memory of the result.
            agreement = rendezvous if kind == "allgather" else 0.0
            return rendezvous + counts + agreement + collectives.estimate_allgather(*arguments)
        estimate_chunk = functools.partial(self._estimate_small_sum, ranks)
        return rendezvous + collectives.estimate_chunks(estimate_chunk, collectives.CHUNK, size)

    def estimate_bucket(self, ranks: int, algorithm: str, size: float, compression: str = "") -> float:
        """Seconds of a bucket of gradients: the rendezvous before it, and its sum, as by `estimate_sum`."""
        rendezvous = self._estimate_small_sum(ranks, READY_BYTES) if ranks > 1 else 0.0
        return rendezvous + self.estimate_sum(ranks, algorithm, size, compression)

    def _estimate_small_sum(self, ranks: int, size: float) -> float:
        if ranks <= self.per_host:
            return self._estimate_on_one_host(ranks, size)
        return collectives.estimate_sum_of_mpi(ranks, self.per_host, size, self.network, self.memory)


def fit_messages(sizes: Sequence[int], seconds: Sequence[float], ranks: int) -> MeasuredLink:
    """The cost of a message, from sums by log2(ranks) rounds, each with a message and an addition of all bytes."""
    rounds = max((ranks - 1).bit_length(), 1)
    message_seconds = [
        collectives.subtract_addition(sum_seconds / rounds, size) for size, sum_seconds in zip(sizes, seconds)
    ]
    return MeasuredLink(sizes, message_seconds)


class _Sums(NamedTuple):
    """The sums of gradients in a step, by one algorithm. `end` is the first field, so `min` finds the earliest end."""

    end: float
    """Seconds from the start of the step to the end of the sums."""
    algorithm: str
    overlaps: bool
    """Whether they overlap with the computation."""


class Predictor:
    """Predictions for one plan."""

    def __init__(self, plan: Plan):
        self.plan, self.compute, self.links = plan, Compute(plan), Links(plan)

    def predict_step(self, ranks: int, squeeze: float = 1.0) -> Prediction:
        """The step of `ranks` ranks, with the fastest algorithm. It sends the fraction `squeeze` of gradient bytes."""
        compute = self.compute.estimate_seconds(ranks)
        if ranks == 1:
            return self.make_prediction(1, compute, 0.0, "none", False)
        candidates = self._predict_sums(ranks, squeeze)
        # Ranks take the fastest algorithm. If MPI's own was not measured, it may be faster than the best of the others,
        # which gives an upper bound.
        is_mpi_known = self.links.is_mpi_known(ranks)
        best_sums = min(sums for sums in candidates if is_mpi_known or sums.algorithm != MPI)
        exposed = max(best_sums.end - compute, 0.0)
        # The low end of the range also counts on MPI's own sums if they were not measured.
        min_exposed = max(min(candidates).end - compute, 0.0)
        return self.make_prediction(
            ranks, compute, exposed, best_sums.algorithm, best_sums.overlaps, min_exposed=min_exposed
        )

    def make_prediction(
        self, ranks: int, compute: float, exposed: float, algorithm: str, overlapped: bool, marks: Sequence[str] = (),
        rows: int | None = None, small: float | None = None, waits_for_slowest: bool = True,
        min_exposed: float | None = None,
    ) -> Prediction:  # fmt: skip
        """Combine `compute` and `exposed` seconds with the other parts of a step of `ranks` ranks.

        Args:
            marks: of computation and links, measured, extrapolated or assumed; (): as predicted for `ranks`.
            rows: rows that a rank computes; None: its slice.
            small: seconds of the other collectives; None: as predicted.
            waits_for_slowest: whether ranks wait for the slowest one in each step.
            min_exposed: `exposed` in the best case; None: the same.
        """
        plan = self.plan
        rows = count_slice_rows(plan, ranks) if rows is None else rows
        small = self._estimate_small(ranks) if small is None else small
        min_exposed = exposed if min_exposed is None else min_exposed
        slowest_factor, slowest_rare_factor = self.compute.estimate_slowest(ranks) if waits_for_slowest else (1.0, 1.0)
        waiting = compute * (slowest_factor - 1)
        step = compute + exposed + small + waiting
        compute_mark, link_mark = marks or (self.compute.find_mark(ranks), self.links.find_mark(ranks))
        # Communication may take 1/1.1 to 1.1 times the prediction if all is measured, and 1/1.5 to 1.5 times otherwise.
        uncertainty = 1.1 if compute_mark == link_mark == MEASURED else 1.5
        busy_share = self.compute.find_busy_share(ranks)  # the load by other processes may change
        low = compute * (1 - busy_share) + (min_exposed + small) / uncertainty
        high = compute * slowest_rare_factor * (1 + busy_share) + (exposed + small) * uncertainty
        batches = ranks if plan.scaling == "weak" else 1  # batches that all ranks together train in a step
        alone_seconds, alone_mark = self.compute.estimate_alone(ranks)
        return Prediction(
            ranks=ranks, hosts=ceil(ranks / plan.ranks_per_host), rows=rows, compute=compute, exposed=exposed,
            small=small, waiting=waiting, step=step, low=min(low, step), high=max(high, step),
            rows_a_second=batches * plan.rows / step, efficiency=batches * alone_seconds / (ranks * step),
            memory=self.compute.estimate_memory_of_rows(rows),
            algorithm=algorithm, overlapped=overlapped, compute_mark=compute_mark, link_mark=link_mark,
            alone_mark=alone_mark, input=self.compute.estimate_input(ranks),
        )  # fmt: skip

    def _estimate_small(self, ranks: int) -> float:
        sizes = self.compute.estimate_collective_bytes(ranks)
        kinds = [collective.kind for collective in self.plan.collectives]
        return sum(self.links.estimate_small(ranks, size, kind) for kind, size in zip(kinds, sizes))

    def estimate_slowdown(self, ranks: int, size: float) -> float:
        """The factor by which sums of `size` bytes slow down a rank's computation. They use idle cores first."""
        cores, compute = max(1, self.plan.cores // self.plan.ranks_per_host), self.compute.estimate_seconds(ranks)
        idle_core_seconds = self.compute.count_idle_cores(ranks, cores) * compute
        transfer_core_seconds = size * self.links.cpu_per_byte
        return 1 + max(transfer_core_seconds - idle_core_seconds, 0.0) / cores / compute

    def _predict_sums(self, ranks: int, squeeze: float) -> list[_Sums]:
        """The sums of gradients by each algorithm: after the computation and, where possible, overlapped with it."""
        links = self.links
        sizes = [gradient.bytes * squeeze for gradient in self.plan.gradients]
        total_bytes = sum(sizes)
        compute, slowdown = self.compute.estimate_seconds(ranks), self.estimate_slowdown(ranks, total_bytes)
        ready_times = [slowdown * time for time in self.compute.estimate_ready_times(ranks)]
        joined = buckets.join_neighbours(ready_times, sizes)
        candidates = []
        for algorithm in (SHARED_MEMORY,) if ranks <= links.per_host else collectives.EXACT:
            one_sum_seconds = links.estimate_small(ranks, 0) + links.estimate_sum(ranks, algorithm, total_bytes)
            candidates.append(_Sums(compute + one_sum_seconds, algorithm, overlaps=False))
            # On one host, sums use the computing cores, so they cannot be hidden.
            if self.plan.overlaps and ranks > links.per_host:
                price = buckets.sample_price(functools.partial(links.estimate_bucket, ranks, algorithm), total_bytes)
                end = buckets.compute_plan_end(buckets.find_best_plan(*joined, price), *joined, price)
                candidates.append(_Sums(max(end, slowdown * compute), algorithm, overlaps=True))
        return candidates
