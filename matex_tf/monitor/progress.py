"""Progress of a run: pure functions of its events and of rank 0's samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf.monitor.recording import Series, Start

DAY, HOUR, MINUTE = 86400, 3600, 60


@dataclass(frozen=True)
class Epoch:
    """An epoch of `fit` that has ended."""

    t: float
    number: int
    of: int | None
    logs: dict[str, float]
    call: int | None = None
    """The number of the call of `fit`, if the state of the run is saved."""


def list_epochs(events: Sequence[dict[str, Any]]) -> list[Epoch]:
    """The epochs, in the order of their ends."""
    return [
        Epoch(one["t"], one["epoch"], one.get("of"), one.get("logs", {}), one.get("call"))
        for one in events
        if "epoch" in one
    ]


def list_kept_epochs(starts: Sequence[Start]) -> list[Epoch]:
    """The epochs of all starts. A start resumes from the last saved state: epochs after that state are replaced by
    their repetition.
    """
    kept: list[Epoch] = []
    for start in starts:
        done = list_epochs(start.events)
        first = min(((one.call, one.number) for one in done if one.call is not None), default=None)
        if first is not None:
            kept = [one for one in kept if one.call is None or (one.call, one.number) < first]
        kept += done
    return kept


def count_epochs(done: Sequence[Epoch]) -> list[int]:
    """The cumulative number of epochs at each one. The epochs of consecutive calls of `fit` are added."""
    counts: list[int] = []
    before = 0
    for one in done:
        counts.append((counts[-1] if counts else 0) + (one.number - before if one.number > before else one.number))
        before = one.number
    return counts


def estimate_seconds_left(done: Sequence[Epoch], began: float) -> float | None:
    """The estimated seconds to the end of `fit`, from its finished epochs; None if unknown."""
    if not done or not done[-1].of:
        return None
    # Only the epochs of the current call of `fit` count.
    first = next(
        place for place in range(len(done) - 1, -1, -1) if place == 0 or done[place - 1].number >= done[place].number
    )
    since = done[first].t if len(done) - first > 1 else began
    counted = max(len(done) - first - 1, 1)
    return (done[-1].of - done[-1].number) * (done[-1].t - since) / counted


def compute_mean_rate(series: Series, name: str) -> float:
    """The mean growth of `name` a second, between the first and the last sample; 0 if unknown."""
    took = series.compute_growth("t")
    grown = series.compute_growth(name)
    return grown / took if took > 0 and grown > 0 else 0.0


def describe_command(start: Start) -> str:
    """The script's file name with its arguments."""
    words = [str(word) for word in start.about["command"]]
    return " ".join([Path(words[0]).name, *words[1:]]) if words else "?"


def describe_ranks(start: Start) -> str:
    """The numbers of ranks and hosts, as text."""
    hosts = len(set(start.hosts))
    return f"{start.size} ranks on {hosts} host{'s' if hosts > 1 else ''}"


def format_seconds(seconds: float) -> str:
    """A duration as text."""
    if seconds >= DAY:
        return f"{seconds / DAY:.1f} days"
    if seconds >= HOUR:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE):02} min"
    return f"{int(seconds // MINUTE)} min {int(seconds % MINUTE):02} s" if seconds >= MINUTE else f"{seconds:.0f} s"
