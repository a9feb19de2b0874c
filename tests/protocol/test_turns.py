"""Turns at batches (ops/src/engine/store, `servers.asynchronous`), in all interleavings: each batch is trained once,
none is begun too far ahead of the oldest, and where an epoch ends all ranks take the same weights out of the memory.

Each transition is one access to the memory that ranks share, or one number that a rank tells the others. What the
weights are is how often they were added to, and what a script adds between two epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from protocol.explorer import Fault, Finding, explore

NONE = 99  # more than any batch: nobody need wait for this rank
SET = 10  # what a callback adds to the weights after each epoch
BREAKS = {
    "a line before the number": "ahead",  # else a batch is not seen while its rank has it and has not yet said so
    "the number in one": "twice",  # read, and written one higher
    "leaving": "wait for one another",
    "the line until it is added": "ahead",
    "waiting": "ahead",
    "what was trained before the weights": "tells",  # GaDei: the version is read after the weights
    "a meeting before the epoch": "",  # whatever comes first: a batch that is not dealt, or weights of before
    "a meeting after the epoch": "takes out",
    "a meeting after the weights are out": "takes out",
}
"""The rules, and what a run without one comes to."""


class Rank(NamedTuple):
    at: str = "deal"
    epoch: int = 0
    met: int = 0
    batch: int = -1
    next: int = 0  # what it has read of it
    oldest: tuple[int, int] = (0, NONE)  # how many lines it has read, and the least of them
    seen: int = 0
    actual: int = 0  # what the weights had when it read them
    own: int = 0  # its weights between epochs


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    lines: tuple[int, ...]
    trained: tuple[int, ...] = ()  # the batches of this epoch, in order
    next: int = 0
    count: int = 0
    weights: int = 0
    stopped: bool = False


def explored(
    size: int, batches: int, bound: int, epochs: int = 1, without: str = "", stops: int = -1, fails: int = -1
) -> Finding:
    """All that can happen.

    Args:
        without: a rule that is left out.
        stops: a callback of the rank that trains this batch stops training.
        fails: the rank that trains this batch does not, and its script catches the error.
    """

    def has(rule: str) -> bool:
        return without != rule

    def put(state: State, rank: int, at: str = "", line: int | None = None, **more) -> State:
        """`state` with the rank elsewhere; upper-case words are of the memory."""
        of_rank = {name: value for name, value in more.items() if name.islower()}
        shared = {name.lower(): value for name, value in more.items() if name.isupper()}
        one = state.ranks[rank]._replace(**of_rank, **({"at": at} if at else {}))
        lines = state.lines if line is None else (*state.lines[:rank], line, *state.lines[rank + 1 :])
        return state._replace(ranks=(*state.ranks[:rank], one, *state.ranks[rank + 1 :]), lines=lines, **shared)

    def meet(state: State, rank: int, at: str) -> State:
        return put(state, rank, at, met=state.ranks[rank].met + 1)

    def transitions(state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        for rank, me in enumerate(state.ranks):
            waits = me.at.startswith("met ") and min(other.met for other in state.ranks) < me.met
            waits = waits or (me.at == "wait" and me.batch - min(state.lines) > bound)
            if me.at != "over" and not waits:
                yield f"rank {rank}: {me.at}", lambda rank=rank: after(state, rank)

    def after(state: State, rank: int) -> State:
        me = state.ranks[rank]
        if me.at == "deal":
            if rank == 0:
                dealt = tuple(one if one < batches else NONE for one in range(size))
                state = state._replace(lines=dealt, trained=(), next=min(size, batches), count=batches, stopped=False)
                state = state._replace(weights=me.own)
            return (
                meet(state, rank, "met at the start")
                if has("a meeting before the epoch")
                else put(state, rank, "begin")
            )
        if me.at == "met at the start":
            return put(state, rank, "begin")
        if me.at == "begin":
            dealt = state.lines[rank]
            return (
                put(state, rank, "look", batch=dealt, oldest=(0, NONE)) if dealt != NONE else put(state, rank, "take")
            )
        if me.at == "take":
            return put(state, rank, "hint", next=state.next)
        if me.at == "hint":
            return put(state, rank, "get", line=me.next if has("a line before the number") else None)
        if me.at == "get":
            if state.stopped or me.next >= state.count:
                return put(state, rank, "come", line=NONE if has("leaving") else None)
            if not has("the number in one"):
                return put(state, rank, "get, then write")
            if state.next != me.next:
                return put(state, rank, "get", next=state.next)
            return put(state, rank, "say", batch=me.next, NEXT=me.next + 1)
        if me.at == "get, then write":
            return put(state, rank, "say", batch=me.next, NEXT=me.next + 1)
        if me.at == "say":
            return put(state, rank, "look", line=me.batch, oldest=(0, NONE))
        if me.at == "look":
            read, oldest = me.oldest
            oldest = min(oldest, state.lines[read])
            if read + 1 < size:
                return put(state, rank, "look", oldest=(read + 1, oldest))
            return put(state, rank, "wait" if me.batch - oldest > bound and has("waiting") else "ask")
        if me.at == "wait":
            return put(state, rank, "look", oldest=(0, NONE))
        if me.at == "ask":
            under_way = [one.batch for one in state.ranks if one.at not in ("begin", "take", "hint", "get", "deal")]
            under_way = [one for one in under_way if one >= 0]
            if me.batch - min(under_way) > bound and state.trained.count(min(under_way)) == 0:
                raise Fault(f"batch {me.batch} is ahead of batch {min(under_way)}")
            if not has("what was trained before the weights"):
                return put(state, rank, "read", actual=len(state.trained))
            return put(state, rank, "read", seen=len(state.trained))
        if me.at == "read":
            if not has("what was trained before the weights"):
                return put(state, rank, "add", seen=len(state.trained))
            return put(
                state, rank, "add", actual=len(state.trained), line=None if has("the line until it is added") else NONE
            )
        if me.at == "add":
            if me.batch == fails:
                return put(state, rank, "come", line=NONE if has("leaving") else None, batch=-1)
            told, late = len(state.trained) - me.seen, len(state.trained) - me.actual
            if me.batch in state.trained:
                raise Fault(f"batch {me.batch} is trained twice")
            if told < late or (late > bound + size - 1 and has("waiting")):
                raise Fault(f"rank {rank} tells {told} of {late}")
            stopped = state.stopped or me.batch == stops
            trained = (*state.trained, me.batch)
            return put(state, rank, "leave", TRAINED=trained, WEIGHTS=state.weights + 1, STOPPED=stopped)
        if me.at == "leave":
            return put(state, rank, "take", line=NONE, batch=-1)
        if me.at == "come":
            return meet(state, rank, "met at the end") if has("a meeting after the epoch") else put(state, rank, "out")
        if me.at == "met at the end":
            return put(state, rank, "out")
        if me.at == "out":
            wanted = me.epoch * (batches + SET) + (batches if stops + fails == -2 else len(state.trained))
            if state.weights != wanted:
                raise Fault(f"rank {rank} takes out {state.weights} for {wanted}")
            me_out = put(state, rank, own=state.weights + SET, epoch=me.epoch + 1)
            return (
                meet(me_out, rank, "met after")
                if has("a meeting after the weights are out")
                else next_epoch(me_out, rank)
            )
        return next_epoch(state, rank)

    def next_epoch(state: State, rank: int) -> State:
        return put(state, rank, "deal" if state.ranks[rank].epoch < epochs else "over")

    def outcome(state: State) -> str:
        if any(one.at != "over" for one in state.ranks):
            raise Fault(f"ranks wait for one another: {[one.at for one in state.ranks]}")
        wanted = len(state.trained) if stops >= 0 else batches
        if sorted(state.trained) != [batch for batch in range(wanted) if batch != fails]:
            raise Fault(f"these batches are trained: {state.trained}")
        return "all" if len(state.trained) == batches else "not all"

    return explore(State((Rank(),) * size, (NONE,) * size), transitions, outcome, most=3_000_000)


@pytest.mark.parametrize(
    "size, batches, bound, epochs", [(2, 5, 0, 1), (2, 5, 1, 2), (2, 1, 1, 2), (3, 4, 1, 1), (3, 2, 0, 2)]
)
def test_each_batch_is_trained_once_by_weights_that_are_not_too_old(size, batches, bound, epochs):
    finding = explored(size, batches, bound, epochs)
    assert not finding.fault and finding.outcomes == {"all"}, str(finding)
    assert finding.states > 100


def test_a_callback_may_stop_it():
    finding = explored(2, 5, 1, stops=2)
    assert not finding.fault and finding.outcomes == {"not all", "all"}, str(finding)


@pytest.mark.parametrize("size, bound", [(2, 0), (3, 1)])
def test_nobody_waits_for_a_rank_that_fails(size, bound):
    finding = explored(size, 4, bound, fails=1)
    assert not finding.fault and finding.outcomes == {"not all"}, str(finding)


@pytest.mark.parametrize("rule", BREAKS)
def test_each_rule_is_needed(rule):
    fails = 1 if rule == "leaving" else -1
    finding = explored(2, 5, 1, epochs=2, without=rule, fails=fails)
    assert finding.fault and BREAKS[rule] in finding.fault, str(finding)
