"""Computes the progress of a run, such as the time left, from its events and rank 0's samples. Pure functions.

A run may be restarted: each of its starts (`recording.Start`) has its own events, such as the end of an epoch.
"""

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

    t: float  # its end, in seconds since 1970
    number: int  # from 1
    of: int | None  # the number of epochs of the call of `fit`
    logs: dict[str, float]
    call: int | None = None  # the number of the call of `fit`, if the state of the run is saved


def list_epochs(events: Sequence[dict[str, Any]]) -> list[Epoch]:
    """The epochs among the events of one start."""
    return [
        Epoch(event["t"], event["epoch"], event.get("of"), event.get("logs", {}), event.get("call"))
        for event in events
        if "epoch" in event
    ]


def list_kept_epochs(starts: Sequence[Start]) -> list[Epoch]:
    """The epochs of all starts, without epochs that a later start has repeated.

    A start resumes from the last saved state, and repeats the epochs after that state.
    """
    epochs: list[Epoch] = []
    for start in starts:
        epochs_of_start = list_epochs(start.events)
        first_repeated = min(
            ((epoch.call, epoch.number) for epoch in epochs_of_start if epoch.call is not None), default=None
        )
        if first_repeated is not None:
            epochs = [epoch for epoch in epochs if epoch.call is None or (epoch.call, epoch.number) < first_repeated]
        epochs += epochs_of_start
    return epochs


def count_epochs(epochs: Sequence[Epoch]) -> list[int]:
    """The cumulative number of epochs at each one. The epochs of consecutive calls of `fit` are added."""
    counts: list[int] = []
    count = previous = 0
    for epoch in epochs:
        is_of_next_call = epoch.number <= previous  # each call begins at 1
        count += epoch.number if is_of_next_call else epoch.number - previous
        previous = epoch.number
        counts.append(count)
    return counts


def estimate_seconds_left(epochs: Sequence[Epoch], started_at: float) -> float | None:
    """The estimated seconds to the end of `fit`, from its finished epochs; None if unknown."""
    last_epoch = epochs[-1] if epochs else None
    if last_epoch is None or not last_epoch.of:
        return None
    # Only the epochs of the current call of `fit` count: their numbers rise.
    first_of_call = len(epochs) - 1
    while first_of_call > 0 and epochs[first_of_call - 1].number < epochs[first_of_call].number:
        first_of_call -= 1
    timed_epochs = len(epochs) - 1 - first_of_call  # from the end of the first one: it includes tracing
    epoch_seconds = (
        (last_epoch.t - epochs[first_of_call].t) / timed_epochs if timed_epochs else last_epoch.t - started_at
    )
    return (last_epoch.of - last_epoch.number) * epoch_seconds


def compute_mean_rate(series: Series, name: str) -> float:
    """The mean growth of `name` a second, between the first and the last sample; 0 if unknown."""
    seconds = series.compute_growth("t")  # "t": the time of a sample
    grown = series.compute_growth(name)
    return grown / seconds if seconds > 0 and grown > 0 else 0.0


def describe_command(start: Start) -> str:
    """The script's file name with its arguments."""
    command = [str(word) for word in start.about["command"]]
    return " ".join([Path(command[0]).name, *command[1:]]) if command else "?"


def describe_ranks(start: Start) -> str:
    hosts = len(set(start.hosts))
    return f"{start.size} ranks on {hosts} host{'s' if hosts > 1 else ''}"


def format_seconds(seconds: float) -> str:
    if seconds >= DAY:
        return f"{seconds / DAY:.1f} days"
    if seconds >= HOUR:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE):02} min"
    return f"{int(seconds // MINUTE)} min {int(seconds % MINUTE):02} s" if seconds >= MINUTE else f"{seconds:.0f} s"
