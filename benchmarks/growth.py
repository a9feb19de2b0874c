"""What a step would cost on more ranks than there are here: a model, no measurement.

    python benchmarks/growth.py [--parameters 25.6e6] [--compute 0.25] [--ranks-per-node 16] [--network infiniband]

It counts messages, bytes and additions, as Thakur, Rabenseifner and Gropp do (Optimization of collective
communication operations in MPICH, 2005, section 4.5): a message of n bytes takes `start_up + byte * n`, adding n bytes
`addition * n`.

What it assumes: every link is idle and as fast as every other; a node's ranks share one adapter of the network, which
sends and receives at once, but each has 8 GB/s of the memory for itself; ranks are numbered node by node, so that a
ring crosses each adapter once; no rank is later than another; a rank computes as much with any number of ranks (weak
scaling), two thirds of it in the backward pass, which can hide all sums but the last chunk's. Sums go by the fastest of
the algorithms that change no result; efficiency is computation over overlapped step. What real machines add
(imbalance, contention, noise) grows with ranks, too.
"""

from __future__ import annotations

import argparse
import sys
from math import ceil, log2
from typing import NamedTuple

CHUNK = 8 << 20
"""Bytes that are summed at once between hosts, the default of MATEX_CHUNK_BYTES."""
HIDES = 2 / 3
"""The share of a step's computation that is the backward pass."""


class Link(NamedTuple):
    """Seconds that a message takes to start, and for each byte."""

    start_up: float
    byte: float


NETWORKS = {
    "ethernet1": Link(50e-6, 8 / 1e9),
    "ethernet25": Link(20e-6, 8 / 25e9),
    "infiniband": Link(2e-6, 8 / 200e9),
}
MEMORY = Link(0.5e-6, 1 / 8e9)
ADDITION = 1 / 5e9


def recursive_doubling(ranks: int, size: float, link: Link) -> float:
    """Each rank exchanges all of it with log2(ranks) others: what MPI takes for small sums."""
    return ceil(log2(ranks)) * (link.start_up + size * (link.byte + ADDITION)) if ranks > 1 else 0.0


def halving(ranks: int, size: float, link: Link) -> float:
    """Rabenseifner's: reduce-scatter by recursive halving, allgather by recursive doubling."""
    part = (ranks - 1) / ranks * size
    return 2 * ceil(log2(ranks)) * link.start_up + part * (2 * link.byte + ADDITION) if ranks > 1 else 0.0


def ring(ranks: int, size: float, link: Link) -> float:
    """Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009."""
    part = (ranks - 1) / ranks * size
    return 2 * (ranks - 1) * link.start_up + part * (2 * link.byte + ADDITION)


def flat(ranks: int, per_node: int, size: float, network: Link) -> float:
    """MPI's own sum over all ranks: in all rounds but those within a node, its ranks share the adapter."""
    within = min(per_node, ranks)
    nodes = ceil(ranks / within)
    if nodes == 1:
        return halving(ranks, size, MEMORY)
    # After the rounds within the node each of its ranks has 1 / within of the data, and they send at the same time.
    return halving(within, size, MEMORY) + halving(nodes, size, network)


def flat_ring(ranks: int, per_node: int, size: float, network: Link) -> float:
    """Each round lasts as long as its slowest message."""
    slowest = Link(*map(max, zip(network, MEMORY)))
    return ring(ranks, size, slowest if ranks > per_node else MEMORY)


def two_levels(ranks: int, per_node: int, size: float, network: Link) -> float:
    """Within nodes by halving; of each node's slices, which share its adapter, each by a ring of nodes."""
    within = min(per_node, ranks)
    return halving(within, size, MEMORY) + ring(ceil(ranks / within), size, network)


def in_16_bits(ranks: int, per_node: int, size: float, network: Link) -> float:
    """Two levels, compressed between nodes: each node's slice to its owner and back, by a message to every node."""
    within = min(per_node, ranks)
    nodes = ceil(ranks / within)
    part = (nodes - 1) / nodes * size
    return halving(within, size, MEMORY) + 2 * (nodes - 1) * network.start_up + part * (network.byte + ADDITION)


def largest(ranks: int, per_node: int, size: float, network: Link, share: float = 0.01) -> float:
    """Two levels, between nodes the places and values of `share` of the numbers, which each node gets of all."""
    within = min(per_node, ranks)
    nodes = ceil(ranks / within)
    sent = (nodes - 1) * 2 * share * size
    return halving(within, size, MEMORY) + ceil(log2(nodes)) * network.start_up + sent * (network.byte + ADDITION)


ALGORITHMS = {"mpi": flat, "ring": flat_ring, "two_level": two_levels, "16 bits": in_16_bits, "topk:0.01": largest}
EXACT = ("mpi", "ring", "two_level")


def sum_of(algorithm: str, ranks: int, per_node: int, size: float, network: Link) -> float:
    """Seconds to add up gradients of `size` bytes in chunks, with the meeting of the ranks before it."""
    chunks = max(1, ceil(size / CHUNK))
    meeting = recursive_doubling(ranks, 48, network if ranks > per_node else MEMORY)
    return meeting + chunks * ALGORITHMS[algorithm](ranks, per_node, size / chunks, network)


def step_of(compute: float, communication: float, size: float, overlapped: bool) -> float:
    """Seconds of a step: what the backward pass does not hide of the sums comes on top; the last chunk always does."""
    last = communication / max(1, ceil(size / CHUNK))
    hidden = min(communication - last, HIDES * compute) if overlapped else 0.0
    return compute + communication - hidden


def table(parameters: float, compute: float, per_node: int, network: str, ranks: tuple[int, ...]) -> str:
    """The text of the table."""
    size, link = 4 * parameters, NETWORKS[network]
    lines = [
        (
            f"{network}: {link.start_up * 1e6:.0f} us a message, {1e-9 / link.byte:.2f} GB/s a node, of {per_node} "
            f"ranks; {parameters / 1e6:.1f} M parameters, {compute * 1e3:.0f} ms of computation; ms of a sum, and of a "
            "step"
        ),
        "".join(
            (
                f"{'ranks':>6}",
                *(f"{name:>11}" for name in ALGORITHMS),
                f"{'at once':>14}{'overlapped':>12}{'efficiency':>12}",
            )
        ),
    ]
    for count in ranks:
        took = {name: sum_of(name, count, per_node, size, link) for name in ALGORITHMS}
        best = min(took[name] for name in EXACT)
        steps = [step_of(compute, best, size, overlapped) for overlapped in (False, True)]
        lines.append(
            f"{count:6}" + "".join(f"{seconds * 1e3:11.1f}" for seconds in took.values())
            + f"{steps[0] * 1e3:14.1f}{steps[1] * 1e3:12.1f}{compute / steps[1]:12.0%}"
        )  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=25.6e6, help="default: those of ResNet-50")
    parser.add_argument("--compute", type=float, default=0.25, metavar="SECONDS", help="of a step on one rank")
    parser.add_argument("--ranks-per-node", type=int, default=16)
    parser.add_argument("--network", choices=NETWORKS, nargs="*", default=list(NETWORKS))
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 128, 1024])
    chosen = parser.parse_args()
    for network in chosen.network:
        print(table(chosen.parameters, chosen.compute, chosen.ranks_per_node, network, tuple(chosen.ranks)), "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
