"""Discrete events in order of time, and a station whose customers share its capacity."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Events:
    """What is to happen; `now` is the time in seconds of what happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def schedule_act(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        """`act(*arguments)` at `time`; of two at the same time the one that was asked for first comes first."""
        heapq.heappush(self._heap, (time, next(self._order), act, arguments))

    def run_events(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let happen what is to happen, and what follows from it, until nothing is left or `until` is true."""
        heap, pop = self._heap, heapq.heappop
        while heap and not until():
            self.now, _, act, arguments = pop(heap)
            act(*arguments)
            self.count += 1


class Station:
    """Work that is done at once and shares a capacity evenly; none is done faster than at rate 1 (processor sharing).

    All that are there are served at one rate, so that they leave in the order of what each still needed when it came,
    counted in the work that one has been given since the start: a heap of these needs no look at the others.
    """

    def __init__(self, events: Events, capacity: float):
        if capacity <= 0:
            raise ValueError(f"station: expected a capacity above 0; given {capacity}")
        self._events = events
        self._capacity = capacity
        self._given = 0.0  # to each that was there all the time
        self._since = 0.0
        self._leaving: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._version = 0

    def serve_customer(self, work: float, done: Callable[[], None]) -> None:
        """Begin `work` seconds of work now; call `done` when it is over."""
        self._advance_work()
        heapq.heappush(self._leaving, (self._given + work, next(self._order), done))
        self._schedule_leave()

    @property
    def _rate(self) -> float:
        return min(1.0, self._capacity / len(self._leaving))

    def _advance_work(self) -> None:
        if self._leaving:
            self._given += (self._events.now - self._since) * self._rate
        self._since = self._events.now

    def _schedule_leave(self) -> None:
        self._version += 1
        if self._leaving:
            left = max(0.0, self._leaving[0][0] - self._given)
            self._events.schedule_act(self._events.now + left / self._rate, self._end_service, self._version)

    def _end_service(self, version: int) -> None:
        if version != self._version:  # someone has come or gone since this was foreseen
            return
        self._advance_work()
        _, _, done = heapq.heappop(self._leaving)
        self._schedule_leave()
        done()
