"""A small model checker: every state that a model can reach, breadth first, so that the way to a fault is shortest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field


class Fault(Exception):
    """What a model must never do; raised by it in the transition that does it."""


@dataclass
class Finding:
    """How an exploration ended: the states seen, the outcomes of all ways to the end, and the first fault, if any, with
    the names of the transitions that lead to it.
    """

    states: int = 0
    outcomes: set[Hashable] = field(default_factory=set)
    fault: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([f"{self.states} states: {self.fault or 'no fault'}", *self.trace])


def explore(
    start: Hashable,
    transitions: Callable[[Hashable], Iterable[tuple[str, Callable[[], Hashable]]]],
    outcome: Callable[[Hashable], Hashable],
    most: int = 1_000_000,
) -> Finding:
    """Follow all transitions from `start`.

    Args:
        transitions: the names of what may happen next in a state, each with what gives the state after it.
        outcome: what a state without transitions comes to; raises `Fault` where nothing may end so.
        most: more states than these are an error: the exploration would say less than it seems to.
    """
    finding = Finding(states=1)
    came_from: dict[Hashable, tuple[Hashable, str] | None] = {start: None}
    level = [start]
    while level:
        following: list[Hashable] = []
        for state in level:
            step = ""
            try:
                stuck = True
                for step, move in transitions(state):
                    stuck = False
                    after = move()
                    if after not in came_from:
                        came_from[after] = (state, step)
                        following.append(after)
                if stuck:
                    step = ""
                    finding.outcomes.add(outcome(state))
            except Fault as fault:
                finding.fault, finding.states = str(fault), len(came_from)
                finding.trace = [*_way(came_from, state), *([step] if step else [])]
                return finding
        level = following
        if len(came_from) > most:
            raise RuntimeError(f"more than {most} states")
    finding.states = len(came_from)
    return finding


def _way(came_from: dict, state: Hashable) -> list[str]:
    steps = []
    while came_from[state] is not None:
        state, step = came_from[state]
        steps.append(step)
    return steps[::-1]
