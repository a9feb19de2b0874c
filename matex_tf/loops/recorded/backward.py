"""Shares the way back of a step in eager code, where it is proved: each rank goes back through its rows.

`share_backward` is the way in, `proof` the proof. "The way back of eager steps" in docs/how-it-works.md tells the
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import settings
from matex_tf.adapt import executor
from matex_tf.gradients import reduction, variables
from matex_tf.loops import explain, model_calls
from matex_tf.loops.recorded import recording, retrace
from matex_tf.loops.recorded.program import Program
from matex_tf.resilience import script_loops
from matex_tf.runtime import objects
from matex_tf.sharding import fingerprint, row_shares, step_weight
from matex_tf.world import world

NOT_SEEN = "what runs under the tape was not seen"
NO_BATCH = "no tensor that is used under the tape holds rows"
OTHER_VALUES = "the ranks hold other values in the same step"
MANY = "what runs under the tape is another program from step to step"
ADVICE = "{}. In a @tf.function ranks share all of it that can be proved"
STEP = "in eager code the way back of a training step"
_MOST_PROGRAMS, _MOST_SIZES = 64, 2

_plans: dict[Any, _Plan] = {}
_count = 0
_is_crowded = False
"""Whether so many programs came but once that some were forgotten."""


class _Plan:
    """How a program is made: by every rank as a whole, which `why` explains, or by slices.

    number: how many programs came before it, which is the same on all ranks where all make the same ones.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.why = ""
        self.function: Any = None
        self.calls = 0


def is_wanted() -> bool:
    """Whether steps in eager code are shared."""
    chosen = settings.get_settings()
    return (
        world.is_active()
        and chosen.eager == "auto"
        and chosen.scaling == "strong"
        and not chosen.elastic
        and not step_weight.is_sliced()
        and not step_weight.is_within_slice()
    )


def share_backward(tape: Any, target: Any, sources: Any, use_up: Callable[[], Any]) -> list[Any] | None:
    """The gradients of the whole batch, flat, of which this rank computed a part; None where they are not shared.

    Collective where the program has been seen before. `use_up` makes of the tape what taking gradients makes of it.
    """
    import tensorflow as tf

    global _is_crowded
    known, flat = recording.find_recording(tape), tf.nest.flatten(sources)
    if not is_wanted() or not any(hasattr(reduction.find_tf_variable(source), "assign") for source in flat):
        return None
    why, program, plan, rows = NOT_SEEN, None, None, 0
    if known is not None:
        program = None if known.why else Program(known, tf.nest.flatten(target), flat)
        why = known.why if program is None else program.why
        if program is not None and not why:
            plan, rows, why = _choose_plan(program)
    is_new = plan is not None and plan.calls == 0
    if plan is not None:
        plan.calls += 1
    # Ranks that make something else, as where each draws numbers of its own, do not wait for one another in vain.
    mine = (why,) if plan is None else (plan.number, rows, plan.calls, plan.function is None)
    if set(objects.allgather(mine, "the gradients of a step in eager code")) != {mine}:
        plan, why = None, OTHER_VALUES
    if plan is None or program is None:
        model_calls.note_reason(tape, ADVICE.format(why))
        return None
    if is_new and _is_crowded:
        model_calls.note_reason(tape, ADVICE.format(MANY))
        return None
    model_calls.note_gain(tape)
    if is_new:
        return None  # what comes but once is not worth a trace
    if plan.function is None:
        _decide_sharing(plan, program, rows)
    if not plan.why:
        _compare_ranks(plan, program, rows)
    if plan.why:
        return None
    _is_crowded = False
    use_up()
    return _run_plan(plan, program, rows)


def _choose_plan(program: Program) -> tuple[_Plan | None, int, str]:
    """The plan for a program, the number of rows that its batch is taken to have, and why there is none."""
    global _count, _is_crowded
    why = ""
    for rows in program.list_batch_sizes()[:_MOST_SIZES]:
        key = program.make_key(rows)
        if key not in _plans and len(_plans) >= _MOST_PROGRAMS:
            for other in [other for other, plan in _plans.items() if plan.calls == 1]:
                del _plans[other]
            _is_crowded = True
            if len(_plans) >= _MOST_PROGRAMS:
                return None, 0, MANY
        if key not in _plans:
            _plans[key] = _Plan(_count)
            _count += 1
        plan = _plans[key]
        if not plan.why:
            return plan, rows, ""
        why = why or plan.why
    return None, 0, why or NO_BATCH


def _decide_sharing(plan: _Plan, program: Program, rows: int) -> None:
    """See whether ranks can share the program. Collective."""
    first = ""
    for meets in (False, True):
        plan.function, mine = retrace.trace_program(program, rows, meets)
        reasons = [one for one in objects.allgather(mine, "whether ranks can share the gradients of a step") if one]
        if not reasons:
            script_loops.say_loop()
            explain.say_shared(STEP, first)
            return
        first = first or reasons[0]
    plan.function, plan.why = None, first


def _compare_ranks(plan: _Plan, program: Program, rows: int) -> None:
    """Now and then, whether all ranks hold the same. Collective."""
    if plan.calls & (plan.calls - 1) == 0:
        total = program.compute_digest()
        for leaf in program.leaves:
            total = fingerprint.digest_value(leaf, total)
        if not fingerprint.is_same_batch((rows, total), "what the gradients of a step begin with"):
            plan.why = OTHER_VALUES


def _run_plan(plan: _Plan, program: Program, rows: int) -> list[Any]:
    me = world.get_world()
    executor.say_even(f"{STEP}, made", executor.MEASURED)
    start, stop, has_rows = row_shares.find_slice_bounds(rows, me.rank, me.trainers)
    given = [
        leaf[start:stop] if program.is_of(place, rows) else leaf
        for place, leaf in enumerate(program.leaves)
        if not program.is_fixed(place, rows)
    ]
    step_weight.set_values(step_weight.list_slice_values(stop - start if has_rows else 0, rows))
    try:
        found = list(plan.function(*given))
    finally:
        step_weight.set_whole()
    reduction.note_same(found)
    of = [one.variable for one, gradient in zip(program.sources, found) if one.variable is not None]
    variables.expect_agreement(of)
    variables.settle_agreements()
    return found
