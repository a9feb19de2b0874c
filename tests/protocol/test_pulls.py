"""New weights that come while the next step computes, in all interleavings of scripts and of the threads that pull."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from protocol.explorer import Fault, Finding, explore

STEPS, LAYERS, MESSAGES = 2, 2, 2

Job = tuple[int, int, bool, int]  # its number, the layer, whether the thread has begun it, and its messages to come


class Rank(NamedTuple):
    """Where the script and the thread are, the jobs not done, how many there were, and the layers that are locked.

    `weights` has of each layer the version of what each rank owns of it. `given` counts gradients; `offers` are the
    newest jobs that the thread has told of, `chosen` how many messages it has chosen by them, and `sent` what it has
    exchanged: the layer, and the version of its part. The next offer is made before the message that is chosen is sent,
    if all ranks know that there is another. `calls` are these two, which all ranks are to make in the same order.
    """

    place: int
    phase: tuple[str, int]
    jobs: tuple[Job, ...]
    added: int
    locked: frozenset[int]
    weights: tuple[tuple[int, ...], ...]
    given: int
    offers: tuple[int, ...]
    chosen: int
    sent: tuple[tuple[int, int], ...]
    calls: str


def script(without: str) -> list[tuple[str, int]]:
    """The steps of a rank: it reads its layers; the gradient of the last is there first, is summed, and updates it."""
    ops: list[tuple[str, int]] = []
    for _ in range(STEPS):
        ops += [("read", layer) for layer in range(LAYERS)]
        for layer in reversed(range(LAYERS)):
            ops += [("give", layer), ("sum", layer), ("update", layer), ("add", layer)]
            ops += [("wait for the lock", layer)] * (without != "waiting for the lock")
    return ops


def explored(ranks: int, without: str = "") -> Finding:
    """All that can happen; `without` one of the rules."""
    program = script(without)
    per_step = len(program) // STEPS

    def transitions(state: tuple[Rank, ...]) -> Iterator[tuple[str, Callable[[], tuple[Rank, ...]]]]:
        for number, rank in enumerate(state):
            if rank.place < len(program) and may_go_on(state, rank, *program[rank.place]):
                op = program[rank.place]
                yield f"rank {number}: {op}", lambda number=number, op=op: by_script(state, number, *op)
            if may_pull(state, rank):
                yield f"thread {number}: {rank.phase}", lambda number=number: by_thread(state, number)

    def may_go_on(state: tuple[Rank, ...], rank: Rank, what: str, layer: int) -> bool:
        if what == "sum":
            return all(one.given >= rank.given for one in state)
        if what == "wait for the lock":
            return all(begun for _, of, begun, _ in rank.jobs if of == layer)
        return what in ("give", "add") or without == "the lock" or layer not in rank.locked

    def by_script(state: tuple[Rank, ...], number: int, what: str, layer: int) -> tuple[Rank, ...]:
        rank, step = state[number], state[number].place // per_step
        if what == "read" and rank.weights[layer] != (step,) * ranks:
            raise Fault(f"rank {number} reads {rank.weights[layer]} in step {step}")
        if what == "update":
            rank = rank._replace(weights=put(rank.weights, layer, put(rank.weights[layer], number, step + 1)))
        elif what == "give":
            rank = rank._replace(given=rank.given + 1)
        elif what == "add":
            rank = rank._replace(jobs=(*rank.jobs, (rank.added + 1, layer, False, MESSAGES)), added=rank.added + 1)
        return put(state, number, rank._replace(place=rank.place + 1))

    def may_pull(state: tuple[Rank, ...], rank: Rank) -> bool:
        what, which = rank.phase
        if what == "begin":
            return bool(rank.jobs)
        if what == "choose":
            return all(len(one.offers) > which for one in state)
        return what == "send" or all(len(one.sent) > which for one in state)

    def by_thread(state: tuple[Rank, ...], number: int) -> tuple[Rank, ...]:
        rank = state[number]
        what, which = rank.phase
        if what == "begin":
            layers = {layer for _, layer, begun, _ in rank.jobs if not begun}
            rank = rank._replace(jobs=tuple((job, layer, True, left) for job, layer, _, left in rank.jobs))
            rank = rank._replace(locked=rank.locked | layers, phase=("choose", rank.chosen))
            if len(rank.offers) == rank.chosen:
                rank = ask(rank, rank.jobs[-1][0])
        elif what == "choose":
            known = min(one.offers[which] for one in state)
            if without == "the agreement":
                known = rank.jobs[-1][0]
            layers = [layer for job, layer, _, left in rank.jobs if job <= known for _ in range(left)]
            if not layers:
                raise Fault(f"rank {number} was told of job {known}, which is done")
            begun = [job for job, _, begun, left in rank.jobs if begun for _ in range(left)]
            left = len(begun if without == "what all know" else layers) - 1
            if left or without == "a job that is left":
                rank = ask(rank, max(begun))
            rank = rank._replace(phase=("send", min(layers)), chosen=which + 1)
        elif what == "send":
            sent = (*rank.sent, (which, rank.weights[which][number]))
            rank = rank._replace(sent=sent, phase=("receive", len(rank.sent)), calls=rank.calls + "s")
            if without == "whole before it is read":
                rank = rank._replace(locked=rank.locked - {which})
        else:
            layers, versions = zip(*(one.sent[which] for one in state))
            if len(set(layers)) > 1:
                raise Fault(f"ranks exchange the layers {layers} for one another")
            (layer, *_) = layers
            left = {of: left - (of == layer) for _, of, _, left in rank.jobs}
            if not left[layer]:
                rank = rank._replace(weights=put(rank.weights, layer, versions), locked=rank.locked - {layer})
            jobs = tuple((job, of, begun, left[of]) for job, of, begun, _ in rank.jobs if left[of])
            rank = rank._replace(jobs=jobs, phase=("begin", 0))
        if any(not one.calls.startswith(rank.calls) and not rank.calls.startswith(one.calls) for one in state):
            raise Fault(f"rank {number} makes its calls in another order: {rank.calls}")
        return put(state, number, rank)

    def ask(rank: Rank, newest: int) -> Rank:
        return rank._replace(offers=(*rank.offers, newest), calls=rank.calls + "a")

    def outcome(state: tuple[Rank, ...]) -> str:
        if any(rank.place < len(program) or rank.jobs for rank in state):
            raise Fault(f"ranks wait for one another: {state}")
        return "ok"

    start = Rank(0, ("begin", 0), (), 0, frozenset(), ((0,) * ranks,) * LAYERS, 0, (), 0, (), "")
    return explore((start,) * ranks, transitions, outcome)


def put(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_step_reads_the_weights_of_the_update_before_it(ranks):
    finding = explored(ranks)
    assert not finding.fault and finding.outcomes == {"ok"}, str(finding)
    assert finding.states > 100


@pytest.mark.parametrize(
    "without, fault",
    [
        ("the lock", "reads"),
        ("waiting for the lock", "reads"),
        ("whole before it is read", "reads"),
        ("the agreement", "exchange the layers"),
        ("a job that is left", "which is done"),
        ("what all know", "in another order"),
    ],
)
def test_each_rule_is_needed(without, fault):
    assert fault in explored(2, without).fault
