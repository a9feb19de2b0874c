"""Link costs that earlier runs measured and stored (`observe/link_costs.py`), for a plan that cannot measure them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

from matex_tf.costs.collectives import ADDITION
from matex_tf.observe import link_costs
from matex_tf.observe.link_costs import PROBED
from matex_tf.planner.plan_file import ALL_RANKS, TWO_HOSTS, LinkMeasurement


def add_kept_links(
    measured: Sequence[LinkMeasurement], hosts: Sequence[str], is_network_named: bool
) -> tuple[LinkMeasurement, ...]:
    """`measured`, with the newest stored link between hosts if no link between hosts was measured.

    Stored links within a host are not used: runs sum there by other algorithms than the measurement of links.

    Args:
        hosts: the hosts of the network; none: those of the newest run on several hosts.
        is_network_named: the user named the network between hosts.
    """
    if is_network_named or {link.scope for link in measured} & {TWO_HOSTS, ALL_RANKS}:
        return tuple(measured)
    stored = (link for link in link_costs.list_links() if not link.disturbed and link.byte > 0 and len(link.hosts) > 1)
    newest = next((link for link in stored if set(hosts) <= set(link.hosts)), None)
    return (*measured, _describe_sums(newest)) if newest is not None else tuple(measured)


def _describe_sums(link: link_costs.Link) -> LinkMeasurement:
    """The sums of two hosts, over a link with the costs of `link`, which may have been measured on more hosts.

    `link.start_up` is the time of a small sum, which takes log2(hosts) rounds; two hosts need one round. `link.byte`
    is the time for each byte of a large sum. In any algorithm, each host sends 2 (hosts - 1) / hosts of the bytes: for
    two hosts, all bytes once. The addition (`ADDITION`) takes as long on any number of hosts.
    """
    small, large = PROBED  # bytes of the two sums that measured the link
    ranks, hosts = sum(link.hosts.values()), len(link.hosts)
    start_up = link.start_up / ceil(log2(hosts))
    byte = max(link.byte - ADDITION, 0.0) * hosts / (2 * (hosts - 1)) + ADDITION
    seconds = start_up, start_up + (large - small) * byte
    return LinkMeasurement(
        scope=TWO_HOSTS if ranks == hosts else ALL_RANKS, ranks=ranks, hosts=2, bytes=PROBED, seconds=seconds,
        asleep=seconds, cpu_per_byte=0.0, kept=str(link),
    )  # fmt: skip
