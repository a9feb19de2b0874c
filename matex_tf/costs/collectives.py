"""Closed-form costs of collectives, by algorithm, for the planner, `auto` strategies and `servers:auto`.

A message of s bytes takes `link.estimate_message(s)` seconds: for a `Link`, start_up + s * byte. An addition of two
arrays of s bytes takes s * ADDITION seconds. The cost of a collective is the sum over its rounds, as in Thakur,
Rabenseifner and Gropp (Optimization of collective communication operations in MPICH, 2005, section 4.5). For example, a
ring of 4 ranks sums 8 MB in 2 * 3 rounds: each rank sends 6 messages of 2 MB, and adds 3/4 of 8 MB.

MPI_Allreduce uses recursive doubling for few bytes and halving for many bytes. `estimate_flat` is its sum of many
bytes, for gradients, `estimate_sum_of_mpi` its sum of any size, for other collectives (`planner.predict`).

In all functions `size` is the bytes of one rank's data, `per_host` the number of ranks on a full host, `network` the
link between hosts, and `memory` the link within a host. Links are idle. Ranks are numbered host by host; the ranks of a
host share its adapter, which is full duplex. Results are in seconds, and 0 for one rank.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Sequence
from math import ceil, inf, log2
from typing import NamedTuple, Protocol

CHUNK = 8 << 20
"""Bytes in a chunk of a sum between hosts, the default of MATEX_CHUNK_BYTES."""
CHUNK_WITHIN_HOST = 1 << 20
"""Bytes in a chunk of a sum within a host, for `planner`."""
MPI_ONLY_BYTES = 64 << 10
"""Sums of fewer bytes between hosts always use MPI_Allreduce (ops/src/engine/sums/allreduce.cc); for `planner`."""
SHORT_GATHER = 512 << 10
"""Results of at most this many bytes may be gathered by recursive doubling, larger ones in a ring (section 4.1)."""
RENDEZVOUS_BYTES = 48
"""Bytes that ranks sum in the rendezvous, by which they compare their next collective before data move."""


class AnyLink(Protocol):
    """The link between hosts, or within a host."""

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
        self.seconds = list(itertools.accumulate(seconds, max))

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
"""Links between hosts by name: seconds to start a message, and seconds for each byte (8 bits over bits a second)."""
MEMORY = Link(0.5e-6, 1 / 8e9)
"""The assumed link within a host: 8 GB/s for each rank."""
ADDITION = 1 / 5e9
"""Seconds to add one byte: 5 GB/s, assumed."""


def subtract_addition(seconds: float, size: float) -> float:
    """Seconds of a message, from the `seconds` of a message and an addition of `size` bytes.

    `ADDITION` is assumed, and may exceed `seconds`. But data never travel for free: at least half is the message.
    """
    return max(seconds - size * ADDITION, seconds / 2)


def fit_link(start_up: float, byte: float, hosts: int) -> Link:
    """The link between several hosts, from a small sum over them of `start_up` seconds, and `byte` seconds for each
    further byte of a sum.

    A small sum takes ceil(log2(hosts)) rounds. In a large sum, a host sends 2 (hosts - 1) / hosts of the bytes, and
    adds all of them.
    """
    return Link(start_up / ceil(log2(hosts)), subtract_addition(byte, 1) * hosts / (2 * (hosts - 1)))


def parse_network(text: str) -> Link:
    """Parse the link between hosts, a name or START_UP:BYTES (seconds, bytes a second).

    Raises:
        ValueError: `text` is neither.
    """
    if text in NETWORKS:
        return NETWORKS[text]
    start_up, _, speed = text.partition(":")
    with contextlib.suppress(ValueError, ZeroDivisionError):
        link = Link(float(start_up), 1 / float(speed))
        if 0 <= link.start_up < inf and 0 < link.byte < inf:
            return link
    raise ValueError(
        f"expected one of {', '.join(NETWORKS)}, or START_UP:BYTES such as 20e-6:3e9 (seconds to start a message, "
        f"bytes a second); {text!r} was given"
    )


def estimate_chunks(estimate_sum: Callable[[float], float], max_bytes: int, size: float) -> float:
    """Seconds of a sum of `size` bytes in equal chunks of at most `max_bytes`. `estimate_sum` estimates one chunk."""
    chunks = max(1, ceil(size / max_bytes))
    return chunks * estimate_sum(size / chunks)


def _divide_ranks(ranks: int, per_host: int) -> tuple[int, int]:
    """(ranks on a full host, hosts)."""
    host_ranks = min(per_host, ranks)
    return host_ranks, ceil(ranks / host_ranks)


# Sums over ranks that are all connected by the same link


def estimate_recursive_doubling(ranks: int, size: float, link: AnyLink) -> float:
    """A sum by recursive doubling: in each of log2(ranks) rounds, pairs of ranks exchange and add all data."""
    return ceil(log2(ranks)) * (link.estimate_message(size) + size * ADDITION)


def estimate_halving(ranks: int, size: float, link: AnyLink) -> float:
    """Rabenseifner's algorithm: reduce-scatter by recursive halving, then allgather by recursive doubling.

    Each half has log2(ranks) rounds. They send 1/2, 1/4, ... of the data, together (ranks - 1) / ranks. Each round is
    estimated with their mean size. Only the reduce-scatter adds.
    """
    if ranks == 1:
        return 0.0
    sent_bytes, rounds = (ranks - 1) / ranks * size, ceil(log2(ranks))
    return 2 * rounds * link.estimate_message(sent_bytes / rounds) + sent_bytes * ADDITION


def estimate_ring(ranks: int, size: float, link: AnyLink) -> float:
    """Reduce-scatter, then allgather, both in a ring of messages of 1 / ranks of the data (Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).
    """
    added_bytes = (ranks - 1) / ranks * size
    return 2 * (ranks - 1) * link.estimate_message(size / ranks) + added_bytes * ADDITION


def estimate_shared_memory(ranks: int, size: float, memory: AnyLink) -> float:
    """A sum on one host, as in ops/src/engine/sums/shared_memory.h. Sums over several hosts do not use it.

    Each rank writes its data to shared memory (`size`), reads its slice of all ranks' data (`size`), writes the sums of
    the slice (`size` / `ranks`), and reads all sums (`size`). Of two ranks, each writes its data (`size`), and then
    reads and sums the data of both (2 * `size`).
    """
    if ranks == 1:
        return 0.0
    moved_bytes = 3 * size if ranks == 2 else (3 + 1 / ranks) * size
    return estimate_barriers_in_memory(ranks, memory) + memory.estimate_message(moved_bytes) + size * ADDITION


def estimate_barriers_in_memory(ranks: int, memory: AnyLink) -> float:
    """The two barriers of a host's ranks: after writing to shared memory, and before its reuse."""
    return 2 * ceil(log2(ranks)) * memory.estimate_message(0)


