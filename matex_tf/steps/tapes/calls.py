"""Calls of a Keras model, or of a `tf.function`, in eager code while tapes record. Ranks share them if that pays.

How a call of a kind (`first_calls.Kind`) is computed depends on the step (`_Call.compute`):

1. In the first step each rank makes the script's own call, and watches it for behavior that a trace does not show
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

from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import has_sequence, iterate_nodes
from matex_tf.runtime import script_frames
from matex_tf.steps import capture, own_data, whole_code
from matex_tf.steps.arguments import Arguments, attach_tensors, list_attached
from matex_tf.steps.tapes import first_calls, still_models
from matex_tf.steps.tapes.call_plan import CallPlan, pack_tensors
from matex_tf.steps.tapes.first_calls import Kind, Trace, find_kinds
from matex_tf.world import world

# Reasons why ranks cannot share calls, for messages.
KEEPS_TENSORS = "its Python keeps tensors of the call, such as losses that layers add"
OTHER_OPS = "its ops are others from call to call"
NO_TRACE = "its Python cannot be traced"
DRAWS = "it draws random numbers from a state that no variable holds"
OWN_GRADIENT = "a function in it has a gradient of its own (tf.custom_gradient)"
ONE_ROW = "have one row each, of which ranks can share nothing"
OBJECT = "take a Python object, which ranks cannot recognize in later calls"
_VALUES = (bool, int, float, complex, str, bytes, type(None))
"""The simple types: equal arguments of these types are of one kind."""
_MAX_KINDS, _MAX_PLANS = 64, 16
"""The most kinds of one model or function, and the most plans of one kind. Calls of further ones are not shared."""


def call_model(original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `original(model, *args, **kwargs)` while tapes record. Collective if ranks share the call."""
    if not getattr(model, "built", False):  # the call creates the model's variables
        return original(model, *args, **kwargs)
    args, kwargs = own_data.make_arrays_whole((args, kwargs), f"the call of '{model.name}'")
    return _ModelCall(original, model, args, kwargs).compute()


def call_function(plain: Callable[[], Any], function: Any, arguments: Arguments) -> Any:
    """The result of `plain()`, a call of a `tf.function`, while tapes record. Collective if ranks share the call."""
    return _FunctionCall(plain, function, arguments).compute()


