"""Traces of functions for placements: what their arguments are is declared, and what they return made whole."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.analysis import declarations, dry_trace, graph_ops, interpreter, verdict
from matex_tf.analysis.placement import ROWS, SHARDED, UNKNOWN, Placement, make_unknown
from matex_tf.gradients import recombine, row_mixing
from matex_tf.loops import step_arguments
from matex_tf.runtime import script_frames
from matex_tf.world import world

NAMED = "it cannot be traced for an open number of rows: it may name the size of its batch"
FIXED = "the number of its rows is fixed when it is traced"

_LOOP = "ranks share a loop in it"
_state = threading.local()
_states: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()
"""The random states of Python and NumPy with which the trace of a graph began."""


class _Frame(NamedTuple):
    """A call that is being made: the function, the placements of its arguments' leaves, and whether it is a border.

    holds: it is called with slices, since its trace proves that these will do.
    """

    function: Any
    placements: list[Placement | None]
    is_border: bool
    holds: bool = False


@contextlib.contextmanager
def enter_frame(
    function: Any, placements: list[Placement | None], is_border: bool, holds: bool = False
) -> Iterator[None]:
    """Within it, what is traced of `function` has arguments whose leaves have these placements."""
    stack = _state.__dict__.setdefault("stack", [])
    stack.append(_Frame(function, placements, is_border, holds))
    try:
        yield
    finally:
        stack.pop()


def note_shared_loop() -> None:
    """Note of the functions that are being traced that ranks share a loop in them."""
    for here in getattr(_state, "stack", []):
        tags.set_tag(here.function, _LOOP, True)


def has_shared_loop(function: Any) -> bool:
    return tags.get_tag(function, _LOOP, False)


def find_states(graph: Any) -> tuple[Any, ...] | None:
    """The random states with which the script traced a function as `graph`."""
    return _states.get(graph)


def is_called(function: Any) -> bool:
    """Whether a call of `function`, or of what it was cloned from, is being made: it may be traced for that."""
    stack = getattr(_state, "stack", [])
    return bool(stack) and stack[-1].function.python_function is function.python_function


def enter_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Around a call of `function` in a graph: it is traced for the placements that its arguments have there."""
    import tensorflow as tf

    placements: list[Placement | None] = []
    graph = tf.compat.v1.get_default_graph()
    if declarations.has_declared(graph):
        found = interpreter.make_interpreter(graph)
        try:
            leaves = tf.nest.flatten(step_arguments.bind_arguments(function, args, kwargs))
        except TypeError:  # as the call itself says
            leaves = []
        for leaf in leaves:
            of_graph = isinstance(leaf, tf.Tensor) and not hasattr(leaf, "numpy") and leaf.graph is graph
            placements.append(found.find_placement(leaf) if of_graph else None)
    return enter_frame(function, placements, is_border=False)


def trace_whole(python_func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `python_func`, that of the innermost call, gives for placeholders: declared before, made whole after."""
    import tensorflow as tf

    stack = getattr(_state, "stack", [])
    if not stack or unwrap_function(python_func) is not unwrap_function(stack[-1].function.python_function):
        return script_frames.call_as_script(python_func, *args, **kwargs)  # of something else that is traced meanwhile
    here = stack[-1]
    _states[tf.compat.v1.get_default_graph()] = dry_trace.read_random_states()
    _declare_arguments(here, args, kwargs)
    outputs = script_frames.call_as_script(python_func, *args, **kwargs)
    if not here.is_border or not graph_ops.has_reductions(tf.compat.v1.get_default_graph()):
        return outputs
    outputs = make_outputs_whole(outputs, bool(getattr(here.function, "_jit_compile", None)))
    why = verdict.find_failure(tf.compat.v1.get_default_graph())
    if here.holds and why is not None:
        raise world.RankError(
            "a training step was traced once more, and what was proved of its first trace does not hold of this one: "
            f"{why}. Give it tensors in place of Python values that change from call to call"
        )
    return outputs


def unwrap_function(function: Callable[..., Any]) -> Any:
    """What a function is without TensorFlow's decorators."""
    from tensorflow.python.util import tf_decorator

    return tf_decorator.unwrap(function)[1]


def _declare_arguments(here: _Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    import tensorflow as tf

    try:
        leaves = tf.nest.flatten(step_arguments.bind_arguments(here.function, args, kwargs))
    except TypeError:
        leaves = []
    if len(leaves) != len(here.placements):
        if any(placement is not None and not placement.is_same for placement in here.placements):
            graph = tf.compat.v1.get_default_graph()
            verdict.note_failure(graph, verdict.Reason("its arguments in the trace are not those of the call"))
        return
    for leaf, placement in zip(leaves, here.placements):
        if placement is not None and not placement.is_same and isinstance(leaf, tf.Tensor):
            declare_leaf(leaf, placement)
    if here.is_border:  # the trace of a function that it calls may be used elsewhere, too
        row_mixing.watch_graph(tf.compat.v1.get_default_graph())


def declare_leaf(leaf: Any, placement: Placement) -> None:
    """State the placement of a tensor of rows in a graph. Of one with a fixed number of rows, nothing is proved.

    What Python makes of that number while it traces would be the slice's, and look like any constant.
    """
    if placement.kind == SHARDED and (leaf.shape.rank is None or leaf.shape.as_list()[placement.axis] is not None):
        placement = make_unknown(leaf.op, FIXED)
    declarations.declare_placement(leaf, placement)


def declare_rows(element: Any) -> None:
    """State of what a pipeline gives a graph that it holds this rank's rows."""
    import tensorflow as tf

    for part in tf.nest.flatten(element):
        if isinstance(part, tf.Tensor):
            if part.shape.rank is None or part.shape.rank > 0:
                declare_leaf(part, ROWS)
            continue
        for component in tf.nest.flatten(part, expand_composites=True):
            if isinstance(component, tf.Tensor):
                declarations.declare_placement(component, make_unknown(component.op, "its rows are ragged or sparse"))


def make_outputs_whole(outputs: Any, is_compiled: bool = False) -> Any:
    """`outputs` of the step that the graph being built is, whole; as they are where the step cannot be sharded.

    Args:
        is_compiled: XLA compiles the graph, which has no rows of other ranks whose number is not known.
    """
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    if not declarations.has_declared(graph):
        return outputs
    flat = tf.nest.flatten(outputs, expand_composites=True)
    places = [index for index, part in enumerate(flat) if isinstance(part, tf.Tensor) and not hasattr(part, "numpy")]
    found = interpreter.make_interpreter(graph)
    for index in places:
        placement = found.find_placement(flat[index])
        can = placement.can_be_whole and not (is_compiled and placement.kind == SHARDED)
        if recombine.find_whole(flat[index]) is None and not can:
            reason = verdict.find_reason(placement) if placement.kind == UNKNOWN else None
            clause = f"the ranks' parts of what it returns, {placement.kind}, cannot be put together"
            verdict.note_failure(graph, reason or verdict.Reason(clause, flat[index].op))
    if verdict.find_failure(graph) is None:
        wholes = recombine.make_whole([flat[index] for index in places], "what a step returns") if places else []
        for index, value in zip(places, wholes):
            flat[index] = value
        reason = verdict.find_obstacle(graph, wholes) or row_mixing.explain_no_gain(graph)
        if reason is not None:
            verdict.note_failure(graph, reason)
    return tf.nest.pack_sequence_as(outputs, flat, expand_composites=True)
