"""The table of `matex run --profile`: how the time of training steps was spent.

An update is the sum of a step's gradients over the ranks. The engine, the C++ library that executes collectives, adds
up the times of the updates at each place of the program: its totals. At the end of the script, rank 0 gathers the
totals of all ranks, and prints a line for each place.

The columns, in milliseconds a step: step, the sum of the next four; compute; waiting for other ranks; exposed,
transfers that no computation hides; other collectives; and hidden, transfers during computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matex_tf import ops, settings
from matex_tf.observe import balance
from matex_tf.ops import overlap, records
from matex_tf.runtime import shutdown
from matex_tf.world import terminal, world

_MAX_LISTED_RANKS = 8  # the slowest ones


class _Columns(NamedTuple):
    """The columns of the table, as in the docstring of this file: milliseconds a step."""

    step: float
    compute: float
    waiting: float
    exposed: float
    other: float
    hidden: float


def start_profile() -> None:
    """Start, if `MATEX_PROFILE` or `matex run --profile` requests it. Collective."""
    if not settings.get_settings().profile:
        return
    overlap_setting = settings.get_settings().overlap
    updates_overlap = overlap_setting == "on" or (overlap_setting == "auto" and overlap.is_usual())
    records.measure_transfer(updates_overlap)
    link = records.get_last_measurement()
    if settings.get_settings().timeline == "":  # a timeline also records totals
        records.set_recording(records.TOTALS)

    def finish_profile() -> None:  # called on all ranks after their scripts
        with ops.announce_exchange("putting the profile together"):
            totals_of_ranks = world.get_communicator("control").gather(records.read_totals())
        if totals_of_ranks is not None:
            terminal.write_text(format_table(totals_of_ranks, world.get_world().hosts, link))

    shutdown.at_end.append(finish_profile)


def format_table(
    ranks: Sequence[Sequence[records.Totals]], hosts: Sequence[str], link: tuple[float, float, bool] | None
) -> str:
    """The text of the table.

    Args:
        ranks: the totals of each rank.
        hosts: the host of each rank.
        link: measured seconds to start a transfer, and for each byte, and whether other work disturbed this
            measurement; None: not measured.
    """
    totals_by_place: dict[str, list[records.Totals]] = {}
    for update in (update for totals in ranks for update in totals):
        totals_by_place.setdefault(update.place, []).append(update)
    shown_totals = {  # updates with steps on all ranks
        place: totals
        for place, totals in totals_by_place.items()
        if len(totals) == len(ranks) and all(update.updates and update.steps for update in totals)
    }
    if not shown_totals:
        return "matex_tf: no profile: too few training steps (the first ones of each update do not count)\n"
    width = max(len("update"), *map(len, shown_totals))
    headings = "".join(f"{name:>9}" for name in _Columns._fields) + "      MiB     GB/s" + ("  of link" if link else "")
    ranks_text = f"{len(ranks)} ranks on {len(set(hosts))} host{'s' if len(set(hosts)) > 1 else ''}"
    lines = [
        f"matex_tf: profile of {ranks_text}; milliseconds a step, means over steps and ranks",
        f"{'update':{width}}{'steps':>8}{headings}",
    ]
    for place, totals in shown_totals.items():
        means = [sum(column) / len(column) for column in zip(*map(_compute_columns, totals))]
        lines.append(
            f"{place:{width}}{totals[0].steps:8}"
            + "".join(f"{value:9.2f}" for value in means)
            + _format_speed(totals, link)
        )
    lines += _describe_pulls(ranks)
    lines += _describe_imbalance(ranks, set(shown_totals), hosts)
    if link is not None:
        link_text = f"{link[0] * 1e6:.1f} us a transfer and {_format_rate(1, link[1])} GB/s"
        doubt = " (disturbed by other work: unreliable)" if link[2] else ""
        lines.append(f"link, as measured at the start: {link_text}{doubt}")
    return "\n".join(lines) + "\n"


def _compute_columns(totals: records.Totals) -> _Columns:
    """The columns of one update on one rank, from its totals in nanoseconds.

    `Totals` adds up transfers over the updates, and the times around them over the steps: the intervals from one update
    to the next.
    """
    compute, other = (nanoseconds / totals.steps / 1e6 for nanoseconds in (totals.compute, totals.collectives))
    exposed = totals.exposed / totals.updates / 1e6
    waiting = (totals.meet / totals.steps + totals.exposed_wait / totals.updates) / 1e6
    hidden = max(totals.transfer + totals.copy - totals.exposed, 0) / totals.updates / 1e6
    return _Columns(compute + waiting + exposed + other, compute, waiting, exposed, other, hidden)


def _format_speed(totals: Sequence[records.Totals], link: tuple[float, float, bool] | None) -> str:
    """MiB of an update, GB/s of its sum, and that speed relative to the link's, if the link was measured."""
    sent_bytes = sum(rank_totals.bytes for rank_totals in totals)
    seconds = sum(rank_totals.transfer for rank_totals in totals) / 1e9
    updates = sum(rank_totals.updates for rank_totals in totals)
    speed = f"{sent_bytes / updates / 2**20:9.2f}{_format_rate(sent_bytes, seconds):>9}"
    if link is None:
        return speed
    link_seconds = sum(rank_totals.transfers for rank_totals in totals) * link[0] + sent_bytes * link[1]
    return f"{speed}{link_seconds / seconds if seconds else 0.0:9.0%}"


