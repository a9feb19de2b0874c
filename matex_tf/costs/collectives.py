"""Closed-form costs of collectives, by algorithm.

Costs are counted as in Thakur, Rabenseifner and Gropp (Optimization of collective communication operations in MPICH,
2005, section 4.5). Sizes are in bytes, results in seconds, and 0 for one rank. In all functions `per_host` is the
number of ranks on a host, `network` the link between hosts, and `memory` the link within a host. The planner, `auto`
strategies and `servers:auto` use these costs.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from math import ceil, log2
from typing import NamedTuple, Protocol

CHUNK = 8 << 20
"""Bytes in a chunk of a sum between hosts, the default of MATEX_CHUNK_BYTES."""
CHUNK_WITHIN_HOST = 1 << 20
FUSED = 64 << 10
"""Sums of fewer bytes always use MPI's own algorithm (ops/src/engine/sums/allreduce.cc)."""
SHORT_GATHER = 512 << 10
"""Results up to this size may be gathered by recursive doubling, larger ones in a ring (section 4.1)."""
MEETING = 48
"""Bytes of the rendezvous before each collective."""


class AnyLink(Protocol):
    """An idle link.

    Ranks are numbered host by host. The ranks of a host share its adapter, which is full duplex.
    """

    def estimate_message(self, size: float) -> float:
        """Seconds of a message of `size` bytes."""


class Link(NamedTuple):
    """A link with constant seconds for each message (`start_up`), and constant seconds for each `byte`."""

    start_up: float
    byte: float

    def estimate_message(self, size: float) -> float:
        return self.start_up + size * self.byte


