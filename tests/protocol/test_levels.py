"""Sums in two levels, in all interleavings: of nodes of any sizes, by both ways at once, on communicators of their own.

Each thread of a rank calls MPI on one communicator after the other, and each waits there for all that are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from protocol.explorer import Fault, Finding, explore

Call = tuple[tuple, str]  # a communicator, and what its caller means by the call
State = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


def sum_in_two_levels(nodes: tuple[int, ...], rank: int, way: str, number: int) -> list[Call]:
    """The calls of one rank; `nodes` are the numbers of ranks on each node."""
    node, local = next((n, rank - sum(nodes[:n])) for n in range(len(nodes)) if rank < sum(nodes[: n + 1]))
    within = (way, "within", node)
    across = [((way, "across", local), f"across, {number}")] if local < min(nodes) else []
    return [(within, f"scatter, {number}"), *across, (within, f"gather, {number}")]


def explored(programs: dict[tuple[int, str], list[Call]], rightly: dict | None = None) -> Finding:
    """What can happen where each thread, a rank with a name, has such a program; communicators have the ranks that call
    them in the programs `rightly`, or in these.
    """
    threads = sorted(programs)
    members: dict[tuple, set[int]] = {}
    for (rank, _), calls in (rightly or programs).items():
        for communicator, _ in calls:
            members.setdefault(communicator, set()).add(rank)
    communicators = sorted(members)

    def call_of(state: State, thread: int) -> Call:
        return programs[threads[thread]][state[0][thread]]

    def transitions(state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        places, queues = state
        waiting = {thread for queue in queues for thread in queue}
        for thread, place in enumerate(places):
            if thread in waiting or place == len(programs[threads[thread]]):
                continue
            at = communicators.index(call_of(state, thread)[0])
            longer = (*queues[:at], (*queues[at], thread), *queues[at + 1 :])
            yield f"{threads[thread]} calls {call_of(state, thread)}", lambda longer=longer: (places, longer)
        for at, queue in enumerate(queues):
            first: dict[int, int] = {}
            for thread in queue:
                first.setdefault(threads[thread][0], thread)
            if set(first) == members[communicators[at]]:
                yield f"all are at {communicators[at]}", lambda at=at, first=first: complete(state, at, first)

    def complete(state: State, at: int, first: dict[int, int]) -> State:
        places, queues = state
        meant = {call_of(state, thread)[1] for thread in first.values()}
        if len(meant) > 1:
            raise Fault(f"ranks mix {' with '.join(sorted(meant))}")
        over = set(first.values())
        left = tuple(thread for thread in queues[at] if thread not in over)
        after = tuple(place + (thread in over) for thread, place in enumerate(places))
        return after, (*queues[:at], left, *queues[at + 1 :])

    def outcome(state: State) -> str:
        if any(state[1]):
            raise Fault("ranks wait for ever")
        return "all sums are made"

    return explore(((0,) * len(threads), ((),) * len(communicators)), transitions, outcome)


def both_ways(nodes: tuple[int, ...], sums: int, ways: tuple[str, str] = ("inline", "overlapped")) -> dict:
    return {
        (rank, thread): [
            (communicator, f"{thread} {meant}")
            for number in range(sums)
            for communicator, meant in sum_in_two_levels(nodes, rank, way, number)
        ]
        for rank in range(sum(nodes))
        for thread, way in zip(("script", "thread"), ways)
    }


@pytest.mark.parametrize("nodes, sums", [((2, 2), 1), ((2, 1), 1), ((1, 1), 2), ((2,), 2)])
def test_all_sums_are_made(nodes, sums):
    finding = explored(both_ways(nodes, sums))
    assert finding.outcomes == {"all sums are made"} and not finding.fault, str(finding)


@pytest.mark.parametrize("nodes", [(2, 2, 2), (3, 2), (1, 4)])
def test_one_way_alone(nodes):
    programs = {key: calls for key, calls in both_ways(nodes, 2).items() if key[1] == "script"}
    assert explored(programs).outcomes == {"all sums are made"}


def test_both_ways_need_communicators_of_their_own():
    finding = explored(both_ways((2, 2), 1, ("inline", "inline")))
    assert "ranks mix" in finding.fault and len(finding.trace) == 3, str(finding)


def test_ranks_must_agree_on_who_carries():
    """As they do by the size of the smallest node: one that believed in another would be waited for."""
    rightly = {(rank, "script"): sum_in_two_levels((2, 2), rank, "inline", 0) for rank in range(4)}
    programs = {**rightly, (1, "script"): [call for call in rightly[1, "script"] if "across" not in call[0]]}
    assert explored(programs, rightly).fault == "ranks wait for ever"
