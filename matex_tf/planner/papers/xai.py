"""The number of parameter servers: XAI (Salama, Linke, Pessoa Rocha and Binnig, DATA 2019), sections 4.2.1 and 4.2.2.

Symbols: n workers, m of which transfer at once; T seconds of a batch on one worker, with T_t seconds of transfer and
P_t = T_t / T; BW_w bytes/s that one worker can send; BW_ps bytes/s that one server sustains. The equations:

    2, 3, 4   P_t(n, m) = C(n, m) P_t^m for m > 1, and P_t(n, 1) = 1 - P_t(n, 2) - ... - P_t(n, n)
    5         E_BW(n) = BW_w (1 P_t(n, 1) + 2 P_t(n, 2) + ... + n P_t(n, n))
    6         PS(n) = E_BW(n) / BW_ps

The paper calls P_t(n, m) the probability that m workers transfer at once. It is no probability: the factor
(1 - P_t)^(n - m) is missing, and P_t(n, 1) may be negative.
"""

from __future__ import annotations

import math

from matex_tf import arguments
from matex_tf.planner.papers.domain import Estimate, check_positive


def transfer_share(transfer: float, batch: float) -> float:
    """P_t = T_t / T, equation 1: the fraction of the time in which a worker transfers."""
    check_positive("transfer_share", batch=batch)
    if not 0 <= transfer <= batch:
        raise ValueError(f"transfer_share: expected a transfer from 0 to {batch} s; given {transfer}")
    return transfer / batch


def explain_outside(workers: int, share: float) -> str:
    """The reason why equations 2 to 6 do not hold (end of 4.2.2); "" if T_t < T / (n - 1), or for one worker.

    Outside of this domain use `queueing.find_least_servers`.
    """
    if workers > 1 and share >= 1 / (workers - 1):
        return f"T_t/T is {share:.3g}, and has to be below 1/{workers - 1}"
    return ""


def expected_bandwidth_closed(workers: int, share: float) -> float:
    """E_BW(n) / BW_w, equation 5 in closed form (not in the paper); `share` is P_t.

    At the edge of the domain, P_t = 1 / (n - 1), its value is 2 for every n. So within the domain XAI never requires
    more than 2 BW_w / BW_ps servers. Outside of it, with many workers, its value may exceed the range of floats:
    infinity.
    """
    workers = arguments.check_whole_number("expected_bandwidth_closed", "workers", workers)
    if not 0 <= share <= 1:
        raise ValueError(f"expected_bandwidth_closed: expected P_t from 0 to 1; given {share}")
    try:
        power = (1 + share) ** (workers - 1)
    except OverflowError:
        return math.inf
    return power * (workers * share - 1 - share) + 2


def servers(workers: int, share: float, ratio: float = 1.0) -> Estimate:
    """PS(n) for asynchronous updates, equation 6, rounded up; `ratio` is BW_ps / BW_w."""
    check_positive("servers", ratio=ratio)
    server_count = expected_bandwidth_closed(workers, share) / ratio
    if server_count < math.inf:
        # Errors in the last digits are not rounded up.
        server_count = max(1, math.ceil(server_count - 1e-9 * abs(server_count)))
    return Estimate(server_count, explain_outside(workers, share))
