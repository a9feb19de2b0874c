"""The number of parameter servers: XAI (Salama, Linke, Pessoa Rocha and Binnig, DATA 2019), sections 4.2.1 and 4.2.2.

Symbols: n workers, m of which transfer at once; T seconds of a batch on one worker, with T_t seconds of transfer and
P_t = T_t / T; BW_w bytes/s that one worker can send; BW_ps bytes/s that one server sustains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matex_tf import arguments
from matex_tf.planner.papers.domain import Estimate, check_positive


@dataclass(frozen=True)
class Calibration:
    """The results of three short trials (4.2.1): seconds of a batch, and bytes a second.

    `alone`: T_fp + T_bp, one worker without servers. `batch`: T, one worker with as many servers as it can load.
    """

    alone: float
    batch: float
    worker_bandwidth: float
    server_bandwidth: float

    def __post_init__(self) -> None:
        check_positive("calibration", **vars(self))
        if self.batch < self.alone:
            raise ValueError(
                f"calibration: a batch with servers ({self.batch} s) is shorter than one without ({self.alone} s): "
                "repeat both trials, with more batches"
            )

    @property
    def transfer(self) -> float:
        """T_t, in seconds."""
        return self.batch - self.alone

    @property
    def share(self) -> float:
        """P_t, equation 1."""
        return transfer_share(self.transfer, self.batch)


def transfer_share(transfer: float, batch: float) -> float:
    """P_t = T_t / T, equation 1: the fraction of the time in which a worker transfers."""
    check_positive("transfer_share", batch=batch)
    if not 0 <= transfer <= batch:
        raise ValueError(f"transfer_share: expected a transfer from 0 to {batch} s; given {transfer}")
    return transfer / batch


def sending(workers: int, at_once: int, share: float) -> float:
    """P_t(n, m), equations 2 (m = 2), 3 (m > 1) and 4 (m = 1): XAI's probability that m of n workers send at once.

    It is not a probability: the factor (1 - P_t)^(n - m) is missing, and the value for m = 1 may be negative.
    """
    workers = arguments.check_whole_number("sending", "workers", workers)
    at_once = arguments.check_whole_number("sending", "at_once", at_once)
    _check_share("sending", share)
    if at_once > workers:
        raise ValueError(f"sending: expected at most {workers} workers to send at once; given {at_once}")
    if at_once > 1:
        return math.comb(workers, at_once) * share**at_once
    return 1 - math.fsum(sending(workers, m, share) for m in range(2, workers + 1))


def explain_outside(workers: int, share: float) -> str:
    """The reason why equations 2 to 6 do not hold (end of 4.2.2); "" if T_t < T / (n - 1), or for one worker.

    Outside of the domain use `queueing.find_least_servers`.
    """
    if workers > 1 and share >= 1 / (workers - 1):
        return f"T_t/T is {share:.3g}, and has to be below 1/{workers - 1}"
    return ""


def expected_bandwidth(workers: int, share: float, worker_bandwidth: float) -> Estimate:
    """E_BW(n), equation 5, in the unit of `worker_bandwidth`, summed as printed."""
    check_positive("expected_bandwidth", worker_bandwidth=worker_bandwidth)
    total = math.fsum(m * sending(workers, m, share) for m in range(1, workers + 1))
    return Estimate(total * worker_bandwidth, explain_outside(workers, share))


def expected_bandwidth_closed(workers: int, share: float) -> float:
    """E_BW(n) / BW_w in closed form (not in the paper): the sum of equation 5 for any number of workers.

    At the edge of the domain, P_t = 1 / (n - 1), it is 2 for every n: within the domain XAI never requires more than 2
    BW_w / BW_ps servers.
    """
    workers = arguments.check_whole_number("expected_bandwidth_closed", "workers", workers)
    _check_share("expected_bandwidth_closed", share)
    power = (1 + share) ** (workers - 1)
    return workers * share * (power - 1) + 1 - (power * (1 + share) - 1 - workers * share)


def servers(workers: int, share: float, ratio: float = 1.0) -> Estimate:
    """PS(n) for asynchronous updates, equation 6, rounded up; `ratio` is BW_ps / BW_w."""
    check_positive("servers", ratio=ratio)
    return Estimate(_round_up(expected_bandwidth_closed(workers, share) / ratio), explain_outside(workers, share))


def servers_synchronous(workers: int, ratio: float = 1.0) -> int:
    """n BW_w / BW_ps (4.2.2): all workers transfer at once."""
    check_positive("servers_synchronous", ratio=ratio)
    return _round_up(arguments.check_whole_number("servers_synchronous", "workers", workers) / ratio)


def servers_without_collisions(ratio: float = 1.0) -> int:
    """BW_w / BW_ps (4.2.2): no two workers ever transfer at once."""
    check_positive("servers_without_collisions", ratio=ratio)
    return _round_up(1 / ratio)


def shares_by_layer(parameters: Sequence[int], servers: int) -> list[float]:
    """The fraction of all parameters on each server, if complete layers are assigned cyclically (7.3, Fig. 9 above).

    Divided by size, each server has 1 / servers (Fig. 9 below).
    """
    servers = arguments.check_whole_number("shares_by_layer", "servers", servers)
    parameters_by_server = [sum(parameters[server::servers]) for server in range(servers)]
    check_positive("shares_by_layer", parameters=sum(parameters_by_server))
    return [count / sum(parameters_by_server) for count in parameters_by_server]


def _round_up(count: float) -> int:
    """Round up, tolerating errors in the last digits; at least one server."""
    return max(1, math.ceil(count - 1e-9 * abs(count)))


def _check_share(where: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"{where}: expected P_t from 0 to 1; given {share}")