# Sums over ranks on several hosts


def estimate_flat(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """MPI_Allreduce of many bytes: halving within each host, then between hosts.

    After the rounds within a host, each of its ranks has 1 / per_host of the data. All of them send at the same time
    through the host's adapter, so together they take as long as one rank that sends all data. Their additions are
    charged in the same way, although the ranks add at the same time.
    """
    host_ranks, hosts = _divide_ranks(ranks, per_host)
    return estimate_halving(host_ranks, size, memory) + estimate_halving(hosts, size, network)


def estimate_flat_ring(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """A ring over all ranks: each round takes as long as its slowest message."""
    links = (network, memory) if ranks > per_host else (memory,)  # the links that the ring crosses
    return estimate_ring(ranks, size, max(links, key=lambda link: link.estimate_message(size / ranks)))


def estimate_two_levels(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """Halving by MPI within hosts (ops/src/engine/sums/hierarchical.h), then for each slice a ring of hosts; the slices
    of a host share its adapter. Additions are charged as in `estimate_flat`.
    """
    host_ranks, hosts = _divide_ranks(ranks, per_host)
    return estimate_halving(host_ranks, size, memory) + estimate_ring(hosts, size, network)


def estimate_16_bits(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """Two levels, with half of the bytes between hosts: each host owns a slice of 1 / hosts of the data. It sends the
    other hosts their slices, adds the hosts - 1 slices that it receives, and sends the sums back.
    """
    host_ranks, hosts = _divide_ranks(ranks, per_host)
    sent_seconds = 2 * (hosts - 1) * network.estimate_message(size / hosts / 2)
    added_bytes = (hosts - 1) / hosts * size
    return estimate_halving(host_ranks, size, memory) + sent_seconds + added_bytes * ADDITION


def estimate_topk(
    ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY, share: float = 0.01
) -> float:
    """Two levels; each host gathers the largest entries of all hosts, the fraction `share` of each host's entries.

    An entry is sent as an index and a value, so the entries of a host are 2 * share * size bytes. Recursive doubling
    over hosts gathers the entries of the hosts - 1 others in log2(hosts) rounds, each estimated with the mean size.
    """
    host_ranks, hosts = _divide_ranks(ranks, per_host)
    seconds_within_hosts = estimate_halving(host_ranks, size, memory)
    if hosts == 1:
        return seconds_within_hosts
    gathered_bytes, rounds = (hosts - 1) * 2 * share * size, ceil(log2(hosts))
    return seconds_within_hosts + rounds * network.estimate_message(gathered_bytes / rounds) + gathered_bytes * ADDITION


def estimate_sum_of_mpi(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """MPI_Allreduce of any size: the faster of recursive doubling and halving."""
    host_ranks, hosts = _divide_ranks(ranks, per_host)
    doubling = estimate_recursive_doubling(host_ranks, size, memory) + estimate_recursive_doubling(hosts, size, network)
    return min(doubling, estimate_flat(ranks, per_host, size, network, memory))


# Other collectives


def estimate_allgather(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """Gather `size` bytes of each rank on every rank: in a ring, or for few bytes by recursive doubling."""
    host_ranks, hosts = _divide_ranks(ranks, per_host)
    links = (network, memory) if hosts > 1 else (memory,)
    # Each round of a ring takes as long as its slowest message.
    ring = (ranks - 1) * max(link.estimate_message(size) for link in links)
    if ranks * size > SHORT_GATHER:
        return ring
    # Between hosts each of the `host_ranks` ranks of a host sends the data of the whole host, through the same adapter.
    sent_by_host = host_ranks * host_ranks * size
    doubling = _estimate_doubling_gather(host_ranks, size, memory) + _estimate_doubling_gather(
        hosts, sent_by_host, network
    )
    return min(doubling, ring)


def _estimate_doubling_gather(members: int, size: float, link: AnyLink) -> float:
    """Gather `size` bytes of each of `members` by recursive doubling: in round k, each sends the data of 2**k members,
    or in the last round the data of the members - 2**k members that the partner still lacks.
    """
    counts = (min(1 << k, members - (1 << k)) for k in range(ceil(log2(members))))
    return sum(link.estimate_message(count * size) for count in counts)


def estimate_broadcast(ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """Send `size` bytes of one rank to every rank: along a tree, or by scatter (as half of `estimate_halving`) and
    allgather.
    """
    if ranks == 1:
        return 0.0
    host_ranks, hosts = _divide_ranks(ranks, per_host)
    tree = ceil(log2(hosts)) * network.estimate_message(size) + ceil(log2(host_ranks)) * memory.estimate_message(size)
    link, rounds = (network if hosts > 1 else memory), ceil(log2(ranks))
    scatter = rounds * link.estimate_message((ranks - 1) / ranks * size / rounds)
    return min(tree, scatter + estimate_allgather(ranks, per_host, size / ranks, network, memory))


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


def estimate_rendezvous(ranks: int, per_host: int, network: AnyLink, memory: AnyLink = MEMORY) -> float:
    """The rendezvous of all ranks before each collective: a small sum. On several hosts, all rounds count as rounds
    between hosts.
    """
    return estimate_recursive_doubling(ranks, RENDEZVOUS_BYTES, network if ranks > per_host else memory)


def estimate_sum(
    algorithm: str, ranks: int, per_host: int, size: float, network: AnyLink, memory: AnyLink = MEMORY
) -> float:
    """Seconds to sum gradients of `size` bytes in chunks, including one rendezvous before the first chunk."""

    def estimate_chunk(chunk: float) -> float:
        return ALGORITHMS[algorithm](ranks, per_host, chunk, network, memory)

    return estimate_rendezvous(ranks, per_host, network, memory) + estimate_chunks(estimate_chunk, CHUNK, size)
