"""Exact model of workers that compute and exchange parameters with servers, as a closed queueing network.

Each worker alternates between a computation and a transfer. Workers slow each other down only where their transfers
share the servers. `matex simulate --servers` compares the model with the formulas of papers.
"""

from __future__ import annotations

import bisect
import math
import sys

from matex_tf import arguments


def compute_throughput(workers: int, servers: int, compute: float, transfer: float, share: float = 1.0) -> float:
    """Steps a second of all `workers` together.

    Computation is a delay station, transfer a processor-sharing station. Such a network has a product form: its
    throughput depends only on the mean times, not on their distributions (Baskett, Chandy, Muntz and Palacios, JACM
    1975). The probability that k workers transfer is in proportion to the product of arrival rate over departure rate,
    ((workers - j + 1) / compute) / rate_j, over j = 1 to k.

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
    # For each number of transferring workers: the number of transfers that end in a second.
    rates = [min(transferring, servers * share) / transfer for transferring in range(workers + 1)]
    log_weights = [0.0]  # logarithms of the probabilities, up to a constant: products for many workers would overflow
    for transferring in range(1, workers + 1):
        log_weights.append(log_weights[-1] + math.log((workers - transferring + 1) / compute / rates[transferring]))
    largest_log = max(log_weights)
    weights = [math.exp(log_weight - largest_log) for log_weight in log_weights]
    return sum(weight * rate for weight, rate in zip(weights, rates)) / sum(weights)


def compute_efficiency(workers: int, servers: int, compute: float, transfer: float, share: float = 1.0) -> float:
    """`compute_throughput` relative to workers that never share servers: n / (compute + transfer)."""
    return compute_throughput(workers, servers, compute, transfer, share) * (compute + transfer) / workers


def find_least_servers(workers: int, compute: float, transfer: float, share: float = 1.0, target: float = 0.95) -> int:
    """The fewest servers with which `compute_efficiency` is at least `target` (above 0, below 1).

    Each target is reached: with `workers` / `share` servers or more, workers never share servers.
    """
    if not 0 < target < 1:
        raise ValueError(f"find_least_servers: expected an efficiency between 0 and 1; given {target}")

    def is_enough(servers: int) -> bool:
        return compute_efficiency(workers, servers, compute, transfer, share) >= target

    if is_enough(1):
        return 1
    if workers / share >= sys.maxsize:
        raise ValueError(
            f"find_least_servers: expected a share above {workers / sys.maxsize:.1e} for {workers} workers; "
            f"given {share}"
        )
    # The efficiency rises with each server. The search ends at the length of the range.
    return bisect.bisect_left(range(math.ceil(workers / share)), True, lo=1, key=is_enough)
