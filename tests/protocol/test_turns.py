"""Turns at batches (ops/src/engine/store, `servers.asynchronous`), in all interleavings: each batch is trained once,
none is begun too far ahead of the oldest, and where an epoch ends all ranks take the same weights out of the memory,
also where ranks are killed.

Each transition is one access to the memory that ranks share, or one number that a rank tells the others. The weights
are a table: how often each of the two additions of each batch was made; with it go those of the epochs before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from protocol.explorer import Fault, Finding, explore

NONE = 99  # more than any batch: nobody need wait for this rank
PARTS = 2  # the additions of a batch
BREAKS = {
    "a line before the number": "ahead",  # else a batch is not seen while its rank has it and has not yet said so
    "the word in one": "twice",  # read, and written
    "leaving": "wait for one another",
    "the line until it is added": "ahead",
    "waiting": "ahead",
    "what was trained before the weights": "tells",  # GaDei: the version is read after the weights
    "a meeting before the epoch": "",  # whatever comes first: a batch that is not dealt, or weights of before
    "a meeting after the weights are out": "takes out",
}
"""The rules, and what a run without one comes to."""
DEADLY = {
    "a word for each batch in one": ("twice", 3, 3, 2),  # two take over the same
    "what is added is told": ("twice", 2, 4, 1),
    "the batch of what is told": ("takes out", 2, 4, 1),  # else the next batch of a lost rank lacks additions
    "what a lost rank told goes on": ("twice", 3, 3, 2),  # where the one that took over is lost, too
    "a lost rank's line stays": ("ahead", 2, 4, 1),
    "an older batch first": ("ahead", 3, 3, 2),
    "what was dealt first": ("ahead", 3, 3, 2),  # else a rank that takes over before it begins forgets it
    "the next number by anyone": ("wait for one another", 2, 4, 1),
    "the end once all are trained": ("takes out", 2, 4, 1),
    "two versions of what is counted": ("counts", 2, 4, 1),
    "counts of batches that are trained": ("counts", 2, 4, 1),
}
"""The same where ranks are killed, with ranks, batches and how many are: the fewest with which it shows."""


class Rank(NamedTuple):
    at: str = "deal"
    epoch: int = 0
    met: int = 0
    batch: int = -1  # that it trains
    reserved: int = -1  # that it has, too
    next: int = 0  # what it has read of it
    oldest: tuple[int, int] = (0, NONE)  # how many lines it has read, and the least of them
    of: tuple[int, int] = (-1, -1)  # the lost rank whose batch it takes over, and that batch
    seen: int = 0
    actual: int = 0  # what was trained when it read the weights
    own: tuple = ()  # its weights between epochs


class Shared(NamedTuple):
    """What is in the memory."""

    lines: tuple[int, ...]
    words: tuple[int, ...] = ()  # rank + 1 that has the batch, -rank - 1 that has trained it, 0
    told: tuple[tuple[int, int], ...] = ()  # of each rank, of which batch how many additions are made
    counted: tuple[
        tuple[int, int, int, int], ...
    ] = ()  # of each rank both versions, and the last batch and its version
    weights: tuple = ()
    trained: int = 0
    next: int = 0
    stopped: bool = False
    lost: tuple[int, ...] = ()  # that are known to be
    agreed: bool = False  # all that are left have come to the start of the epoch, for which it was dealt


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    memory: Shared
    dead: tuple[int, ...] = ()


def put(items: tuple, at: int, item) -> tuple:
    return (*items[:at], item, *items[at + 1 :])


def explored(
    size: int, batches: int, bound: int, epochs: int = 1, without: str = "", stops: int = -1, fails: int = -1,
    deaths: int = 0,
) -> Finding:  # fmt: skip
    """All that can happen.

    Args:
        without: a rule that is left out.
        stops: a callback of the rank that trains this batch stops training.
        fails: the rank that trains this batch does not, and its script catches the error.
        deaths: how many ranks may be killed, each at any moment.
    """

    def has(rule: str) -> bool:
        return without != rule

    def held(memory: Shared, rank: int) -> int:
        """The oldest batch that a rank has, as far as the memory says."""
        return next((batch for batch, word in enumerate(memory.words) if word == rank + 1), NONE)

    def claims(memory: Shared, me: Rank) -> list[int]:
        """The lost ranks of which this one has something to do."""
        found = []
        for rank in memory.lost:
            line, had = memory.lines[rank], held(memory, rank)
            mine = (me.reserved < 0 or me.reserved > had) if has("an older batch first") else True
            if line == NONE:
                continue
            if not is_with_another(memory, rank) if had != line else mine and had - min(memory.lines) <= bound:
                found.append(rank)
        return found

    def is_with_another(memory: Shared, lost: int) -> bool:
        """Whether another rank trains the batch of the line of a lost rank."""
        word = memory.words[memory.lines[lost]]
        return has("the line until another has trained it") and word > 0 and word != lost + 1

    def are_all_done(memory: Shared) -> bool:
        return all(word < 0 for word in memory.words) or not has("the end once all are trained")

    def transitions(state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        memory = state.memory
        for rank, me in enumerate(state.ranks):
            if rank in state.dead or me.at == "over":
                continue
            if len(state.dead) < deaths:
                yield f"rank {rank} is killed: {me.at}", lambda rank=rank: state._replace(dead=(*state.dead, rank))
            living = [other for number, other in enumerate(state.ranks) if number not in state.dead]
            waits = me.at.startswith("met ") and min(other.met for other in living) < me.met
            if me.at == "wait":
                for other in set(state.dead) - set(memory.lost):
                    yield f"rank {rank} learns of {other}", lambda other=other: learn(state, other)
                is_over = are_all_done(memory) or (memory.stopped and min(memory.lines) == NONE)
                within = me.reserved >= 0 and me.reserved - min(memory.lines) <= bound
                waits = not (claims(memory, me) or within or (me.reserved < 0 and is_over))
            if me.at == "take" and not has("the next number by anyone"):
                waits = memory.words[me.next] != 0 and memory.next == me.next
            if not waits:
                yield f"rank {rank}: {me.at}", lambda rank=rank: after(state, rank)

    def learn(state: State, rank: int) -> State:
        memory = state.memory._replace(lost=tuple(sorted((*state.memory.lost, rank))))
        if not has("a lost rank's line stays"):
            memory = memory._replace(lines=put(memory.lines, rank, NONE))
        return state._replace(memory=memory)

    def after(state: State, rank: int) -> State:
        me, memory = state.ranks[rank], state.memory

        def go(at: str, line: int | None = None, memory: Shared = memory, **more) -> State:
            if line is not None:
                memory = memory._replace(lines=put(memory.lines, rank, line))
            return state._replace(ranks=put(state.ranks, rank, me._replace(at=at, **more)), memory=memory)

        def meet(at: str, **more) -> State:
            return go(at, met=me.met + 1, **more)

        def word(batch: int, value: int) -> Shared:
            return memory._replace(words=put(memory.words, batch, value))

        if me.at == "deal":
            living = [one for one in range(size) if one not in state.dead]
            if rank == living[0]:
                lines, words = [NONE] * size, [0] * batches
                for batch, one in list(enumerate(living))[:batches]:
                    lines[one], words[batch] = batch, one + 1
                weights = (me.own, ((0,) * PARTS,) * batches)
                told, counted = ((-1, 0),) * size, ((0, 0, -1, 1),) * size
                memory = Shared(tuple(lines), tuple(words), told, counted, weights, next=min(len(living), batches))
                memory = memory._replace(lost=tuple(sorted(state.dead)))
            if has("a meeting before the epoch"):
                return meet("met at the start", memory=memory)
            return go("begin", memory=memory)
        if me.at == "met at the start":
            if not memory.agreed and memory.lost != tuple(sorted(state.dead)):
                # They begin once more, without those that were lost meanwhile.
                again = tuple(one._replace(at="deal", met=one.met - 1) for one in state.ranks)
                ranks = tuple(one if number in state.dead else again[number] for number, one in enumerate(state.ranks))
                return state._replace(ranks=ranks)
            return go("begin", memory=memory._replace(agreed=True))
        if me.at == "begin":
            if me.reserved < 0 and memory.lines[rank] != NONE and has("what was dealt first"):
                me = me._replace(reserved=memory.lines[rank])
            if claims(memory, me):
                return go("claim", of=(claims(memory, me)[0], -1))
            if me.reserved < 0 and memory.lines[rank] != NONE:
                me = me._replace(reserved=memory.lines[rank])
            if me.reserved >= 0:
                return go("look", oldest=(0, NONE))
            if memory.stopped or memory.next >= len(memory.words):
                if are_all_done(memory):
                    return go("come")
                return go("look for the end") if memory.stopped else go("wait")
            return go("hint", next=memory.next)
        if me.at == "claim":
            lost = me.of[0]
            said, had = memory.lines[lost], held(memory, lost)
            if said == NONE:
                return go("begin", of=(-1, -1))
            if had != said and is_with_another(memory, lost):
                return go("begin", of=(-1, -1))
            if had != said:
                return go("begin", memory=memory._replace(lines=put(memory.lines, lost, had)), of=(-1, -1))
            mine = (me.reserved < 0 or me.reserved > had) if has("an older batch first") else True
            if not mine or had - min(memory.lines) > bound:
                return go("begin", of=(-1, -1))
            return go("inherit", of=(lost, had))
        if me.at == "inherit":
            lost, had = me.of
            batch, added = memory.told[lost]
            added = added if batch == had or not has("the batch of what is told") else 0
            if not has("what a lost rank told goes on"):
                return go("inherited", of=me.of, seen=added)
            return go("inherited", memory=memory._replace(told=put(memory.told, rank, (had, added))))
        if me.at == "inherited":
            return go("take over", line=me.of[1])
        if me.at == "take over":
            lost, had = me.of
            if not has("a word for each batch in one"):
                if memory.words[had] == lost + 1:
                    return go("take over, then write")
                return go("begin", line=me.reserved if me.reserved >= 0 else NONE, of=(-1, -1))
            if memory.words[had] != lost + 1:
                return go("begin", line=me.reserved if me.reserved >= 0 else NONE, of=(-1, -1))
            return go("ask", memory=word(had, rank + 1), batch=had, of=(-1, -1))
        if me.at == "take over, then write":
            return go("ask", memory=word(me.of[1], rank + 1), batch=me.of[1], of=(-1, -1))
        if me.at == "hint":
            return go("get", line=me.next if has("a line before the number") else None)
        if me.at == "get":
            if memory.stopped:
                return go("leave", batch=-1) if has("leaving") else go("begin")
            return go("take")
        if me.at == "take":
            if not has("the word in one"):
                return go("take, then write" if memory.words[me.next] <= 0 else "advance")
            if memory.words[me.next] != 0:
                return go("advance")
            return go("advance", memory=word(me.next, rank + 1), reserved=me.next)
        if me.at == "take, then write":
            return go("advance", memory=word(me.next, rank + 1), reserved=me.next)
        if me.at == "advance":
            helped = me.reserved == me.next or has("the next number by anyone")
            memory = memory._replace(next=me.next + 1) if helped and memory.next == me.next else memory
            if me.reserved == me.next:
                return go("look", line=me.next, memory=memory, oldest=(0, NONE))
            return go("begin", line=NONE, memory=memory)
        if me.at in ("look", "look for the end"):
            read, oldest = me.oldest
            oldest = min(oldest, memory.lines[read])
            if read + 1 < size:
                return go(me.at, oldest=(read + 1, oldest))
            if me.at == "look for the end":
                return go("come" if oldest == NONE else "wait", oldest=(0, NONE))
            if me.reserved - oldest > bound and has("waiting"):
                return go("wait", oldest=(0, NONE))
            return go("fresh", oldest=(0, NONE))
        if me.at == "wait":
            return go("begin")
        if me.at == "fresh":
            memory = memory._replace(told=put(memory.told, rank, (me.reserved, 0)))
            return go("ask", memory=memory, batch=me.reserved, reserved=-1)
        if me.at == "ask":
            under_way = [batch for batch, one in enumerate(memory.words) if one > 0]
            if me.batch - min(under_way, default=NONE) > bound:
                raise Fault(f"batch {me.batch} is ahead of batch {min(under_way)}")
            if deaths:
                return go("add")
            if not has("what was trained before the weights"):
                return go("read", actual=memory.trained)
            return go("read", seen=memory.trained)
        if me.at == "read":
            if not has("what was trained before the weights"):
                return go("add", seen=memory.trained)
            return go("add", actual=memory.trained, line=None if has("the line until it is added") else NONE)
        if me.at == "add":
            if me.batch == fails:
                return go("come", line=NONE if has("leaving") else None, memory=word(me.batch, -NONE), batch=-1)
            batch, added = memory.told[rank]
            if not has("what a lost rank told goes on") and batch != me.batch:
                added = me.seen
            if added < PARTS:
                before, table = memory.weights
                row = put(table[me.batch], added, table[me.batch][added] + 1)
                if max(row) > 1:
                    raise Fault(f"an addition of batch {me.batch} is made twice")
                told = (me.batch, added + 1) if has("what is added is told") or not deaths else (me.batch, 0)
                memory = memory._replace(weights=(before, put(table, me.batch, row)), told=put(memory.told, rank, told))
                if not has("what is added is told"):
                    return go("add" if added + 1 < PARTS else "count", memory=memory, seen=added + 1)
                return go("add" if added + 1 < PARTS else "count", memory=memory)
            return go("count")
        if me.at == "count":
            one, two, last, version = memory.counted[rank]
            mine = sum(word == -rank - 1 for word in memory.words) + 1
            other = 1 - version if has("two versions of what is counted") else version
            counts = (mine, two) if other == 0 else (one, mine)
            return go("version", memory=memory._replace(counted=put(memory.counted, rank, (*counts, last, version))))
        if me.at == "version":
            one, two, _, version = memory.counted[rank]
            return go(
                "done", memory=memory._replace(counted=put(memory.counted, rank, (one, two, me.batch, 1 - version)))
            )
        if me.at == "done":
            memory = word(me.batch, -rank - 1)
            return go("trained", memory=memory._replace(stopped=memory.stopped or me.batch == stops))
        if me.at == "trained":
            told, late = memory.trained - me.seen, memory.trained - me.actual
            if not deaths and (told < late or (late > bound + size - 1 and has("waiting"))):
                raise Fault(f"rank {rank} tells {told} of {late}")
            return go("leave", memory=memory._replace(trained=memory.trained + 1), seen=0, actual=0)
        if me.at == "leave":
            return go("begin", line=me.reserved if me.reserved >= 0 else NONE, batch=-1)
        if me.at == "come":
            return meet("met at the end")
        if me.at == "met at the end":
            return go("out")
        if me.at == "out":
            if not memory.words:
                raise Fault(f"rank {rank} takes out what is not there")
            table = memory.weights[1]
            wanted = tuple(tuple(int(one < 0 and one != -NONE) for _ in range(PARTS)) for one in memory.words)
            whole = stops + fails == -2
            if table != wanted or (whole and 0 in memory.words) or len(memory.weights[0]) != me.epoch:
                raise Fault(f"rank {rank} takes out {memory.weights}")
            if deaths:
                check_counts(state)
            own = (*memory.weights[0], table)
            if not has("a meeting after the weights are out"):
                return next_epoch(go("out", own=own, epoch=me.epoch + 1), rank)
            return meet("met after", own=own, epoch=me.epoch + 1)
        return next_epoch(state, rank)

    def check_counts(state: State) -> None:
        """What the ranks have counted, those that are lost by the version that is known to be whole."""
        for rank in state.dead:
            one, two, last, version = state.memory.counted[rank]
            is_trained = last >= 0 and state.memory.words[last] == -rank - 1
            if not has("counts of batches that are trained"):
                is_trained = True
            found = (one, two)[version if is_trained else 1 - version] if last >= 0 else 0
            if found != sum(word == -rank - 1 for word in state.memory.words):
                raise Fault(f"rank {rank} counts {found} batches")

    def next_epoch(state: State, rank: int) -> State:
        me = state.ranks[rank]
        return state._replace(ranks=put(state.ranks, rank, me._replace(at="deal" if me.epoch < epochs else "over")))

    def outcome(state: State) -> str:
        living = [one for rank, one in enumerate(state.ranks) if rank not in state.dead]
        if any(one.at != "over" for one in living):
            raise Fault(f"ranks wait for one another: {[one.at for one in living]}")
        return "all" if all(one < 0 and one != -NONE for one in state.memory.words) else "not all"

    return explore(State((Rank(),) * size, Shared((NONE,) * size)), transitions, outcome, most=3_000_000)


@pytest.mark.parametrize(
    "size, batches, bound, epochs", [(2, 5, 0, 1), (2, 5, 1, 2), (2, 2, 1, 2), (3, 4, 1, 1), (3, 3, 0, 2)]
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


@pytest.mark.parametrize(
    "size, batches, bound, deaths, stops",
    [
        (2, 4, 0, 1, -1),
        (2, 4, 1, 1, -1),
        (2, 4, 1, 1, 1),
        (3, 3, 0, 1, -1),
        pytest.param(4, 3, 0, 1, -1, marks=[pytest.mark.more, pytest.mark.timeout(600)]),
        pytest.param(3, 3, 1, 2, -1, marks=[pytest.mark.more, pytest.mark.timeout(600)]),
    ],
)
def test_what_ranks_had_that_are_killed_at_any_moment_is_trained_once(size, batches, bound, deaths, stops):
    finding = explored(size, batches, bound, deaths=deaths, stops=stops)
    assert not finding.fault and finding.outcomes == {"all", *(["not all"] if stops >= 0 else [])}, str(finding)
    assert finding.states > 4_000


@pytest.mark.parametrize("rule", DEADLY)
def test_each_rule_is_needed_where_ranks_are_killed(rule):
    size, batches, deaths = DEADLY[rule][1:]
    finding = explored(size, batches, 1, without=rule, deaths=deaths)
    assert finding.fault and DEADLY[rule][0] in finding.fault, str(finding)


@pytest.mark.more
@pytest.mark.timeout(600)
def test_the_line_of_a_lost_rank_stays_until_another_has_trained_its_batch():
    """Else the batch moves while a rank reads one line after the other, which then sees it in none."""
    finding = explored(4, 3, 0, without="the line until another has trained it", deaths=1)
    assert "ahead" in finding.fault, str(finding)
