"""A `tf.function` that trains: its arguments become slices on entry, and what it returns is whole on exit.

The eager code around it holds whole batches, wherever they come from. Arguments that share their first dimension are
taken for rows, and the function is traced for any number of them; if its graph shows that the ranks' parts make up all
that it returns and leaves behind (`analysis`), each rank calls it with its slice.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from matex_tf import settings
from matex_tf.adapt import executor
from matex_tf.analysis import dry_trace, graph_ops, interpreter, verdict
from matex_tf.gradients import overlap_trial, reduction
from matex_tf.loops import dataset_loop, explain, model_calls, open_shapes, step_arguments, traces
from matex_tf.runtime import objects
from matex_tf.sharding import row_shares, step_weight
from matex_tf.world import world

TRAINS, WHOLE, SHARED = "trains", "whole", "shared"
COUNTS = "its Python gives other numbers each time it is traced: keep what it changes in a tf.Variable"

_plans: weakref.WeakKeyDictionary[Any, dict[Any, _Plan]] = weakref.WeakKeyDictionary()
_open: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Of each function the clone that is traced for open numbers of rows."""


class _Plan:
    """How calls of a function with arguments of some kinds are made."""

    def __init__(
        self, kind: str, function: Any, arguments: step_arguments.Arguments, why: str = "", calls_model: bool = False
    ):
        self.kind, self.why, self.calls_model = kind, why, calls_model
        self.function = function  # None: the one that is called, which a plan of it must not keep alive
        self.calls = 0
        self.adapting: executor.Adapting | None = None
        self.kept = [leaf for leaf in arguments.leaves if not hasattr(leaf, "shape")]  # known to its key by address


def call(
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
        with traces.frame(function, [], is_border=False):
            return run(function, args, kwargs), "" if sources else "none of its arguments holds rows"
    plans = _plans.setdefault(function, {})
    key = arguments.key()
    # Of a share, or in weak scaling, what the loop gives is this rank's own already.
    is_own = step_weight.is_sliced() or settings.current().scaling == "weak"
    if key not in plans and not is_own:
        # As the script alone makes it: variables come to be, and whether it trains shows.
        updates, states = reduction.updates(), dry_trace.random_states()
        model_calls.noticed()
        with traces.frame(function, [], is_border=False):
            result = run(function, args, kwargs)
        calls_model = model_calls.noticed()
        if reduction.updates() == updates:
            plans[key] = _Plan(WHOLE, None, arguments)
        elif function._created_variables:
            # Alone, its next call traces it again, without the variables that came to be.
            plans[key] = _Plan(TRAINS, None, arguments, calls_model=calls_model)
        else:
            # Now, before the script sets what its Python reads in a trace to something else.
            plans[key] = _plan(function, arguments, calls_model, states, _figures_of(function, args, kwargs))
        return result, ""
    if key not in plans or plans[key].kind == TRAINS:
        plans[key] = _plan(function, arguments, key in plans and plans[key].calls_model)
    plan = plans[key]
    if is_own and (plan.kind == SHARED or plan.why) and function in _open:
        with traces.frame(function, step_arguments.placements(arguments), is_border=True):
            return run(_open[function], args, kwargs), plan.why
    if plan.kind == WHOLE or arguments.rows < 2 or is_own:
        with traces.frame(function, [], is_border=False), model_calls.shared(plan.calls_model and not is_own):
            return run(plan.function or function, args, kwargs), plan.why
    with traces.frame(function, step_arguments.placements(arguments), is_border=True, holds=True):
        return _shared(run, plan, arguments), ""


def _figures_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
    """What Python made of its own values in the trace that `function` was called with."""
    return graph_ops.figures(function.get_concrete_function(*args, **kwargs).graph)


def _plan(
    function: Any,
    arguments: step_arguments.Arguments,
    calls_model: bool,
    states: Any = None,
    figures: set[str] | None = None,
) -> _Plan:
    """Trace `function` for an open number of rows and see what of it can be shared. Collective if it trains.

    Args:
        calls_model: whether it calls a Keras model under a tape, which can be shared by itself.
        states: the random states of Python with which the script alone traces it, where it has been; else it is now.
        figures: the constants of its own trace, where it has one. Another that has others is not used: Python has
            changed, while it was traced, what it reads.
    """
    # A trace that fails leaves a function in a state in which it can make no variables.
    made = _open.get(function) or function._clone(None)
    is_known = arguments.rows > 0 and getattr(function, "input_signature", None) is None
    with traces.frame(made, step_arguments.placements(arguments), is_border=True), open_shapes.watched(is_known):
        graph = _traced(made, arguments.with_rows(step_arguments.of_any_rows), states)
    if graph is not None:
        _open[function] = made
        if not graph_ops.reduces(graph):
            return _Plan(WHOLE, None, arguments)
    mine = traces.NAMED if graph is None else str(verdict.failure(graph) or "")
    if graph is not None and not interpreter.has_declared(graph):
        mine = "its trace is not known as that of the function"
    if not mine and figures is not None and graph_ops.figures(graph) - figures:
        mine = COUNTS
    reasons = _of_all(mine)
    if not reasons:
        explain.say_shared(explain.name_of(function))
        plan = _Plan(SHARED, made, arguments)
        plan.adapting = executor.of_steps(explain.name_of(function), bool(getattr(function, "_jit_compile", None)))
        return plan
    if not calls_model or getattr(function, "_jit_compile", None):
        return _Plan(WHOLE, None, arguments, reasons[0])
    made = function._clone(None)
    with traces.frame(function, [], is_border=False), model_calls.shared(True):
        graph = _traced(made, arguments.given, states)
    is_same = graph is not None and (figures is None or graph_ops.figures(graph) <= figures)
    failed = _of_all("" if is_same else "it cannot be traced again")
    return _Plan(WHOLE, None if failed else made, arguments, reasons[0], not failed)


def _traced(function: Any, given: tuple[tuple[Any, ...], dict[str, Any]], states: Any) -> Any:
    """The graph of a function for such arguments; None where its Python raises an error, as the call itself may.

    With `states` the script alone does not trace it now, and it is not to be noticed.
    """
    with contextlib.nullcontext() if states is None else dry_trace.unnoticed(states):
        try:
            return overlap_trial.traced(function, *given).graph
        except Exception:  # of the script's code, any
            return None


def _of_all(reason: str) -> list[str]:
    """The reasons that ranks have. Collective."""
    return [why for why in objects.allgather(reason, "whether ranks can share a training step") if why]


def _shared(
    run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any], plan: _Plan, arguments: step_arguments.Arguments
) -> Any:
    """The call with this rank's rows. Collective: now and then, whether all ranks hold the same ones."""
    plan.calls += 1
    count = arguments.rows
    if plan.calls & (plan.calls - 1) == 0:
        step_arguments.compare(arguments, plan.calls == 1, "the arguments of a training step")
    me, adapting = world.current(), plan.adapting
    start, stop, has_rows = row_shares.slice_bounds(count, me.rank, adapting.shares if adapting else me.size)
    args, kwargs = arguments.with_rows(lambda leaf: leaf[start:stop])
    numbers = step_weight.slice_values(stop - start if has_rows else 0, count)
    step_weight.set_values(numbers)
    try:
        if adapting is None:
            return run(plan.function, args, kwargs)
        adapting.begins()
        result = run(plan.function, args, kwargs)
        adapting.ends(lambda: numbers)
        return result
    finally:
        step_weight.set_whole()
        dataset_loop.watch_drift()
