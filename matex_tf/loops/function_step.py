"""A `tf.function` that trains: its arguments become slices on entry, and what it returns is whole on exit.

The eager code around it holds whole batches. Arguments that share their first dimension are taken for rows;
`_plan_step` traces the function for any number of them, and `_call_shared` calls it with this rank's.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from matex_tf import settings
from matex_tf.adapt import executor
from matex_tf.analysis import declarations, dry_trace, graph_ops, programs, verdict
from matex_tf.gradients import drift, overlap_trial, reduction, row_mixing
from matex_tf.loops import explain, model_calls, open_shapes, step_arguments, traces
from matex_tf.runtime import objects
from matex_tf.sharding import row_shares, step_weight
from matex_tf.world import world

WHOLE, SHARED = "whole", "shared"
OTHER = (
    "its Python does something else when it is traced for any number of rows: ask for sizes by tf.shape, and keep what "
    "it changes in a tf.Variable"
)

_plans: weakref.WeakKeyDictionary[Any, dict[Any, _Plan]] = weakref.WeakKeyDictionary()
_open: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Of each function the clone that is traced for open numbers of rows."""


class _Plan:
    """How calls of a function with arguments of some kinds are made."""

    def __init__(
        self,
        kind: str,
        function: Any,
        arguments: step_arguments.Arguments,
        why: str = "",
        calls_model: bool = False,
        meets: bool = False,
    ):
        self.kind, self.why, self.calls_model, self.meets = kind, why, calls_model, meets
        self.function = function  # None: the one that is called, which a plan of it must not keep alive
        self.calls = 0
        self.adapting: executor.Adapting | None = None
        self.kept = [leaf for leaf in arguments.leaves if not hasattr(leaf, "shape")]  # known to its key by address


def call_step(
    run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, str]:
    """What `run(function, args, kwargs)`, a call in eager code, gives, with slices where that is proved.

    Also why a step cannot be sharded; empty where it can, or trains nothing.
    """
    try:
        arguments = step_arguments.Arguments(function, args, kwargs)
    except TypeError:  # as the call itself says
        return run(function, args, kwargs), ""
    if not any(arguments.are_rows):
        sources = any(hasattr(leaf, "element_spec") for leaf in arguments.leaves)
        with traces.enter_frame(function, [], is_border=False):
            return run(function, args, kwargs), "" if sources else "none of its arguments holds rows"
    plans = _plans.setdefault(function, {})
    key = arguments.make_key()
    # Of a share, or in weak scaling, what the loop gives is this rank's own already.
    is_own = step_weight.is_sliced() or settings.get_settings().scaling == "weak"
    if key not in plans and not is_own:
        # As the script alone makes it: variables come to be, and whether it trains shows.
        updates = reduction.count_updates()
        model_calls.has_noticed()
        with traces.enter_frame(function, [], is_border=False):
            result = run(function, args, kwargs)
        calls_model = model_calls.has_noticed()
        if reduction.count_updates() == updates:
            plans[key] = _Plan(WHOLE, None, arguments)
        else:
            # Now, before the script sets what its Python reads in a trace to something else.
            own = function.get_concrete_function(*args, **kwargs).graph
            plans[key] = _plan_step(function, arguments, calls_model, own)
        return result, ""
    if key not in plans:
        plans[key] = _plan_step(function, arguments, is_own=is_own)
    plan = plans[key]
    if is_own and (plan.kind == SHARED or plan.why) and function in _open:
        with traces.enter_frame(function, step_arguments.list_placements(arguments), is_border=True):
            return run(_open[function], args, kwargs), plan.why
    if plan.kind == WHOLE or arguments.rows < 2 or is_own:
        with (
            traces.enter_frame(function, [], is_border=False),
            model_calls.share_models(plan.calls_model and not is_own),
        ):
            return run(plan.function if plan.function and not plan.meets else function, args, kwargs), plan.why
    frame = traces.enter_frame(function, step_arguments.list_placements(arguments), is_border=True, holds=True)
    with frame, row_mixing.resolve_mixing(plan.meets):
        return _call_shared(run, plan, arguments), ""


