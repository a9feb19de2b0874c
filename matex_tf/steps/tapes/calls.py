"""Calls of a Keras model, or of a `tf.function`, in eager code while tapes record. Ranks share them if that pays.

A *kind* is a group of calls of one model or function with arguments of the same types and shapes. How a call of a kind
is computed depends on the step:

1. In the first step it is the script's own call, which is watched for behavior that a trace does not show
   (`first_calls`), such as Python code that reads values of tensors.
2. Before the next call the ranks agree: if one of them has seen such behavior, no rank shares calls of the kind.
3. In later steps a trace of the call is made. The Python code of a model runs once for each call, as it does alone,
   unless nothing in the model has changed (`still_models`). The ops of the trace select the plan (`call_plan`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf import settings
from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import iterate_nodes
from matex_tf.runtime import notes, script_frames
from matex_tf.steps import capture, events, own_data, whole_code
from matex_tf.steps.arguments import Arguments, attach_tensors, list_attached
from matex_tf.steps.tapes import first_calls, still_models
from matex_tf.steps.tapes.call_plan import CallPlan, pack_tensors
from matex_tf.steps.tapes.first_calls import Kind, Trace, find_kinds
from matex_tf.world import world

LEAVES = "its Python keeps tensors of the call, such as losses that layers add"
OTHER_OPS = "its ops are others from call to call"
NO_TRACE = "its Python cannot be traced"
DRAWS = "it draws random numbers from a state that no variable holds"
OWN_GRADIENT = "a function in it has a gradient of its own (tf.custom_gradient)"
_DRAWING = frozenset(
    "RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal ParameterizedTruncatedNormal RandomGamma "
    "RandomPoissonV2 RandomShuffle Multinomial".split()
)
ONE_ROW = "have one row each, of which ranks can share nothing"
OBJECT = "take an object of Python, of which nothing shows whether it is the one of a call before"
_VALUES = (bool, int, float, complex, str, bytes, type(None))
"""The simple types: equal arguments of these types are of one kind."""
_MAX_KINDS, _MAX_PLANS = 64, 16
Call = Callable[..., Any]


def call_model(original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `original(model, *args, **kwargs)` while tapes record. Collective if ranks share the call."""

    def trace(arguments: Arguments, kind: Kind) -> list[Any]:  # see `_call` for the three functions
        if kind.trace is None or not kind.is_trace_valid():
            kind.undo = still_models.remember_python(model)
            graph = arguments.trace_call(lambda *given, **named: original(model, *given, **named))
            if graph is None:
                kind.refuse(NO_TRACE)
                return []
            kind.refuse(_find_hidden(model, graph))
            kind.trace = Trace(graph, [outer for outer, _ in graph.captures])
            are_simple = all(isinstance(leaf, (tf.Tensor, *_VALUES)) for leaf in arguments.leaves)
            kind.is_trace_valid = still_models.watch_model(model) if are_simple else lambda: False
        return arguments.list_tensors()

    def watched(kind: Kind) -> Any:
        tensors_before = set(map(id, still_models.list_kept_tensors(model)))
        draws_before = first_calls.observed.draws
        result = first_calls.watch_call(plain, kind)
        if not tensors_before.issuperset(map(id, still_models.list_kept_tensors(model))):
            kind.refuse(LEAVES)
        if first_calls.observed.draws != draws_before:
            kind.refuse(DRAWS)
        return result

    def unpack(result: Any) -> Any:
        outputs, attached = result  # see `Arguments.trace_call`
        for tensor, tensors_by_name in zip(tf.nest.flatten(outputs, expand_composites=True), attached):
            attach_tensors(tensor, tensors_by_name)
        return outputs

    if not getattr(model, "built", False):  # the call creates the model's variables
        return original(model, *args, **kwargs)
    args, kwargs = own_data.make_arrays_whole((args, kwargs), f"the call of '{model.name}'")
    plain = functools.partial(original, model, *args, **kwargs)
    return _call(plain, watched, trace, unpack, owner=model, arguments=Arguments(args, kwargs), name=str(model.name))


def call_function(plain: Callable[[], Any], function: Any, arguments: Arguments) -> Any:
    """The result of `plain()`, a call of a `tf.function`, while tapes record. Collective if ranks share the call."""

    def trace(arguments: Arguments, kind: Kind) -> list[Any]:
        if kind.trace is None:
            traced = capture.trace_step(function, *arguments.given)
            kind.trace = Trace(traced.graph, traced.captured_inputs)
            kind.function_type = traced.function_type
        args, kwargs = arguments.given
        return list(kind.function_type.unpack_inputs(kind.function_type.bind(*args, **kwargs)))

    watched = functools.partial(first_calls.watch_call, plain)
    name = str(getattr(inspect.unwrap(function.python_function), "__name__", "a function"))
    return _call(plain, watched, trace, lambda result: result, owner=function, arguments=arguments, name=name)


def _find_hidden(model: Any, graph: Any) -> str:
    """A behavior of a model's call that its trace does not show, if any."""
    from tensorflow.python.eager import record
    from tensorflow.python.framework import ops

    with record.stop_recording():
        has_losses = any(getattr(loss, "graph", None) is graph for loss in model.losses)
    if has_losses:
        return LEAVES
    for node in iterate_nodes(graph):
        if node.op in _DRAWING:
            return DRAWS
        name = node.attr["_gradient_op_type"].s if "_gradient_op_type" in node.attr else b""
        if name.startswith(b"CustomGradient") and not _is_of_libraries(ops.gradient_registry.lookup(name.decode())):
            return OWN_GRADIENT
    return ""


