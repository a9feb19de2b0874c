"""The protocol of docs/protocol.md in all interleavings of 2 and 3 ranks: nobody waits for ever, and sums are of the
same update; and without any one of its rules there is a way to go wrong, which the explorer finds.
"""

from __future__ import annotations

import itertools

import pytest
from protocol.explorer import Fault, explore
from protocol.model import BREAKS, Op, Program, Protocol, Step

RAISE = Op("raise")


def update(name: str, entries: int, before: tuple[int, ...] = (), place: int = 0) -> tuple[Op, ...]:
    """An announcement that stands at `place` of its step, and gradients that may come in any order after it."""
    return (Op("announce", name, after=before), *(Op("gradient", name, entry, (place,)) for entry in range(entries)))


def one_by_one(*ops: Op) -> tuple[Step, ...]:
    return tuple(Step((op,)) for op in ops)


def check(*programs: Program, **options) -> set:
    finding = Protocol(*programs, **options).explore()
    assert not finding.fault, str(finding)
    return finding.outcomes


X, Y, Z, TALK = Op("sum", "x"), Op("sum", "y"), Op("sum", "z"), Op("control", "talk")
SIMPLE = (Step((X,)), Step((Y,)), Step((TALK,)), Step(update("a", 2)))
# Two updates under way at once, or an update in two parts, and between their announcements a collective, of which the
# second is made.
BUSY = Step((*update("a", 2), Op("sum", "statistics", after=(0,)), *update("b", 1, (3,), 4)))
# The second update of the step waits for the sum of the first, as in a loop.
CHAINED = Step((*update("a", 2), Op("announce", "b", after=(0,)), Op("gradient", "b", 0, (1, 3))))
GRAPH = Step((X, Y, TALK), turns=True)
FAILS = {
    "before it is announced": Step((RAISE, *update("a", 2, (0,), 1))),
    "before any gradient": Step(
        (Op("announce", "a"), RAISE, Op("gradient", "a", 0, (1,)), Op("gradient", "a", 1, (1,)))
    ),
    "before its last gradient": Step((*update("a", 1), RAISE, Op("gradient", "a", 1, (2,)))),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("step", [Step((X, TALK._replace(after=(0,)))), Step(update("a", 2)), CHAINED, GRAPH])
def test_programs_that_agree_end_with_one_result(step, ranks):
    assert check(*[Program((step,))] * ranks, learns=True) == {"the same result"}


def test_updates_of_several_steps_with_collectives_between():
    steps = (Step(update("a", 2)), Step((Y,)), Step(update("b", 1)))
    assert check(*[Program(steps)] * 2, learns=True) == {"the same result"}
    assert check(*[Program((BUSY,))] * 2, learns=True) == {"the same result"}
    assert check(*[Program((BUSY,))] * 3) == {"the same result"}


def test_all_pairs_of_short_programs_agree_or_end_with_an_error_on_both():
    choices = [steps for length in range(3) for steps in itertools.product(SIMPLE, repeat=length)]
    choices = [steps for steps in choices if len({id(step) for step in steps}) == len(steps)]
    for mine, other in itertools.product(choices, repeat=2):
        for catches in itertools.product((False, True), repeat=2):
            outcomes = check(*(Program(steps, one) for steps, one in zip((mine, other), catches)))
            assert outcomes == {"the same result" if mine == other else "an error"}, (mine, other)


@pytest.mark.parametrize("catches", [False, True])
def test_one_of_three_ranks_goes_another_way(catches):
    common = Program(SIMPLE[:2] + SIMPLE[3:], catches)
    for steps in (
        (),  # leaves at once
        common.steps[:2],  # one step less
        (*common.steps, Step((Z,))),  # one more
        (common.steps[1], common.steps[0], common.steps[2]),  # another order
        (*common.steps[:2], Step(update("another layout", 2))),
    ):
        for place in range(3):
            programs = [common, common]
            programs.insert(place, Program(steps, catches))
            assert check(*programs) == {"an error"}


@pytest.mark.parametrize("when", FAILS)
@pytest.mark.parametrize("catches", itertools.product((False, True), repeat=2))
def test_a_step_that_fails_on_one_rank_is_an_error_on_all(when, catches):
    steps = (Step(update("a", 2)), Step((X,)))
    assert check(Program(steps, catches[0]), Program((FAILS[when], *steps[1:]), catches[1])) == {"an error"}
    three = [Program(steps[:1], catches[0])] * 2 + [Program((FAILS[when],), catches[1])]
    assert check(*three) == {"an error"}


def test_a_busy_step_that_fails_on_one_rank():
    for place in range(1, len(BUSY.ops)):
        ops = list(BUSY.ops)
        ops[place] = RAISE._replace(after=ops[place].after)
        failing = Step(tuple(ops))
        for catches in (False, True):
            programs = Program((BUSY, Step((X,))), catches), Program((failing, Step((X,))), catches)
            assert check(*programs) == {"an error"}, place


def test_ranks_that_announce_an_update_in_other_parts():
    """Of a backward pass with collectives: here in two parts, there in three, or after all of them."""
    two = Step((*update("a", 1), X._replace(after=(0,)), *update("b", 1, (2,), 3)))
    three = Step((*two.ops, Y._replace(after=(3,)), *update("c", 1, (5,), 6)))
    at_last = Step((X, *update("a and b", 2, (0,), 1)))
    for mine, other in itertools.product((two, three, at_last), repeat=2):
        for catches in itertools.product((False, True), repeat=2):
            programs = [Program((step, Step((Z,))), one) for step, one in zip((mine, other), catches)]
            assert check(*programs) == {"the same result" if mine is other else "an error"}


def test_an_update_that_nobody_gives_up_is_given_up_at_the_end():
    """Where a step fails and nothing cancels it, the others' gradients wait until the script ends."""
    whole = Program((Step(update("a", 2)),), catches=True)
    for when in ("before any gradient", "before its last gradient"):
        failing = Program((FAILS[when]._replace(cancels=False),), catches=True)
        assert check(whole, failing) == {"an error"}


def test_a_gradient_must_not_wait_for_a_collective_that_comes_after_its_announcement():
    """Ranks that differ could then not tell each other: one's thread waits for a gradient, the other at a meeting."""
    step = Step((Op("announce", "a"), X._replace(after=(0,)), Op("gradient", "a", 0, (0, 1))))
    assert check(*[Program((step,))] * 2) == {"the same result"}
    other = Step(update("a", 1))
    assert "wait for ever" in Protocol(Program((step,)), Program((other,))).explore().fault
    # As it is: what a gradient is made of has been met for before.
    step = Step((X, *update("a", 1, (0,), 1)))
    assert check(Program((step,)), Program((other,))) == {"an error"}


TWO = Step((*update("a", 1), *update("b", 1, (0,), 2)))
UNORDERED = Step((*update("a", 1), *update("b", 1, (), 2)))
LOST = FAILS["before any gradient"]._replace(cancels=False)
WITHOUT = [
    # What is left out, the ranks' steps and whether they catch errors, what goes wrong and after how many transitions.
    (("no readiness",), [(Step(update("a", 2)),), (FAILS["before its last gradient"],)], True, "wait for ever", 13),
    (("by hand-over",), [(TWO,)] * 2, False, "an error where all agree", 0),
    (("by hand-over", "no readiness"), [(TWO,)] * 2, False, "ranks mix", 13),
    (("no poison",), [one_by_one(X, Y, Z), one_by_one(Y, X, Z)], True, "parted meet again", 19),
    (("no poison", "no abort"), [one_by_one(X), one_by_one()], True, "wait for ever", 8),
    (("no meeting",), [one_by_one(X, Y), one_by_one(Y, X)], False, "ranks mix", 3),
    (("no meeting",), [one_by_one(X), one_by_one()], False, "wait for ever", 2),
    (("one communicator",), [(BUSY,)] * 2, False, "meets", 10),
    (("data without mutex",), [(Step((X, Y)),)] * 2, False, "ranks mix", 9),
    (("ticket without mutex",), [(UNORDERED,)] * 2, False, "ranks mix", 16),
    (("control without lock",), [(Step((TALK, Op("control", "more"))),)] * 2, False, "ranks mix", 9),
    (("no turns",), [(GRAPH,)] * 2, False, "an error where all agree", 0),
    (("no settling",), [(Step(update("a", 1)),)] * 2, False, "ends MPI while its thread is in it", 17),
    (("end without giving up",), [(Step(update("a", 1)),), (LOST,)], True, "wait for ever", 11),
]


@pytest.mark.parametrize("broken, steps, catches, wrong, most", WITHOUT, ids=[" and ".join(row[0]) for row in WITHOUT])
def test_what_each_rule_is_for(broken, steps, catches, wrong, most):
    programs = [Program(one, catches) for one in steps]
    learns = "no settling" in broken
    unordered = steps[0][0] is UNORDERED or "control without lock" in broken or "data without mutex" in broken
    finding = Protocol(*programs, learns=learns).explore()  # with the rules nothing goes wrong
    assert not finding.fault and (unordered or len(finding.outcomes) == 1), str(finding)
    finding = Protocol(*programs, broken=broken, learns=learns).explore()
    if wrong == "an error where all agree":
        assert not finding.fault and finding.outcomes == {"the same result", "an error"}
    else:
        assert wrong in finding.fault and len(finding.trace) == most, str(finding)


def test_every_rule_is_left_out_once():
    assert {one for row in WITHOUT for one in row[0]} == set(BREAKS)


def test_the_explorer_finds_the_shortest_way():
    def steps(n: int):
        for by in (1, 3):
            if n + by <= 10:
                yield f"+{by}", lambda by=by: n + by

    def outcome(n: int) -> int:
        if n == 10:
            raise Fault("ten")
        return n

    finding = explore(0, steps, outcome)
    assert finding.fault == "ten" and len(finding.trace) == 4
