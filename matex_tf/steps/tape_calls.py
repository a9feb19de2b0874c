"""Calls in eager code while tapes record: of a Keras model, or of a `tf.function`. Ranks share them where that pays.

The Python of a model runs in each call, as it does alone: in a trace, of which the ops say which plan the call has. The
calls of the first step are the script's own, and show what a trace would not do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf.loops import explain
from matex_tf.rewrite.functions import has_op
from matex_tf.runtime import objects, script_frames
from matex_tf.steps import capture, still_models, whole_code
from matex_tf.steps.arguments import Arguments, hang_on, list_hung
from matex_tf.steps.call_plan import AGAIN, CallPlan

READS = "its Python reads the values of tensors"
LEAVES = "its Python keeps tensors of the call, such as losses that layers add"
OTHER_RESULTS = "its results are not tensors alone"
OTHER_OPS = "its ops are others from call to call"
NO_TRACE = "its Python cannot be traced for any number of rows"
DRAWS = "it draws random numbers from a state that no variable holds"
OWN_GRADIENT = "a function in it has a gradient of its own (tf.custom_gradient)"
_DRAWING = (
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "Multinomial",
)
_KINDS = "_matex_kinds_of_calls"
_MOST_KINDS, _MOST_PLANS = 64, 16

_state = threading.local()


def note_read(tensor: Any) -> None:
    """The values of an eager tensor are read: such as a trace does not have, where Python may go on without.

    A single truth value or whole number is what TensorFlow's branches, loops and arrays read in eager code.
    """
    if tensor.shape.rank == 0 and (tensor.dtype.is_bool or tensor.dtype.is_integer):
        return
    _state.reads = getattr(_state, "reads", 0) + 1


def note_draw() -> None:
    """A random number is drawn from a state that no variable holds."""
    _state.draws = getattr(_state, "draws", 0) + 1


def get_tapes() -> list[Any]:
    """The tapes that record in this thread, outermost first."""
    tapes: list[Any] = _state.__dict__.setdefault("tapes", [])
    return tapes


class _Shared(NamedTuple):
    """What ranks have computed together."""

    outputs: Any


class _Trace:
    """The graph of a call; `outer`: the tensors that it captures."""

    def __init__(self, graph: Any, outer: Sequence[Any]):
        import tensorflow as tf

        self.graph, self.outer = graph, list(outer)
        held = tuple(id(one) for one in outer if one.dtype == tf.resource)
        self.key = capture.digest_graph(graph), held


class _Kind:
    """How calls with arguments of one kind are made: whole, which `why` explains, or by the plan of their ops.

    first_at: so many gradients had been taken when the first call was made.
    trace: the last one; it is that of the next call, too, where `is_still()`.
    """

    def __init__(self) -> None:
        self.why = self.next_why = ""
        self.undo: Callable[[], None] | None = None
        self.is_agreed = False
        self.first_at = whole_code.count_gradients()
        self.trace: _Trace | None = None
        self.function_type: Any = None
        self.is_still: Callable[[], bool] = lambda: False
        self.plans: dict[Any, CallPlan] = {}

    def refuse(self, why: str) -> None:
        self.why = self.why or why

    def agree(self, place: str) -> None:
        """All ranks share such calls or none does: what the first calls have shown is each rank's own. Collective."""
        self.is_agreed = True
        reasons = objects.allgather(self.why, f"what the first step has shown of {place}")
        self.why = next(filter(None, reasons), "")