class _Call:
    """A call while tapes record. Its kind keeps what ranks have found out about such calls (`first_calls.Kind`).

    owner: the model or `tf.function`.
    name: the name of the owner in messages.
    plain: makes the script's own call, and returns its result.
    links_results: see `call_plan.CallPlan`.
    """

    links_results = True

    def __init__(self, plain: Callable[[], Any], owner: Any, arguments: Arguments, name: str):
        self.plain, self.owner, self.arguments, self.name = plain, owner, arguments, name

    def watch(self, kind: Kind) -> Any:
        """The result of the script's own call. Behavior that a shared call could not have refuses the kind."""
        return first_calls.watch_call(self.plain, kind, self.links_results)

    def trace(self, kind: Kind) -> list[Any]:
        """Set `kind.trace`, unless the last trace is valid for this call. Returns the tensors among the arguments, in
        the order of the inputs of the trace.
        """
        raise NotImplementedError

    def unpack(self, outputs: Any) -> Any:
        """The result of the call, from the structured outputs of its trace."""
        return outputs

    def compute(self) -> Any:
        """The result of the call. Collective if ranks share the call."""
        kind = self._find_kind()
        if kind is None:
            return self.plain()
        if whole_code.gradient_count == kind.first_step:  # the first step has not ended: it has computed no gradients
            return self.watch(kind)
        if kind.is_agreed and kind.why:
            return self._compute_whole(kind)
        # Trace the call. A rank that has a reason of its own makes no trace, but agrees as the others do.
        tensors = [] if kind.why else self.trace(kind)
        if not kind.is_agreed:
            kind.agree(f"calls of '{self.name}' with {self.arguments.rows} rows")
        if kind.why or kind.trace is None:
            return self._compute_whole(kind)
        # If no tape can request gradients of it, the call is the script's own. A tape follows an input whose gradients
        # it may request.
        graph = kind.trace.graph
        tensors += kind.trace.outer
        are_followed = _find_followed(graph, tensors)
        if not any(are_followed):
            return self._compute_plain(kind)
        key = kind.trace.key, tuple(are_followed), world.get_world().size
        if key not in kind.plans:
            if len(kind.plans) == _MAX_PLANS:
                kind.refuse(OTHER_OPS)
                return self._compute_whole(kind)
            kind.plans[key] = self._make_plan(kind, kind.trace, tensors, are_followed)
        plan = kind.plans[key]
        if plan.why_whole:
            return self._compute_whole(kind)
        outputs = plan.call(tensors)
        kind.restore = None  # the Python code has run once for this call, in the trace, so its changes stay
        return self.unpack(pack_tensors(graph.structured_outputs, outputs))

    def _find_kind(self) -> Kind | None:
        """The kind of the call; None if ranks cannot share the call, whatever its code does."""
        tapes, arguments = first_calls.observed.tapes, self.arguments
        if not arguments.rows:
            if any(tensor.shape.as_list()[:1] == [1] for tensor in arguments.list_tensors()):
                whole_code.note_reason(tapes, f"the calls of '{self.name}' {ONE_ROW}")
            return None
        kinds = find_kinds(self.owner)
        # The names of the tensors that Keras has attached to each argument, such as a mask.
        attached = tuple(tuple(list_attached(leaf)) for leaf in arguments.leaves)
        key = len(tapes), attached, arguments.make_key()
        if not arguments.has_lasting_key:
            whole_code.note_reason(tapes, f"the calls of '{self.name}' {OBJECT}")
            return None
        if key not in kinds and len(kinds) >= _MAX_KINDS:
            return None
        return kinds.setdefault(key, Kind())

    def _compute_whole(self, kind: Kind) -> Any:
        """Make the script's own call because ranks cannot share the calls of `kind`."""
        reason = f"ranks cannot share the calls of '{self.name}': {kind.why}"
        whole_code.note_reason(first_calls.observed.tapes, reason)
        return self._compute_plain(kind)

    def _compute_plain(self, kind: Kind) -> Any:
        """Make the script's own call. If its Python code has already run for a trace, undo what that has changed."""
        restore, kind.restore = kind.restore, None
        if restore is not None:
            restore()
        return self.plain()

    def _make_plan(self, kind: Kind, trace: Trace, tensors: Sequence[Any], are_followed: list[bool]) -> CallPlan:
        """Plan calls with the ops of `trace`, and print how they are computed. Collective.

        tensors: the values of the trace's inputs.
        are_followed: for each input, whether its gradients may be requested.
        """
        arguments, name = self.arguments, f"the call of '{self.name}'"
        are_rows = arguments.find_rows(tensors)
        plan = CallPlan(trace.graph, are_rows, are_followed, name, arguments.rows, self.links_results)
        kind.refuse(plan.why_whole)
        if not plan.why_whole:
            whole_code.note_shared(self.name)
        return plan


