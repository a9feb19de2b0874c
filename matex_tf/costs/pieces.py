"""Closed-form costs of an update in pieces (`MATEX_STRATEGY=sharded` and `servers:S`), in the units of `collectives`.

In all functions `owners` is the number of ranks that own a piece of the weights; the other ranks wait until the owners
have updated them. `size` is the bytes of all weights or of their gradients. `servers.pieces` chooses the number of
owners by `Hosts.estimate_step`; the planner calls the other functions itself.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from matex_tf.costs import collectives
from matex_tf.costs.collectives import ADDITION, MEMORY, AnyLink, Link

UPDATE_END = "the end of an optimizer's update"
"""The name of the barrier by which measured ranks mark the end of an update for `matex plan`."""
ASSUMED_NETWORK = "ethernet25"
"""The assumed network between hosts if none was measured, a name of `collectives.NETWORKS`."""
WEIGHT_BYTES = 1 << 20
"""The largest message of new weights from one rank if updates overlap (ops/src/tensorflow/weights/pieces.cc)."""


def estimate_gradient_pieces(ranks: int, owners: int, size: float, memory: AnyLink) -> float:
    """Within a host: each rank writes its gradients to shared memory, and each owner sums its piece over all ranks."""
    if ranks == 1:
        return 0.0
    piece = size / owners
    # A rank writes `size`; an owner reads a piece of each rank.
    move_seconds = memory.estimate_message(size + ranks * piece)
    return collectives.estimate_barriers_in_memory(ranks, memory) + move_seconds + (ranks - 1) * piece * ADDITION


def estimate_publishing_in_memory(ranks: int, owners: int, size: float, memory: AnyLink) -> float:
    """Within a host: each rank copies the new weights of other owners from shared memory."""
    if ranks == 1:
        return 0.0
    # The slowest rank counts. If all ranks are owners, each lacks the pieces of the others; a rank that owns nothing
    # copies all weights.
    copied_bytes = size - size / owners if owners == ranks else size
    return collectives.estimate_barriers_in_memory(ranks, memory) + memory.estimate_message(copied_bytes)


def estimate_pieces_by_messages(
    ranks: int, per_host: int, owners: int, size: float, network: AnyLink, memory: AnyLink,
    max_bytes: int = collectives.CHUNK,
) -> float:  # fmt: skip
    """Between hosts: gradients to their owners, or new weights from their owners.

    A ring sums pieces in its first half, and gathers them in its second half. Each direction is such a half: over all
    ranks, or on each of two levels. The data are divided into chunks of at most `max_bytes`.
    """
    if ranks == 1:
        return 0.0
    piece_bytes, chunks = size / owners, max(1, ceil(size / max_bytes))
    hosts = ceil(ranks / per_host)
    links = (network, memory) if hosts > 1 else (memory,)
    # Each of the ranks - 1 rounds takes as long as its slowest message.
    one_level_seconds = (ranks - 1) * max(link.estimate_message(piece_bytes / chunks) for link in links)
    has_equal_hosts = ranks % per_host == 0  # otherwise hosts divide the data into different shares
    if hosts == 1 or per_host == 1 or not has_equal_hosts:
        return chunks * one_level_seconds
    # Two levels: first the ranks of each host divide the data among themselves. Then they send between hosts, through
    # one adapter: to each other host the pieces that it owns, at most ceil(owners / hosts).
    seconds_within_hosts = (per_host - 1) * memory.estimate_message(size / per_host / chunks)
    seconds_between_hosts = (hosts - 1) * network.estimate_message(ceil(owners / hosts) * piece_bytes / chunks)
    return chunks * min(one_level_seconds, seconds_within_hosts + seconds_between_hosts)


def estimate_update(owners: int, weights: float, slots: float, memory: AnyLink) -> float:
    """An optimizer's update of a piece, if it was not measured: its memory traffic.

    It reads the gradients, and reads and writes the weights and the optimizer's variables: 3 * `weights` + 2 * `slots`
    bytes.
    """
    return memory.estimate_message((3 * weights + 2 * slots) / owners)


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run: memory and links. `weights` and `slots` (the optimizer's variables) are in bytes."""

    nodes: Sequence[int]
    """The node of each rank."""
    free: dict[int, float]
    """The free bytes of memory, by node."""
    measured: Link | None = None
    """The link between hosts, if it was measured."""

    @property
    def network(self) -> Link:
        return self.measured or collectives.NETWORKS[ASSUMED_NETWORK]

    def describe_assumptions(self) -> str:
        """Describes the assumptions of the estimates."""
        memory_text = f"{1e-9 / MEMORY.byte:.3g} GB/s of memory for each rank are assumed"
        if len(set(self.nodes)) == 1:
            return memory_text
        network_text = f"{1e-9 / self.network.byte:.3g} GB/s between hosts"
        return f"{memory_text}, and {network_text}, " + ("as measured by an earlier run" if self.measured else "too")

    @functools.cached_property
    def per_host(self) -> int:
        return max(Counter(self.nodes).values())

    def estimate_step(self, owners: int, weights: float, slots: float) -> float:
        """Seconds of a step for sums of gradients (as large as the weights), update and new weights."""
        ranks = len(self.nodes)
        update_seconds = estimate_update(owners, weights, slots, MEMORY)
        if len(set(self.nodes)) == 1:
            sum_seconds = estimate_gradient_pieces(ranks, owners, weights, MEMORY)
            return sum_seconds + update_seconds + estimate_publishing_in_memory(ranks, owners, weights, MEMORY)
        # Gradients to owners, and new weights from owners, take equally long.
        message_seconds = estimate_pieces_by_messages(ranks, self.per_host, owners, weights, self.network, MEMORY)
        return message_seconds + update_seconds + message_seconds

    def estimate_whole_step(self, weights: float, slots: float) -> float:
        """The same if every rank updates all weights (allreduce), for comparison with `estimate_step`."""
        ranks = len(self.nodes)
        update_seconds = estimate_update(1, weights, slots, MEMORY)
        if len(set(self.nodes)) == 1:
            return collectives.estimate_shared_memory(ranks, weights, MEMORY) + update_seconds
        links = self.network, MEMORY
        sum_seconds = (
            collectives.estimate_sum(algorithm, ranks, self.per_host, weights, *links)
            for algorithm in collectives.EXACT
        )
        return min(sum_seconds) + update_seconds

    def can_hold(self, owners: Sequence[int], slots: float) -> bool:
        """Whether each node has enough free memory for the pieces of its `owners` (ranks), which together take `slots`
        bytes.
        """
        owner_counts = Counter(self.nodes[rank] for rank in owners)
        return all(owner_counts[node] * slots / len(owners) <= free_bytes for node, free_bytes in self.free.items())
