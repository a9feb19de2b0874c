"""Discrete event simulation: events in order of time, and a processor-sharing station, for `simulator.servers`."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Events:
    """The queue of events."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds: the time of the current event
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def schedule(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """Schedule `act(*arguments)` at `time`. Events at the same time run in the order of scheduling."""
        heapq.heappush(self._heap, (time, next(self._order), act, arguments))

    def run_events(self) -> None:
        """Run all events, also events that other events schedule."""
        while self._heap:
            self.now, _, act, arguments = heapq.heappop(self._heap)
            act(*arguments)


class Station:
    """A processor-sharing station: concurrent jobs share a capacity evenly; no job runs faster than at rate 1.

    Work is in seconds at rate 1. All jobs progress at the same rate, so one counter measures them all: the work that a
    permanent job would have received since the beginning. A job that comes at counter c with work w leaves at counter
    c + w. So a heap of these values replaces updates of every job.
    """

    def __init__(self, events: Events, capacity: float):
        if capacity <= 0:
            raise ValueError(f"station: expected a capacity above 0; given {capacity}")
        self._events = events
        self._capacity = capacity
        self._counter = 0.0  # the work that a permanent job has received, up to the time `_updated_at`
        self._updated_at = 0.0
        # For each job: the value of `_counter` at which it leaves, its order, and the function to call.
        self._departures: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._schedule_version = 0  # counts arrivals and departures: each outdates the scheduled departure

    def begin_job(self, work: float, done: Callable[[], None]) -> None:
        """Begin a job of `work` seconds now; call `done` when it ends."""
        self._advance_work()
        heapq.heappush(self._departures, (self._counter + work, next(self._order), done))
        self._schedule_departure()

    @property
    def _rate(self) -> float:
        """Seconds of work that each job receives in a second."""
        return min(1.0, self._capacity / len(self._departures))

    def _advance_work(self) -> None:
        """Advance the counter to the current time."""
        if self._departures:
            self._counter += (self._events.now - self._updated_at) * self._rate
        self._updated_at = self._events.now

    def _schedule_departure(self) -> None:
        """Schedule the next departure at its time if no further job comes before it."""
        self._schedule_version += 1
        if self._departures:
            remaining_work = max(0.0, self._departures[0][0] - self._counter)
            end = self._events.now + remaining_work / self._rate
            self._events.schedule(end, self._end_job, self._schedule_version)

    def _end_job(self, version: int) -> None:
        if version != self._schedule_version:  # outdated: a job has come or left since it was scheduled
            return
        self._advance_work()
        _, _, done = heapq.heappop(self._departures)
        self._schedule_departure()
        done()
