"""What runs before have measured of links (`observe/link_costs.py`), for a plan that cannot measure them."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

from matex_tf.observe import link_costs
from matex_tf.observe.link_costs import PROBED
from matex_tf.planner.plan_file import ALL_RANKS, ONE_HOST, TWO_HOSTS, LinkMeasurement


def add_kept_links(
    measured: Sequence[LinkMeasurement], hosts: Sequence[str], is_network_named: bool
) -> tuple[LinkMeasurement, ...]:
    """`measured`, and where nothing was within this host, or between hosts, the newest that a run has kept of these.

    Args:
        hosts: whose network is asked about; none: that of the newest run on several.
        is_network_named: what is between hosts was told.
    """
    scopes, found = {link.scope for link in measured}, list(measured)
    kept = [one for one in link_costs.list_links() if not one.disturbed and one.byte > 0]
    if ONE_HOST not in scopes:
        found += _choose_newest(one for one in kept if list(one.hosts) == [socket.gethostname()])
    if not is_network_named and not scopes & {TWO_HOSTS, ALL_RANKS}:
        found += _choose_newest(
            one for one in kept if len(one.hosts) > 1 and (not hosts or set(hosts) <= set(one.hosts))
        )
    return tuple(found)


def _choose_newest(links: Iterable[link_costs.Link]) -> list[LinkMeasurement]:
    return [_describe_sums(one) for one in links if sum(one.hosts.values()) > 1][:1]


def _describe_sums(link: link_costs.Link) -> LinkMeasurement:
    small, large = PROBED
    seconds = link.start_up, link.start_up + (large - small) * link.byte
    ranks, hosts = sum(link.hosts.values()), len(link.hosts)
    scope = ONE_HOST if hosts == 1 else TWO_HOSTS if ranks == hosts else ALL_RANKS
    return LinkMeasurement(scope, ranks, hosts, PROBED, seconds, seconds, 0.0, str(link))
