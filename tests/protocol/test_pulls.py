"""New weights that come while the next step computes, in all interleavings of scripts and threads of communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from protocol.explorer import Fault, Finding, explore

STEPS, LAYERS = 3, 2


class State(NamedTuple):
    """Of each rank: where its script and its thread are, the jobs that were added, the layers that are locked, and of
    each layer the versions of what each rank owns of it, as this rank has them.

    `sent` are the versions that ranks have given to the exchanges of their threads, in their order.
    """

    scripts: tuple[int, ...]
    threads: tuple[int, ...]
    added: tuple[int, ...]
    locked: tuple[frozenset[int], ...]
    weights: tuple[tuple[tuple[int, ...], ...], ...]
    sent: tuple[tuple[int, ...], ...]


def script(without: str) -> list[tuple[str, int]]:
    """A rank's steps: it reads all layers, adds the job of its sums, waits for it, updates what it owns, publishes."""
    ops: list[tuple[str, int]] = []
    for step in range(STEPS):
        ops += [("read", layer) for layer in range(LAYERS)]
        ops += [("add", 0), ("wait for sums", step)] + [("update", layer) for layer in range(LAYERS)]
        ops += [("add", 0)] + [("wait for locks", step)] * (without != "waiting for the lock")
    return ops


def jobs(without: str) -> list[tuple[str, int, int]]:
    """What a thread does: (what, layer, the number of jobs that must have been added)."""
    ops = []
    for step in range(STEPS):
        ops += [("sum", 0, 2 * step + 1), ("lock", 0, 2 * step + 2)]
        for layer in range(LAYERS):
            pull = [("send", layer, 0), ("receive", layer, 0)]
            ops += (
                [("unlock", layer, 0), *pull] if without == "whole before it is read" else [*pull, ("unlock", layer, 0)]
            )
    return ops


def explored(ranks: int, without: str = "") -> Finding:
    """All that can happen; `without` one of the rules."""
    program, work = script(without), jobs(without)
    done = {what: [at + 1 for at, op in enumerate(work) if op[0] == what] for what in ("sum", "lock")}
    exchanges = [at for at, op in enumerate(work) if op[0] in ("sum", "send")]

    def transitions(state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        for rank in range(ranks):
            if state.scripts[rank] < len(program) and may_go_on(state, rank, *program[state.scripts[rank]]):
                op = program[state.scripts[rank]]
                yield f"rank {rank}: {op}", lambda rank=rank, op=op: by_script(state, rank, *op)
            if state.threads[rank] < len(work):
                what, layer, needed = work[state.threads[rank]]
                arrived = min(len(one) for one in state.sent) >= len(state.sent[rank])
                if state.added[rank] >= needed and (what != "receive" or arrived):
                    yield (
                        f"thread {rank}: {what} {layer}",
                        lambda rank=rank, what=what, layer=layer: by_thread(state, rank, what, layer),
                    )

    def may_go_on(state: State, rank: int, what: str, which: int) -> bool:
        if what == "wait for locks":
            return state.threads[rank] >= done["lock"][which]
        if what == "wait for sums":  # until all ranks have come to it
            place = done["sum"][which]
            return all(len(one) > exchanges.index(place - 1) for one in state.sent)
        return which not in state.locked[rank] or what == "add" or without == "the lock"

    def by_script(state: State, rank: int, what: str, which: int) -> State:
        weights, step = list(state.weights), state.scripts[rank] // (len(program) // STEPS)
        if what == "read" and weights[rank][which] != (step,) * ranks:
            raise Fault(f"rank {rank} reads {weights[rank][which]} in step {step}")
        if what == "update":
            mine = list(map(list, weights[rank]))
            mine[which][rank] = step + 1
            weights[rank] = tuple(map(tuple, mine))
        added = put(state.added, rank, state.added[rank] + (what == "add"))
        return state._replace(
            scripts=put(state.scripts, rank, state.scripts[rank] + 1), added=added, weights=tuple(weights)
        )

    def by_thread(state: State, rank: int, what: str, layer: int) -> State:
        locked, weights, sent = state.locked[rank], state.weights[rank], state.sent[rank]
        if what == "lock":
            locked = frozenset(range(LAYERS))
        elif what == "unlock":
            locked -= {layer}
        elif what in ("sum", "send"):
            sent += (weights[layer][rank],)
        else:
            number = len(sent) - 1
            weights = put(weights, layer, tuple(one[number] for one in state.sent))
        return state._replace(
            threads=put(state.threads, rank, state.threads[rank] + 1),
            locked=put(state.locked, rank, locked),
            weights=put(state.weights, rank, weights),
            sent=put(state.sent, rank, sent),
        )

    def outcome(state: State) -> str:
        if any(place < len(program) for place in state.scripts) or any(place < len(work) for place in state.threads):
            raise Fault(f"ranks wait for one another: {state.scripts}, {state.threads}")
        return "ok"

    nothing: tuple[int, ...] = (0,) * ranks
    weights = ((nothing,) * LAYERS,) * ranks
    return explore(
        State(nothing, nothing, nothing, (frozenset(),) * ranks, weights, ((),) * ranks), transitions, outcome
    )


def put(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_step_reads_the_weights_of_the_update_before_it(ranks):
    finding = explored(ranks)
    assert not finding.fault and finding.outcomes == {"ok"}, str(finding)
    assert finding.states > 100


@pytest.mark.parametrize("without", ["the lock", "waiting for the lock", "whole before it is read"])
def test_each_rule_is_needed(without):
    assert "reads" in explored(2, without).fault
