"""What runs before have measured of links (`observe/link_costs.py`), for a plan that cannot measure them."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.observe import link_costs
from matex_tf.observe.link_costs import PROBED
from matex_tf.planner.plan_file import ALL_RANKS, TWO_HOSTS, LinkMeasurement


def add_kept_links(
    measured: Sequence[LinkMeasurement], hosts: Sequence[str], is_network_named: bool
) -> tuple[LinkMeasurement, ...]:
    """`measured`, and where nothing was between hosts, the newest that a run has kept.

    Within a host a run keeps nothing that tells: its sums are then made otherwise than those of its link.

    Args:
        hosts: whose network is asked about; none: that of the newest run on several.
        is_network_named: what is between hosts was told.
    """
    if is_network_named or {link.scope for link in measured} & {TWO_HOSTS, ALL_RANKS}:
        return tuple(measured)
    kept = (one for one in link_costs.list_links() if not one.disturbed and one.byte > 0 and len(one.hosts) > 1)
    newest = next((one for one in kept if set(hosts) <= set(one.hosts)), None)
    return (*measured, *([_describe_sums(newest)] if newest is not None else []))


def _describe_sums(link: link_costs.Link) -> LinkMeasurement:
    small, large = PROBED
    seconds = link.start_up, link.start_up + (large - small) * link.byte
    ranks, hosts = sum(link.hosts.values()), len(link.hosts)
    return LinkMeasurement(
        TWO_HOSTS if ranks == hosts else ALL_RANKS, ranks, hosts, PROBED, seconds, seconds, 0.0, str(link)
    )