class _ModelCall(_Call):
    """A call of a Keras model. `original(model, ...)` makes the script's own call."""

    def __init__(self, original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.original = original
        plain = functools.partial(original, model, *args, **kwargs)
        super().__init__(plain, model, Arguments(args, kwargs), str(model.name))

    def watch(self, kind: Kind) -> Any:
        tensors_before = set(map(id, still_models.list_kept_tensors(self.owner)))
        draws_before = first_calls.observed.draws
        result = super().watch(kind)
        if not tensors_before.issuperset(map(id, still_models.list_kept_tensors(self.owner))):
            kind.refuse(KEEPS_TENSORS)
        if first_calls.observed.draws != draws_before:
            kind.refuse(DRAWS)
        return result

    def trace(self, kind: Kind) -> list[Any]:
        model, arguments = self.owner, self.arguments
        if kind.trace is not None and kind.is_trace_valid():
            return arguments.list_tensors()
        # The trace runs the Python code. If the script's own call follows after all, the code runs a second time, and
        # must not find what it has changed.
        kind.restore = still_models.remember_python(model)
        graph = arguments.trace_call(lambda *call_args, **call_kwargs: self.original(model, *call_args, **call_kwargs))
        if graph is None:
            kind.refuse(NO_TRACE)
            return []
        kind.refuse(_find_hidden(model, graph))
        kind.trace = Trace(graph, [outer_tensor for outer_tensor, _ in graph.captures])
        are_simple = all(isinstance(leaf, (tf.Tensor, *_VALUES)) for leaf in arguments.leaves)
        kind.is_trace_valid = still_models.watch_model(model) if are_simple else lambda: False
        return arguments.list_tensors()

    def unpack(self, outputs: Any) -> Any:
        result, attached = outputs  # see `Arguments.trace_call`
        for tensor, tensors_by_name in zip(tf.nest.flatten(result, expand_composites=True), attached):
            attach_tensors(tensor, tensors_by_name)
        return result


class _FunctionCall(_Call):
    """A call of a `tf.function`, which keeps its traces itself."""

    links_results = False

    def __init__(self, plain: Callable[[], Any], function: Any, arguments: Arguments):
        name = str(getattr(inspect.unwrap(function.python_function), "__name__", "a function"))
        super().__init__(plain, function, arguments, name)

    def trace(self, kind: Kind) -> list[Any]:
        args, kwargs = self.arguments.given
        if kind.trace is None:
            traced = capture.trace_step(self.owner, args, kwargs)
            kind.trace = Trace(traced.graph, traced.captured_inputs)
            kind.function_type = traced.function_type
        return list(kind.function_type.unpack_inputs(kind.function_type.bind(*args, **kwargs)))


def _find_hidden(model: Any, graph: Any) -> str:
    """A behavior of a model's call that its trace does not show, if any."""
    from tensorflow.python.eager import record
    from tensorflow.python.framework import ops

    with record.stop_recording():
        has_losses = any(getattr(loss, "graph", None) is graph for loss in model.losses)
    if has_losses:
        return KEEPS_TENSORS
    if has_sequence(graph):
        return DRAWS
    for node in iterate_nodes(graph):
        name = node.attr["_gradient_op_type"].s if "_gradient_op_type" in node.attr else b""
        if name.startswith(b"CustomGradient") and not _is_of_libraries(ops.gradient_registry.lookup(name.decode())):
            return OWN_GRADIENT
    return ""


def _is_of_libraries(function: Any, seen_ids: frozenset[int] = frozenset()) -> bool:
    """Whether a function, and all that its closure can call, is code of TensorFlow or Keras; False if unknown."""
    if id(function) in seen_ids:
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
    return all(_is_of_libraries(item, seen_ids | {id(function)}) for item in items if callable(item))


def _find_followed(graph: Any, tensors: Sequence[Any]) -> list[bool]:
    """For each input of a call, whether a tape follows it: the tape records ops on it, and may request its gradients.

    graph: the trace of the call.
    tensors: the values of its inputs.
    """
    from tensorflow.python.eager import backprop_util, forwardprop_util, record
    from tensorflow.python.ops import resource_variable_ops

    if forwardprop_util.pack_tangents(list(tensors)).tangents:
        return [False] * len(tensors)  # forward-mode derivatives need the ops of the script's own call
    for variable in graph.variables:
        resource_variable_ops.variable_accessed(variable)  # as a read does: tapes then follow the variable
    return [backprop_util.IsTrainable(tensor) and record.should_record_backprop([tensor]) for tensor in tensors]
