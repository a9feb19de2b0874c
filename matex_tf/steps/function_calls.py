"""Calls of `tf.function` in eager code: steps of loops of one's own, and those of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.steps import agreement, capture, explain
from matex_tf.steps.arguments import Arguments
from matex_tf.steps.plan import NO_BATCH, NO_WORK, StepPlan
from matex_tf.steps.tapes import calls

_PLANS = "step plans"


class _Planned:
    """A plan, None where the call is the script's own, and references to what its key knows by address."""

    def __init__(self, plan: StepPlan | None, kept: list[Any]):
        self.plan, self.kept = plan, kept

    @property
    def holds(self) -> bool:
        return all(refer() is not None for refer in self.kept)


def call_function(
    original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_recorded: bool
) -> Any:
    """What `original(function, *args, **kwargs)` gives, a call in eager code, computed by all ranks where they can.

    is_recorded: whether tapes record.
    """
    from tensorflow.python.eager.polymorphic_function import function_type_utils

    try:
        bound = function_type_utils.canonicalize_function_inputs(
            args, kwargs, function._function_type, function._default_values, function._is_pure
        )
    except (TypeError, ValueError):  # as the call itself says
        return original(function, *args, **kwargs)
    arguments = Arguments(bound.args, bound.kwargs)
    if is_recorded:
        return calls.call_function(lambda: original(function, *args, **kwargs), function, arguments)
    plans: dict[Any, _Planned] = tags.get_or_make_tag(function, _PLANS, dict)
    key = arguments.make_key()
    planned = plans.get(key)
    if planned is None or not planned.holds:
        planned = plans[key] = _Planned(_make_plan(function, arguments), arguments.list_kept())
    plan = planned.plan
    if plan is None or plan.why_whole:
        if plan is not None and plan.trained and agreement.is_watched():
            agreement.note_step()
        return original(function, *args, **kwargs)
    given, named = arguments.given
    inputs = plan.own.function_type.unpack_inputs(plan.own.function_type.bind(*given, **named))
    return plan.call(inputs, arguments.list_sources())


def _make_plan(function: Any, arguments: Arguments) -> StepPlan | None:
    """The plan of calls like this one; None where the function cannot be traced for any number of rows. Collective."""
    args, kwargs = arguments.open_rows()
    own = capture.trace_open(function, args, kwargs)
    if own is None:
        return None
    bound = own.function_type.bind(*arguments.given[0], **arguments.given[1])
    rows = {id(leaf) for leaf, one in zip(arguments.leaves, arguments.are_rows) if one}
    are_rows = [id(tensor) in rows for tensor in own.function_type.unpack_inputs(bound)]
    place = explain.name_step(function)
    plan = StepPlan(own, are_rows, place, arguments.rows)
    is_usual = plan.why_whole in (NO_BATCH, NO_WORK) and not plan.trained
    if plan.program is None or plan.why_whole:
        explain.say_whole(place, plan.why_whole, is_usual)
    else:
        explain.say_shared(place, plan.program)
    return plan
