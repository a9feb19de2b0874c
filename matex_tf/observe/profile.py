"""The table of `matex run --profile`: how the time of training steps was spent.

At the end of the script, rank 0 gathers the engine's totals of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf import ops, settings
from matex_tf.ops import overlap, records
from matex_tf.runtime import shutdown
from matex_tf.world import terminal, world

_NAMED = 8  # of hundreds of ranks, only the slowest are listed
_EVEN = 0.01  # share of a step below which ranks count as balanced

_COLUMNS = ("step", "compute", "waiting", "exposed", "other", "hidden")


def start_profile() -> None:
    """Start, if `MATEX_PROFILE` or `matex run --profile` requests it. Collective."""
    if not settings.get_settings().profile:
        return
    chosen = settings.get_settings().overlap
    link = records.measure_transfer(chosen == "on" or (chosen == "auto" and overlap.is_usual()))
    measured = records.get_last_measurement()
    disturbed = measured is not None and measured[2]
    if settings.get_settings().timeline == "":
        records.set_recording(records.TOTALS)

    def finish_profile() -> None:
        with ops.announce_exchange("putting the profile together"):
            everyone = world.get_communicator("control").gather(records.read_totals())
        if everyone is not None:
            terminal.write_text(format_table(everyone, world.get_world().hosts, link, disturbed))

    shutdown.at_end.append(finish_profile)


def format_table(
    ranks: Sequence[Sequence[records.Totals]],
    hosts: Sequence[str],
    link: tuple[float, float] | None,
    disturbed: bool = False,
) -> str:
    """The text of the table.

    Args:
        ranks: the totals of each rank.
        hosts: the host of each rank.
        link: measured seconds to start a transfer, and for each byte; None: not measured.
        disturbed: whether other work disturbed that measurement.
    """
    places = list(dict.fromkeys(one.place for totals in ranks for one in totals))
    by_place = {place: [one for totals in ranks for one in totals if one.place == place] for place in places}
    counted = {
        place: totals
        for place, totals in by_place.items()
        if len(totals) == len(ranks) and all(one.updates and one.steps for one in totals)
    }
    if not counted:
        return "matex_tf: no profile: too few training steps (the first ones of each update do not count)\n"
    width = max(len("update"), *map(len, counted))
    names = "".join(f"{name:>9}" for name in _COLUMNS) + "      MiB     GB/s" + ("  of link" if link else "")
    lines = [
        (
            f"matex_tf: profile of {len(ranks)} ranks on {len(set(hosts))} host{'s' if len(set(hosts)) > 1 else ''}; "
            "milliseconds a step, means over steps and ranks"
        ),
        f"{'update':{width}}{'steps':>8}{names}",
    ]
    for place, totals in counted.items():
        means = [sum(of) / len(of) for of in zip(*map(_compute_columns, totals))]
        lines.append(
            f"{place:{width}}{totals[0].steps:8}"
            + "".join(f"{value:9.2f}" for value in means)
            + _format_speed(totals, link)
        )
    lines += _describe_pulls(ranks)
    lines += _describe_imbalance(ranks, set(counted), hosts)
    if link is None:
        return "\n".join(lines) + "\n"
    start_up, byte = link
    doubt = " (disturbed by other work: unreliable)" if disturbed else ""
    lines.append(
        f"link, as measured at the start: {start_up * 1e6:.1f} us a transfer and {_format_rate(1, byte)} GB/s{doubt}"
    )
    return "\n".join(lines) + "\n"


def _compute_columns(one: records.Totals) -> tuple[float, ...]:
    """The columns of one update on one rank."""
    compute, other = (value / one.steps / 1e6 for value in (one.compute, one.collectives))
    exposed = one.exposed / one.updates / 1e6
    waiting = _compute_waiting(one)
    hidden = max(one.transfer + one.copy - one.exposed, 0) / one.updates / 1e6
    return compute + waiting + exposed + other, compute, waiting, exposed, other, hidden


def _compute_waiting(one: records.Totals) -> float:
    return (one.meet / one.steps + one.exposed_wait / one.updates) / 1e6


def _format_speed(totals: Sequence[records.Totals], link: tuple[float, float] | None) -> str:
    """MiB of an update, GB/s of its sum, and that speed relative to the link's, if the link was measured."""
    sent, took = sum(one.bytes for one in totals), sum(one.transfer for one in totals) / 1e9
    updates = sum(one.updates for one in totals)
    speed = f"{sent / updates / 2**20:9.2f}{_format_rate(sent, took):>9}"
    if link is None:
        return speed
    least = sum(one.transfers for one in totals) * link[0] + sent * link[1]
    return f"{speed}{least / took if took else 0.0:9.0%}"


def _describe_pulls(ranks: Sequence[Sequence[records.Totals]]) -> list[str]:
    """The time of new weights that arrive during the computation of the next step."""
    rows = [one for totals in ranks for one in totals if one.pulled]
    if not rows:
        return []
    pulled, took, updates = (sum(getattr(one, name) for one in rows) for name in ("pulled", "pull", "updates"))
    size, speed = pulled / updates / 2**20, _format_rate(pulled, took / 1e9)
    took /= updates * 1e6
    return [f"new weights: {size:.2f} MiB in {took:.2f} ms ({speed} GB/s), while the next step computes"]


def _format_rate(sent: float, seconds: float) -> str:
    return f"{sent / seconds / 1e9:.2f}" if seconds > 0 else "-"


def _describe_imbalance(ranks: Sequence[Sequence[records.Totals]], places: set[str], hosts: Sequence[str]) -> list[str]:
    """Finds the slowest rank: the rank that waits least is the one for which the others wait."""
    rows = []
    for rank, totals in enumerate(ranks):
        mine = [one for one in totals if one.place in places]
        columns = [sum(of) for of in zip(*map(_compute_columns, mine))]
        rows.append((columns[2], columns[1], columns[0], rank))
    rows.sort()
    if len(rows) == 1:
        return []
    waiting, _, step, slowest = rows[0]
    others = [row[0] - waiting for row in rows[1:]]
    behind = sum(others) / len(others)
    if behind < _EVEN * step:
        return ["the ranks are balanced: none delays the others by more than 1% of a step"]
    waited = f"the others wait {behind:.2f} ms more in each step than it does, {behind / step:.0%} of the step"
    lines = [f"rank {slowest} ({hosts[slowest]}) is waited for: {waited}"]
    for waits, computes, _, rank in rows[:_NAMED]:
        lines.append(f"  rank {rank} ({hosts[rank]}): compute {computes:.2f} ms, waiting {waits:.2f} ms")
    if len(rows) > _NAMED:
        lines.append(f"  and {len(rows) - _NAMED} more, which wait longer")
    return lines
