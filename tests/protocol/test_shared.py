"""Sums in shared memory, in all interleavings: what a rank reads is what it is meant to, for as long as it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from protocol.explorer import Fault, Finding, explore

PARTS = 4

Op = tuple[str, int, int]  # what is done, with which share of the ranks, in which part


class State(NamedTuple):
    """`places` and `met` are those of each rank; `memory` has what lies where: of a rank, buffer and share."""

    places: tuple[int, ...]
    met: tuple[int, ...]
    memory: tuple[tuple[int, str], ...]


def program(ranks: int, rank: int, without: str) -> list[Op]:
    """What `SharedMemory` does with each part: ranks add up a share each, and read the sums.

    Every third part is of sums in pieces: each rank adds up its share for itself.
    """
    ops: list[Op] = []
    for part in range(PARTS):
        ops += [("write", share, part) for share in range(ranks)] + [("come", 0, part), ("meet", 0, part)]
        if part % 3 == 1:
            ops += [("add", other, part) for other in range(ranks)]
            continue
        ops += [("add", other, part) for other in range(ranks) if other != rank] + [("sum", rank, part)]
        if without != "second meeting":
            ops += [("come", 0, part), ("meet", 0, part)]
        ops += [("fetch", other, part) for other in range(ranks)]
    return [op for op in ops if without != "meeting" or op[0] not in ("come", "meet")]


def publishing(ranks: int, rank: int, without: str) -> list[Op]:
    """What `Publish` does in each update: a rank changes its piece where it lies; all meet, read, and meet again."""
    ops: list[Op] = []
    for update in range(PARTS):
        ops += [("write", share, update) for share in range(ranks)] + [("come", 0, update), ("meet", 0, update)]
        ops += [("read", other, update) for other in range(ranks) if other != rank]
        ops += [("come", 0, update), ("meet", 0, update)]
    left_out = {"first meeting": 0, "second meeting": 1}.get(without)
    meetings = [place for place, op in enumerate(ops) if op[0] == "meet"]
    skipped = {place for number, at in enumerate(meetings) if number % 2 == left_out for place in (at - 1, at)}
    return [op for place, op in enumerate(ops) if place not in skipped]


def comparing(ranks: int, rank: int, without: str) -> list[Op]:
    """What `Arrivals::Meet` does with the words that ranks bring: each writes its own, all meet, and each reads all."""
    ops: list[Op] = []
    for meeting in range(PARTS):
        ops += [("write", share, meeting) for share in range(ranks)] + [("come", 0, meeting), ("meet", 0, meeting)]
        ops += [("read", other, meeting) for other in range(ranks)]
    return [op for op in ops if without != "meeting" or op[0] not in ("come", "meet")]


def explored(
    ranks: int, without: str = "", program_of: Callable[[int, int, str], list[Op]] = program, buffers: int = 2
) -> Finding:
    """All that can happen; `without` one of the rules."""
    buffers = 1 if without == "second buffer" else buffers
    programs = [program_of(ranks, rank, without) for rank in range(ranks)]

    def cell(rank: int, part: int, share: int) -> int:
        return (rank * buffers + part % buffers) * ranks + share

    def transitions(state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        for rank, place in enumerate(state.places):
            if place == len(programs[rank]):
                continue
            what, _, part = op = programs[rank][place]
            if what != "meet" or min(state.met) >= state.met[rank]:
                yield f"rank {rank}: {what} {op[1]} of part {part}", lambda rank=rank, op=op: after(state, rank, op)

    def after(state: State, rank: int, op: Op) -> State:
        what, share, part = op
        memory, met = list(state.memory), list(state.met)
        if what == "write":
            memory[cell(rank, part, share)] = (part, "own")
        elif what == "come":
            met[rank] += 1
        elif what == "read":
            for one in range(ranks):
                expect(memory, cell(share, part, one), (part, "own"), rank)
        elif what == "add":
            expect(memory, cell(share, part, rank), (part, "own"), rank)
        elif what == "sum":
            expect(memory, cell(rank, part, rank), (part, "own"), rank)
            memory[cell(rank, part, rank)] = (part, "sum")
        elif what == "fetch":
            expect(memory, cell(share, part, share), (part, "sum"), rank)
        places = (*state.places[:rank], state.places[rank] + 1, *state.places[rank + 1 :])
        return State(places, tuple(met), tuple(memory))

    def expect(memory: list, at: int, wanted: tuple[int, str], rank: int) -> None:
        if memory[at] != wanted:
            raise Fault(f"rank {rank} reads {memory[at]} for {wanted}")

    def outcome(state: State) -> str:
        if any(place < len(programs[rank]) for rank, place in enumerate(state.places)):
            raise Fault(f"ranks wait for one another: {state.places}")
        return "ok"

    empty = ((-1, "nothing"),) * (ranks * buffers * ranks)
    return explore(State((0,) * ranks, (0,) * ranks, empty), transitions, outcome)


def test_sums_read_what_was_written_for_them():
    finding = explored(3)
    assert not finding.fault and finding.outcomes == {"ok"}, str(finding)
    assert finding.states > 100


@pytest.mark.parametrize("without", ["meeting", "second buffer", "second meeting"])
def test_each_rule_is_needed(without):
    assert "reads" in explored(3, without).fault


class Blocks(NamedTuple):
    """Of each of two ranks: the numbers of blocks that it has written and read; the numbers that it shows, and those
    that it has seen of the other rank; what it does, and its memory."""

    written: tuple[int, int]
    read: tuple[int, int]
    shown: tuple[tuple[int, int], tuple[int, int]]
    seen: tuple[tuple[int, int], tuple[int, int]]
    doing: tuple[str, str]
    memory: tuple[tuple[int, ...], tuple[int, ...]]


def explored_blocks(without: str = "", blocks: int = 5, slots: int = 3, ahead: int = 2) -> Finding:
    """What `SharedMemory::PassBlocks` does in a sum, where a rank reads both memories."""

    def change(state: Blocks, rank: int, doing: str, **values: object) -> Blocks:
        changed = {**values, "doing": doing}
        both = {name: list(getattr(state, name)) for name in changed}
        for name, value in changed.items():
            both[name][rank] = value
        return state._replace(**{name: tuple(pair) for name, pair in both.items()})

    def expect(state: Blocks, rank: int, block: int) -> None:
        found = [memory[block % slots] for memory in state.memory]
        if found != [block, block]:
            raise Fault(f"rank {rank} reads {found} for {block}")

    def transitions(state: Blocks) -> Iterator[tuple[str, Callable[[], Blocks]]]:
        for rank in range(2):
            for name, move in moves(state, rank):
                yield f"rank {rank}: {name}", move

    def moves(state: Blocks, rank: int) -> Iterator[tuple[str, Callable[[], Blocks]]]:
        wrote, read = state.written[rank], state.read[rank]
        shown = state.shown[1 - rank]
        doing = state.doing[rank]
        if doing == "copying":
            yield "shows a block", lambda: change(state, rank, "", shown=(wrote, read))
        elif doing == "reading":  # all the while
            yield "has read", lambda: after_reading(state, rank)
        elif doing == "" and read == blocks:
            yield "ends", lambda: change(state, rank, "ended")
        elif doing == "" or (doing == "waiting" and shown != state.seen[rank]):
            # The two numbers are read one after the other, so they may be of different times.
            seen = (shown[0], state.seen[rank][1])
            yield "looks at what is written", lambda: change(state, rank, "looking", seen=seen)
        elif doing == "looking":
            seen_written, seen_read = seen = (state.seen[rank][0], shown[1])
            freed = {"room": wrote, "own room": seen_read}.get(without, min(read, seen_read))
            may_write = wrote < blocks and wrote - freed < slots
            may_read = read < (wrote if without == "look" else min(wrote, seen_written))
            if may_write and (wrote - read < ahead or not may_read):
                memory = tuple(wrote if at == wrote % slots else held for at, held in enumerate(state.memory[rank]))
                yield "writes", lambda: change(state, rank, "copying", written=wrote + 1, memory=memory, seen=seen)
            elif may_read:
                yield "begins to read", lambda: begin_reading(state, rank, seen)
            else:
                yield "waits", lambda: change(state, rank, "waiting", seen=seen)

    def begin_reading(state: Blocks, rank: int, seen: tuple[int, int]) -> Blocks:
        expect(state, rank, state.read[rank])
        return change(state, rank, "reading", seen=seen)

    def after_reading(state: Blocks, rank: int) -> Blocks:
        expect(state, rank, state.read[rank])
        read = state.read[rank] + 1
        return change(state, rank, "", read=read, shown=(state.written[rank], read))

    def outcome(state: Blocks) -> str:
        if state.doing != ("ended", "ended"):
            raise Fault(f"ranks wait for one another: {state}")
        return "ok"

    empty = (-1,) * slots
    return explore(Blocks((0, 0), (0, 0), *2 * (((0, 0), (0, 0)),), ("", ""), (empty, empty)), transitions, outcome)


def test_blocks_of_two_ranks_are_read_as_they_were_written():
    finding = explored_blocks()
    assert not finding.fault and finding.outcomes == {"ok"}, str(finding)
    assert finding.states > 100
    for without in ("room", "own room", "look"):
        assert "reads" in explored_blocks(without).fault


@pytest.mark.parametrize("ranks", [2, 3])
def test_published_pieces_are_those_of_the_update(ranks):
    finding = explored(ranks, program_of=publishing, buffers=1)
    assert not finding.fault and finding.outcomes == {"ok"}, str(finding)
    for without in ("first meeting", "second meeting"):
        assert "reads" in explored(ranks, without, publishing, buffers=1).fault


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_brought_to_a_meeting_is_compared_with_what_the_others_bring(ranks):
    finding = explored(ranks, program_of=comparing)
    assert not finding.fault and finding.outcomes == {"ok"}, str(finding)
    for without in ("meeting", "second buffer"):
        assert "reads" in explored(ranks, without, comparing).fault