def _is_of_libraries(function: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a function, and all that its closure can call, is code of TensorFlow or Keras; False if unknown."""
    if id(function) in seen:
        return True
    if not inspect.isfunction(function):
        return False
    if script_frames.find_function_package(function) not in still_models.LIBRARIES:
        return False
    try:
        contents = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable without a value
        return False
    items = [item for content in contents for item in still_models.list_items(content)]
    return all(_is_of_libraries(item, seen | {id(function)}) for item in items if callable(item))


def _call(plain: Call, watched: Call, trace: Call, unpack: Call, owner: Any, arguments: Arguments, name: str) -> Any:
    """The result of `plain()`, a call of `owner`, which `name` names in messages. Collective if ranks share the call.

    watched: (kind) calls `plain`, and records for the kind of call which behavior a shared call could not have.
    trace: (arguments, kind) sets the trace of the kind, if it has one, and returns tensors for the trace's inputs.
    unpack: maps the structured outputs of the trace to the result of the call.
    """
    kind = _find_kind(owner, arguments, name)
    if kind is None:
        return plain()
    if whole_code.gradient_count == kind.first_at:  # the first step has not ended
        return watched(kind)
    if kind.is_agreed and kind.why:
        return _run_whole(plain, kind, name)
    # Trace the call. A rank that has a reason of its own makes no trace, but agrees as the others do.
    tensors = [] if kind.why else trace(arguments, kind)
    if not kind.is_agreed:
        kind.agree(f"calls of '{name}' with {arguments.rows} rows")
    if kind.why or kind.trace is None:
        return _run_whole(plain, kind, name)
    # If no tape requests gradients of it, the call is the script's own.
    graph = kind.trace.graph
    tensors += kind.trace.outer
    followed = _list_followed(graph, tensors)
    if not any(followed):
        return _run_plain(plain, kind)
    # Run the plan of these ops.
    key = kind.trace.key, tuple(followed), world.get_world().size
    if key not in kind.plans:
        kind.plans[key] = _make_plan(kind, kind.trace, arguments, tensors, followed, name)
    plan = kind.plans[key]
    if plan.why_whole:
        return _run_whole(plain, kind, name)
    kind.why = kind.next_why
    followed_tensors = [tensor for tensor, is_followed in zip(tensors, followed) if is_followed]
    outputs = plan.call(tensors, arguments.rows, followed_tensors)
    kind.undo = None
    return unpack(pack_tensors(graph.structured_outputs, outputs))


def _find_kind(owner: Any, arguments: Arguments, name: str) -> Kind | None:
    """The kind of a call; None if ranks cannot share it, whatever its code does."""
    tapes = first_calls.observed.tapes
    if arguments.rows < 2:
        if arguments.rows:
            whole_code.note_reason(tapes, f"the calls of '{name}' {ONE_ROW}")
        return None
    kinds = find_kinds(owner)
    attached = tuple(tuple(list_attached(leaf)) for leaf in arguments.leaves)
    key = len(tapes), attached, arguments.make_key()
    if not arguments.has_lasting_key:
        whole_code.note_reason(tapes, f"the calls of '{name}' {OBJECT}")
        return None
    if key not in kinds and len(kinds) >= _MAX_KINDS:
        return None
    return kinds.setdefault(key, Kind())


def _run_whole(plain: Callable[[], Any], kind: Kind, name: str) -> Any:
    whole_code.note_reason(first_calls.observed.tapes, f"ranks cannot share the calls of '{name}': {kind.why}")
    return _run_plain(plain, kind)


def _run_plain(plain: Callable[[], Any], kind: Kind) -> Any:
    undo, kind.undo = kind.undo, None
    if undo is not None:  # the Python code has run for a trace, and runs again now
        undo()
    return plain()


def _list_followed(graph: Any, tensors: Sequence[Any]) -> list[bool]:
    """For each input of a call, whether a recording tape requests its gradients."""
    from tensorflow.python.eager import backprop_util, forwardprop_util, record
    from tensorflow.python.ops import resource_variable_ops

    if forwardprop_util.pack_tangents(list(tensors)).tangents:
        return [False] * len(tensors)  # forward-mode derivatives use the call itself
    for variable in graph.variables:
        resource_variable_ops.variable_accessed(variable)
    return [backprop_util.IsTrainable(tensor) and record.should_record_backprop([tensor]) for tensor in tensors]


def _make_plan(
    kind: Kind, trace: Trace, arguments: Arguments, tensors: Sequence[Any], followed: list[bool], name: str
) -> CallPlan:
    """Plan calls with these ops, and tell how they are computed. Collective."""
    if len(kind.plans) + 1 == _MAX_PLANS:
        kind.next_why = OTHER_OPS  # for later calls
    given = [one for one in arguments.list_tensors() if one.shape.rank]
    row_ids = {id(one) for one in given if one.shape.as_list()[0] == arguments.rows}
    are_rows = [id(tensor) in row_ids for tensor in tensors]
    call = f"the call of '{name}'"
    # The number of rows is in the place, so that errors show numbers that differ.
    plan = CallPlan(trace.graph, are_rows, followed, f"{call} with {arguments.rows} rows")
    if plan.why_whole:
        kind.refuse(plan.why_whole)
        return plan
    whole_code.note_shared(name)
    events.unmeasured(call)
    if settings.get_settings().explain:
        notes.print_note(f"in eager code {call} is sharded: each rank computes its slice of every batch")
    return plan