class MeasuredLink:
    """A link whose messages were timed for some sizes: piecewise linear, extrapolated with the last slope."""

    def __init__(self, sizes: Sequence[float], seconds: Sequence[float]):
        if len(sizes) != len(seconds) or len(sizes) < 2 or list(sizes) != sorted(set(sizes)):
            raise ValueError("expected equally many times and sizes, at least two, and increasing sizes")
        self.sizes = list(sizes)
        # Larger messages are never faster: a decrease is noise.
        self.seconds = [max(seconds[: i + 1]) for i in range(len(seconds))]

    def estimate_message(self, size: float) -> float:
        if size <= self.sizes[0]:
            return self.seconds[0]
        right = min(bisect.bisect_left(self.sizes, size), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[right - 1 : right + 1], self.seconds[right - 1 : right + 1]
        return y0 + (size - x0) * (y1 - y0) / (x1 - x0)


NETWORKS = {
    "ethernet1": Link(50e-6, 8 / 1e9),
    "ethernet10": Link(30e-6, 8 / 10e9),
    "ethernet25": Link(20e-6, 8 / 25e9),
    "infiniband": Link(2e-6, 8 / 200e9),
}
MEMORY = Link(0.5e-6, 1 / 8e9)
ADDITION = 1 / 5e9
"""Seconds to add one byte."""


def parse_network(text: str) -> Link:
    """Parse the link between hosts, a name or START_UP:BYTES (seconds, bytes a second).

    Raises:
        ValueError: `text` is neither.
    """
    if text in NETWORKS:
        return NETWORKS[text]
    start_up, colon, speed = text.partition(":")
    try:
        link = Link(float(start_up), 1 / float(speed))
    except (ValueError, ZeroDivisionError):
        link = Link(-1, 0)
    if not colon or link.start_up < 0 or link.byte <= 0:
        raise ValueError(
            f"expected one of {', '.join(NETWORKS)}, or START_UP:BYTES such as 20e-6:3e9 (seconds to start "
            f"a message, bytes a second); {text!r} was given"
        )
    return link


def estimate_recursive_doubling(ranks: int, size: float, link: AnyLink) -> float:
    """Each rank exchanges all data with log2(ranks) others: MPI's algorithm for small sums."""
    return ceil(log2(ranks)) * (link.estimate_message(size) + size * ADDITION) if ranks > 1 else 0.0


def estimate_halving(ranks: int, size: float, link: AnyLink) -> float:
    """Rabenseifner's algorithm: reduce-scatter by recursive halving, allgather by recursive doubling."""
    if ranks == 1:
        return 0.0
    part, rounds = (ranks - 1) / ranks * size, ceil(log2(ranks))
    return 2 * rounds * link.estimate_message(part / rounds) + part * ADDITION


def estimate_ring(ranks: int, size: float, link: AnyLink) -> float:
    """The ring of Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009."""
    if ranks == 1:
        return 0.0
    part = (ranks - 1) / ranks * size
    return 2 * (ranks - 1) * link.estimate_message(size / ranks) + part * ADDITION


def estimate_shared_memory(ranks: int, size: float, memory: AnyLink) -> float:
    """Within a host, as in ops/src/engine/sums/shared_memory.h: each rank writes its data to shared memory, sums its
    slice over all ranks, and reads the sums. Of two ranks, each sums all data.
    """
    if ranks == 1:
        return 0.0
    moved_bytes = 3 * size if ranks == 2 else (3 + 1 / ranks) * size
    return estimate_meetings_in_memory(ranks, memory) + memory.estimate_message(moved_bytes) + size * ADDITION


def estimate_meetings_in_memory(ranks: int, memory: AnyLink) -> float:
    """The two barriers of a host's ranks: after writing to shared memory, and before its reuse."""
    return 2 * ceil(log2(ranks)) * memory.estimate_message(0)


def estimate_flat(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None) -> float:
    """MPI's own sum over all ranks: in all rounds between hosts, the ranks of a host share the adapter."""
    memory = memory or MEMORY
    within = min(per_host, ranks)
    hosts = ceil(ranks / within)
    if hosts == 1:
        return estimate_halving(ranks, size, memory)
    # After the rounds within the host, each of its ranks has 1/within of the data, and all send concurrently.
    return estimate_halving(within, size, memory) + estimate_halving(hosts, size, network)


def estimate_flat_ring(
    ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None
) -> float:
    """A ring over all ranks: each round lasts as long as its slowest message."""
    memory = memory or MEMORY
    if ranks <= per_host:
        return estimate_ring(ranks, size, memory)
    part = size / ranks
    slowest = max(network, memory, key=lambda link: link.estimate_message(part))
    return estimate_ring(ranks, size, slowest)


def estimate_two_levels(
    ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None
) -> float:
    """Recursive halving within hosts, then a ring of hosts for each slice; the slices of a host share its adapter."""
    within = min(per_host, ranks)
    return estimate_halving(within, size, memory or MEMORY) + estimate_ring(ceil(ranks / within), size, network)


def estimate_16_bits(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None) -> float:
    """Two levels, compressed between hosts: each host's slice to its owner and back, with a message to every host."""
    within = min(per_host, ranks)
    hosts = ceil(ranks / within)
    inside = estimate_halving(within, size, memory or MEMORY)
    if hosts == 1:
        return inside
    part = (hosts - 1) / hosts * size
    return inside + 2 * (hosts - 1) * network.estimate_message(size / hosts / 2) + part * ADDITION


def estimate_topk(
    ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None, share: float = 0.01
) -> float:
    """Two levels; every host gathers the indices and values of the fraction `share` of the entries of each host."""
    within = min(per_host, ranks)
    hosts = ceil(ranks / within)
    inside = estimate_halving(within, size, memory or MEMORY)
    if hosts == 1:
        return inside
    sent, rounds = (hosts - 1) * 2 * share * size, ceil(log2(hosts))
    return inside + rounds * network.estimate_message(sent / rounds) + sent * ADDITION


def estimate_sum_of_mpi(
    ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None
) -> float:
    """One sum over all ranks by MPI: recursive doubling for few bytes, halving for many."""
    memory = memory or MEMORY
    within = min(per_host, ranks)
    doubling = estimate_recursive_doubling(within, size, memory)
    doubling += estimate_recursive_doubling(ceil(ranks / within), size, network)
    return min(doubling, estimate_flat(ranks, per_host, size, network, memory))


def estimate_allgather(
    ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None
) -> float:
    """Gather `size` bytes of each rank on every rank: in a ring, or for few bytes by recursive doubling."""
    memory = memory or MEMORY
    within = min(per_host, ranks)
    hosts = ceil(ranks / within)
    # Each round of a ring lasts as long as its slowest message.
    ring = (ranks - 1) * max(link.estimate_message(size) for link in ((network, memory) if hosts > 1 else (memory,)))
    if ranks * size > SHORT_GATHER:
        return ring
    # After the rounds within the host, each of its ranks has the host's data, and all exchange concurrently.
    doubling = _estimate_doubling_gather(within, size, memory)
    doubling += _estimate_doubling_gather(hosts, within * within * size, network)
    return min(doubling, ring)


def _estimate_doubling_gather(parts: int, size: float, link: AnyLink) -> float:
    """Recursive doubling over `parts` parts of `size` bytes: each exchange doubles a rank's parts."""
    rounds = (min(1 << done, parts - (1 << done)) for done in range(ceil(log2(parts))))
    return sum(link.estimate_message(count * size) for count in rounds)


def estimate_broadcast(
    ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None
) -> float:
    """Send `size` bytes of one rank to every rank: along a tree, or by scatter and allgather."""
    if ranks == 1:
        return 0.0
    memory = memory or MEMORY
    within = min(per_host, ranks)
    hosts = ceil(ranks / within)
    tree = ceil(log2(hosts)) * network.estimate_message(size) + ceil(log2(within)) * memory.estimate_message(size)
    link, rounds = (network, ceil(log2(ranks))) if hosts > 1 else (memory, ceil(log2(within)))
    scattered = rounds * link.estimate_message((ranks - 1) / ranks * size / rounds)
    return min(tree, scattered + estimate_allgather(ranks, per_host, size / ranks, network, memory))


ALGORITHMS = {
    "mpi": estimate_flat,
    "ring": estimate_flat_ring,
    "two_level": estimate_two_levels,
    "16 bits": estimate_16_bits,
    "topk:0.01": estimate_topk,
}
"""Sums by name; each takes ranks, ranks per host, bytes, the link between hosts and optionally the link within one."""
EXACT = ("mpi", "ring", "two_level")
"""The algorithms that do not change results."""


def estimate_meeting(ranks: int, per_host: int, network: AnyLink, memory: AnyLink | None = None) -> float:
    """The rendezvous of all ranks before each collective."""
    return estimate_recursive_doubling(ranks, MEETING, network if ranks > per_host else memory or MEMORY)


def estimate_sum(
    algorithm: str, ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink | None = None
) -> float:
    """Seconds to sum gradients of `size` bytes in chunks, including the rendezvous before it."""
    chunks = max(1, ceil(size / CHUNK))
    chunk_seconds = ALGORITHMS[algorithm](ranks, per_host, size / chunks, network, memory)
    return estimate_meeting(ranks, per_host, network, memory) + chunks * chunk_seconds
