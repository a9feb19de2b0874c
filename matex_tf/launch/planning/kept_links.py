"""Completes a plan with the cost of the network between hosts, as an earlier run measured it.

A plan is the forecast of `matex plan`: what a script costs on N ranks. The command times sums between hosts only if it
is given two hosts on which it can start ranks. Training runs time such sums, too, and store the result in the cache
folder (`observe.link_costs`).
"""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.costs.collectives import ADDITION, fit_link
from matex_tf.observe import link_costs
from matex_tf.observe.link_costs import PROBED
from matex_tf.planner.plan_file import ALL_RANKS, TWO_HOSTS, LinkMeasurement


def add_kept_links(
    measured_links: Sequence[LinkMeasurement], hosts: Sequence[str], is_network_named: bool
) -> tuple[LinkMeasurement, ...]:
    """`measured_links`, with the newest stored link between hosts if `matex plan` measured no link between hosts.

    A stored link within one host is not used. Training runs time the sums of overlapped updates, which use no shared
    memory, while the plan estimates sums within a host in shared memory.

    Args:
        measured_links: the links that `matex plan` has measured now.
        hosts: a stored link must include these hosts. If empty, a link between any hosts will do.
        is_network_named: the user named the network between hosts.
    """
    # The scopes of links between hosts: one rank on each of two hosts, or all their ranks.
    if is_network_named or {link.scope for link in measured_links} & {TWO_HOSTS, ALL_RANKS}:
        return tuple(measured_links)
    # `list_links` lists the newest link first.
    stored_links = (
        link for link in link_costs.list_links() if not link.disturbed and link.byte > 0 and len(link.hosts) > 1
    )
    newest_link = next((link for link in stored_links if set(hosts) <= set(link.hosts)), None)
    return (*measured_links, _describe_sums(newest_link)) if newest_link is not None else tuple(measured_links)


def _describe_sums(link: link_costs.Link) -> LinkMeasurement:
    """Sums between two hosts, estimated from `link`, which was measured on two or more hosts.

    They take one round: a message and an addition of all bytes, from which `subtract_addition` gives the message.
    """
    small, large = PROBED  # bytes of the two sums that measured the link
    ranks, hosts = sum(link.hosts.values()), len(link.hosts)
    network = fit_link(link.start_up, link.byte, hosts)
    byte_seconds = min(network.byte + ADDITION, 2 * network.byte)
    seconds = network.start_up, network.start_up + (large - small) * byte_seconds
    # `ranks` stays the number of the measurement: for more ranks, the plan does not count on MPI's own algorithm
    # (`is_mpi_known` in planner/predict.py). The stored link has one time for each size, which serves for
    # inline and for overlapped sums (`seconds` and `asleep`), and no core seconds.
    return LinkMeasurement(
        scope=TWO_HOSTS if ranks == hosts else ALL_RANKS, ranks=ranks, hosts=2, bytes=PROBED, seconds=seconds,
        asleep=seconds, cpu_per_byte=0.0, kept=str(link),
    )  # fmt: skip
