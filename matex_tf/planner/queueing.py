"""Exact model of workers that compute and exchange parameters with servers, as a closed queueing network.

`compute_throughput` cites the theorem; `find_least_servers` returns the number of servers for a required efficiency.
"""

from __future__ import annotations

import math

from matex_tf import arguments

MAX_SERVERS = 1 << 20


def compute_throughput(workers: int, servers: int, compute: float, transfer: float, share: float = 1.0) -> float:
    """Steps a second of all `workers` together, which only wait for each other by sharing the servers.

    Each worker computes (a delay station), then transfers (a processor-sharing station). Such a network has a product
    form: its throughput depends only on the mean times, not on their distributions (Baskett, Chandy, Muntz and
    Palacios, JACM 1975).

    Args:
        compute: mean seconds of a step in which a worker does not transfer.
        transfer: seconds of a step's pull and push if a worker has all servers to itself.
        share: the bandwidth of one server over the bandwidth of one worker, BW_ps / BW_w.

    Raises:
        ValueError: a negative time, or both times zero; a `share` that is not positive.
    """
    where = "compute_throughput"
    workers = arguments.check_whole_number(where, "workers", workers)
    servers = arguments.check_whole_number(where, "servers", servers)
    if not (compute >= 0 and transfer >= 0 and 0 < compute + transfer < math.inf and 0 < share < math.inf):
        raise ValueError(
            f"{where}: expected times of 0 s or more, not both 0, and a share above 0; given compute {compute}, "
            f"transfer {transfer}, share {share}"
        )
    if transfer == 0:
        return workers / compute
    if compute == 0:
        return min(workers, servers * share) / transfer
    rates = [min(sending, servers * share) / transfer for sending in range(workers + 1)]
    # The probability that k workers send, up to a factor; in logarithms, because a thousand workers would overflow.
    logs = [0.0]
    for sending in range(1, workers + 1):
        logs.append(logs[-1] + math.log((workers - sending + 1) / compute / rates[sending]))
    largest = max(logs)
    weights = [math.exp(log - largest) for log in logs]
    return sum(weight * rate for weight, rate in zip(weights, rates)) / sum(weights)


def compute_efficiency(workers: int, servers: int, compute: float, transfer: float, share: float = 1.0) -> float:
    """`compute_throughput` relative to workers that never share servers: n / (compute + transfer)."""
    return compute_throughput(workers, servers, compute, transfer, share) * (compute + transfer) / workers


def find_least_servers(workers: int, compute: float, transfer: float, share: float = 1.0, target: float = 0.95) -> int:
    """The fewest servers with which `compute_efficiency` is at least `target` (above 0, below 1)."""
    if not 0 < target < 1:
        raise ValueError(f"find_least_servers: expected an efficiency between 0 and 1; given {target}")
    enough = next(
        servers
        for servers in (1 << power for power in range(MAX_SERVERS.bit_length()))
        if compute_efficiency(workers, servers, compute, transfer, share) >= target
    )
    too_few = enough // 2  # too few; the efficiency rises with each server
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if compute_efficiency(workers, middle, compute, transfer, share) >= target:
            enough = middle
        else:
            too_few = middle
    return enough