def _describe_pulls(ranks: Sequence[Sequence[records.Totals]]) -> list[str]:
    """The time of new weights that arrive during the computation of the next step."""
    pulling_totals = [update for totals in ranks for update in totals if update.pulled]
    if not pulling_totals:
        return []
    sent_bytes = sum(update.pulled for update in pulling_totals)
    nanoseconds = sum(update.pull for update in pulling_totals)
    updates = sum(update.updates for update in pulling_totals)
    size, speed = sent_bytes / updates / 2**20, _format_rate(sent_bytes, nanoseconds / 1e9)
    milliseconds = nanoseconds / updates / 1e6
    return [f"new weights: {size:.2f} MiB in {milliseconds:.2f} ms ({speed} GB/s), while the next step computes"]


def _format_rate(sent_bytes: float, seconds: float) -> str:
    return f"{sent_bytes / seconds / 1e9:.2f}" if seconds > 0 else "-"


def _describe_imbalance(ranks: Sequence[Sequence[records.Totals]], places: set[str], hosts: Sequence[str]) -> list[str]:
    """Lines about the slowest rank: the rank that waits least is the one for which the others wait."""
    if len(ranks) == 1:
        return []
    steps = {}
    for rank, totals in enumerate(ranks):
        updates = [_compute_columns(update) for update in totals if update.place in places]
        milliseconds = [(update.compute, update.waiting, update.exposed + update.other) for update in updates]
        steps[rank] = balance.Step(*(sum(column) / 1e3 for column in zip(*milliseconds)))
    slowest_and_delay = balance.find_slowest(steps)
    if slowest_and_delay is None:
        return [balance.BALANCED]
    slowest, delay = slowest_and_delay
    text = f"the others wait {delay * 1e3:.2f} ms more in each step than it does"
    share = delay / steps[slowest].whole
    lines = [f"rank {slowest} ({hosts[slowest]}) is waited for: {text}, {share:.0%} of the step"]
    by_waiting = balance.sort_ranks(steps)
    for rank in by_waiting[:_MAX_LISTED_RANKS]:
        times = f"compute {steps[rank].compute * 1e3:.2f} ms, waiting {steps[rank].waiting * 1e3:.2f} ms"
        lines.append(f"  rank {rank} ({hosts[rank]}): {times}")
    if len(by_waiting) > _MAX_LISTED_RANKS:
        lines.append(f"  and {len(by_waiting) - _MAX_LISTED_RANKS} more, which wait longer")
    return lines
