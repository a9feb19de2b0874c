"""Calls of `tf.function` in eager code: steps of loops of one's own, and those of Keras."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from matex_tf import tags
from matex_tf.steps import agreement, capture, explain, own_data, pieces
from matex_tf.steps.arguments import Arguments, is_source
from matex_tf.steps.plan import NO_BATCH, NO_WORK, StepPlan
from matex_tf.steps.tapes import calls
from matex_tf.world import world

_PLANS = "step plans"
NOT_SHARED = "it is compiled by XLA, or a tape records the call"
NOT_TRACED = "its code raised an error when it was traced for any number of rows"


class _Planned:
    """A plan, None where the call is the script's own, and references to what its key knows by address."""

    def __init__(self, plan: StepPlan | None, kept: list[Any]):
        self.plan, self.kept = plan, kept

    @property
    def holds(self) -> bool:
        is_current = self.plan is None or self.plan.pieces.holds
        return is_current and all(refer() is not None for refer in self.kept)


def call_function(
    original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_recorded: bool
) -> Any:
    """What `original(function, *args, **kwargs)` gives, a call in eager code, computed by all ranks where they can.

    is_recorded: whether tapes record.
    """
    from tensorflow.python.eager.polymorphic_function import function_type_utils

    if own_data.is_alone():
        return original(function, *args, **kwargs)
    if threading.current_thread() is not threading.main_thread():  # other threads are at other places on each rank
        return call_whole(original, function, args, kwargs)
    args, kwargs = own_data.make_arrays_whole((args, kwargs), explain.name_step(function))
    try:
        bound = function_type_utils.canonicalize_function_inputs(
            args, kwargs, function._function_type, function._default_values, function._is_pure
        )
    except (TypeError, ValueError):  # as the call itself says
        return original(function, *args, **kwargs)
    arguments = Arguments(bound.args, bound.kwargs)
    if is_recorded:
        _prepare_whole_call(function, args, kwargs, NOT_SHARED)
        return calls.call_function(lambda: original(function, *args, **kwargs), function, arguments)
    plans: dict[Any, _Planned] = tags.get_or_make_tag(function, _PLANS, dict)
    key = arguments.make_key()
    planned = plans.get(key)
    if planned is None or not planned.holds:
        planned = plans[key] = _Planned(_make_plan(function, arguments), arguments.kept)
    plan = planned.plan
    if plan is None or plan.why_whole:
        if plan is not None and plan.trained and agreement.is_watched():
            agreement.note_step()
        _prepare_whole_call(function, args, kwargs, NOT_TRACED if plan is None else plan.why_whole)
        return original(function, *args, **kwargs)
    given, named = arguments.given
    inputs = plan.own.function_type.unpack_inputs(plan.own.function_type.bind(*given, **named))
    return plan.call(inputs, arguments.list_sources())


def call_whole(original: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `original(function, *args, **kwargs)` gives where every rank computes it by itself."""
    import tensorflow as tf

    place = explain.name_step(function)
    args, kwargs = own_data.make_arrays_whole((args, kwargs), place)
    leaves = tf.nest.flatten((args, kwargs), expand_composites=False)
    runs_here = own_data.is_alone() or tf.config.functions_run_eagerly()  # so that its iterators give whole batches
    if not runs_here and any(is_source(leaf) and own_data.is_own(leaf) for leaf in leaves):
        raise world.RankError(own_data.explain_obstacle(place, NOT_SHARED))
    if not own_data.is_alone() and not tf.config.functions_run_eagerly():
        _prepare_whole_call(function, args, kwargs, NOT_SHARED)
    return original(function, *args, **kwargs)


def _prepare_whole_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> None:
    pieces.prepare_whole_call(function, args, kwargs, f"{explain.name_step(function)} is computed whole: {why}")


def _make_plan(function: Any, arguments: Arguments) -> StepPlan | None:
    """The plan of calls like this one; None where the function cannot be traced for any number of rows. Collective."""
    import tensorflow as tf

    place = explain.name_step(function)
    args, kwargs = arguments.open_rows()
    sources = [leaf for leaf in arguments.leaves if is_source(leaf) and own_data.is_own(leaf)]
    for leaf in sources:
        if isinstance(leaf, tf.data.Dataset):
            own_data.note_dataset(leaf)
    own = capture.trace_open(function, args, kwargs)
    if own is None:
        if sources:
            raise world.RankError(own_data.explain_obstacle(place, NOT_TRACED))
        explain.say_whole(place, NOT_TRACED, is_usual=True)
        return None
    bound = own.function_type.bind(*arguments.given[0], **arguments.given[1])
    rows = {id(leaf) for leaf, one in zip(arguments.leaves, arguments.are_rows) if one}
    inputs = own.function_type.unpack_inputs(bound)
    are_rows = [id(tensor) in rows for tensor in inputs]
    are_own = [own_data.is_own(tensor) for tensor in inputs]
    plan = StepPlan(own, are_rows, are_own, place, arguments.rows)
    is_usual = plan.why_whole in (NO_BATCH, NO_WORK) and not plan.trained
    if plan.program is None or plan.why_whole:
        explain.say_whole(place, plan.why_whole, is_usual)
    else:
        explain.say_shared(place, plan.program)
    return plan