def call_model(original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `original(model, *args, **kwargs)` gives while tapes record. Collective where ranks share it."""
    import tensorflow as tf

    def trace(arguments: Arguments, kind: _Kind) -> list[Any]:
        if kind.trace is None or not kind.is_still():
            kind.undo = still_models.remember_python(model)
            graph = arguments.trace_call(lambda *given, **named: original(model, *given, **named))
            if graph is None:
                kind.refuse(NO_TRACE)
                return []
            kind.refuse(_find_hidden(model, graph))
            kind.trace = _Trace(graph, [outer for outer, _ in graph.captures])
            kind.is_still = still_models.watch_model(model)
        return arguments.list_tensors()

    if not getattr(model, "built", False):
        return original(model, *args, **kwargs)

    def plain() -> Any:
        return original(model, *args, **kwargs)

    def watched(kind: _Kind) -> Any:
        before, draws = {id(one) for one in still_models.list_kept_tensors(model)}, getattr(_state, "draws", 0)
        result = _watch(plain, kind)
        if any(id(one) not in before for one in still_models.list_kept_tensors(model)):
            kind.refuse(LEAVES)
        if getattr(_state, "draws", 0) != draws:
            kind.refuse(DRAWS)
        return result

    result = _call(plain, watched, model, Arguments(args, kwargs), trace, str(model.name))
    if not isinstance(result, _Shared):
        return result
    made, hung = result.outputs
    for one, more in zip(tf.nest.flatten(made, expand_composites=True), hung):
        hang_on(one, more)
    return made


def call_function(plain: Callable[[], Any], function: Any, arguments: Arguments) -> Any:
    """What `plain()` gives, a call of a `tf.function`, while tapes record. Collective where ranks share it."""

    def trace(arguments: Arguments, kind: _Kind) -> list[Any]:
        if kind.trace is None:
            own = capture.trace_open(function, *arguments.open_rows())
            if own is None:
                kind.refuse(NO_TRACE)
                return []
            kind.trace = _Trace(own.graph, own.captured_inputs)
            kind.function_type = own.function_type
        given, named = arguments.given
        return list(kind.function_type.unpack_inputs(kind.function_type.bind(*given, **named)))

    def watched(kind: _Kind) -> Any:
        return _watch(plain, kind)

    result = _call(plain, watched, function, arguments, trace, explain.name_function(function))
    return result.outputs if isinstance(result, _Shared) else result


def _find_hidden(model: Any, graph: Any) -> str:
    """What the trace of a model's call does not show of the call, if anything."""
    from tensorflow.python.framework import ops

    losses = [one for one in model.losses if getattr(one, "graph", None) is graph]
    if losses:
        return LEAVES
    for op in graph.get_operations():
        if op.type in _DRAWING or has_op(op, _DRAWING):
            return DRAWS
        name = op.node_def.attr["_gradient_op_type"].s if "_gradient_op_type" in op.node_def.attr else b""
        if name.startswith(b"CustomGradient"):
            function = ops.gradient_registry.lookup(name.decode())
            inner = dict(zip(function.__code__.co_freevars, function.__closure__ or ())).get("grad_fn")
            if inner is None or script_frames.find_function_package(inner.cell_contents) not in still_models.LIBRARIES:
                return OWN_GRADIENT
    return ""


def _call(
    plain: Callable[[], Any],
    watched: Callable[[_Kind], Any],
    owner: Any,
    arguments: Arguments,
    trace: Callable[[Arguments, _Kind], list[Any]],
    name: str,
) -> Any:
    """What `plain()` gives, a call of `owner`, which `name` is in messages.

    watched: does the same and notes for the kind of call what a shared call could not do.
    trace: sees to the trace of the kind of call, and gives tensors for its inputs; where it cannot be had it says why.

    Returns what the graph gives as `_Shared`.
    """
    if arguments.rows < 2:
        return plain()
    kinds = _find_kinds(owner)
    hung = [tuple(list_hung(leaf)) for leaf in arguments.leaves]
    key = len(get_tapes()), tuple(hung), arguments.make_key()
    if key not in kinds and len(kinds) >= _MOST_KINDS:
        return plain()
    kind = kinds.setdefault(key, _Kind())
    if whole_code.count_gradients() == kind.first_at:
        return watched(kind)
    if kind.is_agreed and kind.why:
        return _run_whole(plain, kind, name)
    tensors = [] if kind.why else trace(arguments, kind)
    if not kind.is_agreed:
        kind.agree(f"calls of '{name}'")
    if kind.why or kind.trace is None:
        return _run_whole(plain, kind, name)
    graph = kind.trace.graph
    tensors += kind.trace.outer
    followed = _list_followed(graph, tensors)
    if not any(followed):
        return _run_plain(plain, kind)
    found = _find_plan(kind, kind.trace, arguments, tensors, followed, name)
    if found.why_whole:
        return _run_whole(plain, kind, name)
    kind.why = kind.next_why
    outputs = found.call(tensors, arguments.rows, [one for one, is_one in zip(tensors, followed) if is_one])
    kind.undo = None
    return _Shared(_pack(graph.structured_outputs, outputs))


class _Kinds:
    """Those of the calls of a model or function. No dictionary: who walks through attributes finds nothing to save."""

    def __init__(self) -> None:
        self.by_key: dict[Any, _Kind] = {}


def _find_kinds(owner: Any) -> dict[Any, _Kind]:
    held = vars(owner)  # Keras tracks what is set as an attribute
    if _KINDS not in held:
        held[_KINDS] = _Kinds()
    return held[_KINDS].by_key


def _run_whole(plain: Callable[[], Any], kind: _Kind, name: str) -> Any:
    whole_code.note_reason(get_tapes(), f"ranks cannot share the calls of '{name}': {kind.why}")
    return _run_plain(plain, kind)


def _run_plain(plain: Callable[[], Any], kind: _Kind) -> Any:
    undo, kind.undo = kind.undo, None
    if undo is not None:  # Python has run once for a trace
        undo()
    return plain()


def _watch(plain: Callable[[], Any], kind: _Kind) -> Any:
    """What `plain()` gives; what a shared call could not do is noted, now or as gradients are taken through it."""
    import tensorflow as tf
    from tensorflow.python.eager import record

    whole_code.leave_unsaid(get_tapes())
    before = getattr(_state, "reads", 0)
    result = plain()
    if getattr(_state, "reads", 0) != before:
        kind.refuse(READS)

    def pass_on(gradient: Any) -> list[Any]:
        if record.could_possibly_record() or not tf.executing_eagerly():
            kind.refuse(AGAIN)
        return [gradient]

    def follow(one: Any) -> Any:
        if not isinstance(one, tf.Tensor):
            if one is not None:
                kind.refuse(OTHER_RESULTS)
            return one
        if not one.dtype.is_floating:
            return one
        with record.stop_recording():
            same = tf.identity(one)
        record.record_operation("Watched", [same], [one], pass_on)
        hang_on(same, {name: follow(more) for name, more in list_hung(one).items()})
        return same

    return tf.nest.map_structure(follow, result, expand_composites=True)


def _list_followed(graph: Any, tensors: Sequence[Any]) -> list[bool]:
    """Of each input of a call whether a tape that records asks for gradients with respect to it."""
    from tensorflow.python.eager import backprop_util, forwardprop_util, record
    from tensorflow.python.ops import resource_variable_ops

    if forwardprop_util.pack_tangents(list(tensors)).tangents:
        return [False] * len(tensors)  # derivatives forwards are those of the call itself
    for variable in graph.variables:
        resource_variable_ops.variable_accessed(variable)
    return [backprop_util.IsTrainable(one) and record.should_record_backprop([one]) for one in tensors]


def _find_plan(
    kind: _Kind, trace: _Trace, arguments: Arguments, tensors: Sequence[Any], followed: list[bool], name: str
) -> CallPlan:
    """The plan of a call with these ops. Collective where it is made."""
    key = trace.key, tuple(followed)
    if key not in kind.plans:
        if len(kind.plans) + 1 == _MOST_PLANS:
            kind.next_why = OTHER_OPS  # of the calls after this one
        rows = set(map(id, arguments.list_row_tensors()))
        are_rows = [id(tensor) in rows for tensor in tensors]
        kind.plans[key] = made = CallPlan(trace.graph, are_rows, followed, f"the call of '{name}'")
        if made.why_whole:
            kind.refuse(made.why_whole)
        else:
            explain.note_model(name)
            explain.say_shared(f"in eager code the call of '{name}'")
    return kind.plans[key]


def _pack(structure: Any, outputs: Sequence[Any]) -> Any:
    import tensorflow as tf

    rest = iter(outputs)
    flat = [None if one is None else next(rest) for one in tf.nest.flatten(structure, expand_composites=True)]
    assert next(rest, None) is None
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)