def _plan_step(
    function: Any,
    arguments: step_arguments.Arguments,
    calls_model: bool = False,
    own_graph: Any = None,
    is_own: bool = False,
) -> _Plan:
    """Trace `function` for an open number of rows and see what of it can be shared. Collective if it trains.

    Args:
        calls_model: whether it calls a Keras model under a tape, which can be shared by itself.
        own_graph: what its Python made in its own trace, where it has one. One for slices in which it makes something
            else is not used: it asks how many rows there are, or has changed, while it was traced, what it reads.
        is_own: whether it is given rows of this rank's own, which meet none of others.
    """
    own = None if own_graph is None else programs.read_program(own_graph)
    states = None if own_graph is None else traces.find_states(own_graph)
    start = states or dry_trace.read_random_states()
    # A trace that fails leaves a function in a state in which it can make no variables.
    made = _open.get(function) or function._clone(None)
    graph, mine = _trace_slices(made, function, arguments, states, own)
    if graph is not None:
        _open[function] = made
        if not graph_ops.has_reductions(graph):
            return _Plan(WHOLE, None, arguments)
    reasons = _gather_reasons(mine)
    is_compiled = bool(getattr(function, "_jit_compile", None))
    if not reasons:
        return _plan_shared(function, made, arguments, is_compiled)
    may_meet = not (is_own or is_compiled or settings.get_settings().elastic)
    if may_meet and not {traces.NAMED, OTHER} & set(reasons):
        made = function._clone(None)
        graph, mine = _trace_slices(made, function, arguments, start, own, meets=True)
        if not _gather_reasons(mine):
            return _plan_shared(function, made, arguments, is_compiled, meeting=reasons[0])
    if not calls_model or is_compiled:
        return _Plan(WHOLE, None, arguments, reasons[0])
    made = function._clone(None)
    with traces.enter_frame(function, [], is_border=False), model_calls.share_models(True):
        graph = _trace_graph(made, arguments.given, states)
    is_same = graph is not None and (own is None or programs.read_program(graph).figures <= own.figures)
    failed = _gather_reasons("" if is_same else "it cannot be traced again")
    return _Plan(WHOLE, None if failed else made, arguments, reasons[0], not failed)


def _plan_shared(
    function: Any, made: Any, arguments: step_arguments.Arguments, is_compiled: bool, meeting: str = ""
) -> _Plan:
    """The plan of `made`, traced for slices of `function`; `meeting`: why values are made whole in it, if they are."""
    name = explain.name_step(function)
    explain.say_shared(name, meeting)
    plan = _Plan(SHARED, made, arguments, meets=bool(meeting))
    plan.adapting = executor.make_adapting(name, is_compiled)
    return plan


def _trace_slices(
    made: Any,
    function: Any,
    arguments: step_arguments.Arguments,
    states: Any,
    own: programs.Program | None,
    meets: bool = False,
) -> tuple[Any, str]:
    """The graph of `made`, a clone of `function`, for an open number of rows, None if it has none, and why it cannot
    be sharded.
    """
    is_known = arguments.rows > 0 and getattr(function, "input_signature", None) is None
    frame = traces.enter_frame(made, step_arguments.list_placements(arguments), is_border=True)
    with frame, open_shapes.watch_rows(is_known), row_mixing.resolve_mixing(meets):
        graph = _trace_graph(made, arguments.replace_rows(step_arguments.make_open_spec), states)
    if graph is None:
        return None, traces.NAMED
    why = str(verdict.find_failure(graph) or "")
    if not declarations.has_declared(graph):
        why = "its trace is not known as that of the function"
    if own is not None and programs.read_program(graph, own).is_unlike(own):
        why = OTHER
    return graph, why


def _trace_graph(function: Any, given: tuple[tuple[Any, ...], dict[str, Any]], states: Any) -> Any:
    """The graph of a function for such arguments; None where its Python raises an error, as the call itself may.

    With `states` the script alone does not trace it now, and it is not to be noticed.
    """
    with contextlib.nullcontext() if states is None else dry_trace.suppress_effects(states):
        try:
            return overlap_trial.trace_function(function, *given).graph
        except Exception:  # of the script's code, any
            return None


def _gather_reasons(reason: str) -> list[str]:
    """The reasons that ranks have. Collective."""
    return [why for why in objects.allgather(reason, "whether ranks can share a training step") if why]


def _call_shared(
    run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any], plan: _Plan, arguments: step_arguments.Arguments
) -> Any:
    """The call with this rank's rows. Collective: now and then, whether all ranks hold the same ones."""
    plan.calls += 1
    count = arguments.rows
    if plan.calls & (plan.calls - 1) == 0:
        step_arguments.compare_arguments(arguments, plan.calls == 1, "the arguments of a training step")
    me, adapting = world.get_world(), plan.adapting
    start, stop, has_rows = row_shares.find_slice_bounds(count, me.rank, adapting.shares if adapting else me.trainers)
    args, kwargs = arguments.replace_rows(lambda leaf: leaf[start:stop])
    numbers = step_weight.list_slice_values(stop - start if has_rows else 0, count)
    step_weight.set_values(numbers)
    try:
        if adapting is None:
            return run(plan.function, args, kwargs)
        adapting.begin_step()
        result = run(plan.function, args, kwargs)
        adapting.end_step(lambda: numbers)
        return result
    finally:
        step_weight.set_whole()
        drift.watch_updates()
