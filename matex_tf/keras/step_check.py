"""Whether ranks can share the step that Keras makes of a model; remembered for each model and kind of data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Sequence
from typing import Any

from matex_tf.analysis import dry_trace, graph_ops, programs
from matex_tf.gradients import overlap_trial
from matex_tf.loops import open_shapes, traces
from matex_tf.resilience import elastic, elastic_step
from matex_tf.runtime import objects

NOT_KERAS = "it is none of Keras' training steps"
EAGER = "it is not traced (run_eagerly=True)"
OTHER = "its Python does something else each time it is traced: keep what it changes in a tf.Variable"
_traced: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Of each graph of a step, why that cannot be sharded."""
_known: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""Of each model, by kinds and shapes of data, a reference to the graph of the step for them."""
_made_for_whole: weakref.WeakSet = weakref.WeakSet()
"""Functions that were made once a step was known to be computed whole."""
_meeting: weakref.WeakKeyDictionary[Any, dict[str, programs.Program]] = weakref.WeakKeyDictionary()
"""Of each model and kind in whose step values are made whole where rows meet (`row_mixing`): what its Python makes in a
trace without that."""
_tried: weakref.WeakKeyDictionary[Any, set[tuple[str, Any]]] = weakref.WeakKeyDictionary()
"""Of each model for which kinds and shapes of data that was tried."""


def is_made_whole(model: Any, kind: str) -> bool:
    return kind in _meeting.get(model, {})


def may_make_whole(model: Any, kind: str, spec: Any) -> bool:
    """Whether it is worth a try to `make_whole` in a step that was traced for `spec`, and cannot be shared as it is."""
    is_compiled = getattr(model, "jit_compile", False) or getattr(model, "_jit_compile", False)
    of_kind = kind, describe_shapes(spec.data)
    graph = _find_graph(model, of_kind)
    return not (is_compiled or is_made_whole(model, kind) or graph is None or of_kind in _tried.get(model, ()))


def make_whole(model: Any, kind: str, spec: Any) -> None:
    """Have values made whole, where rows meet, in the traces to come of such a step."""
    of_kind = kind, describe_shapes(spec.data)
    _tried.setdefault(model, set()).add(of_kind)
    _meeting.setdefault(model, {})[kind] = programs.read_program(_find_graph(model, of_kind))


def _find_graph(model: Any, of_kind: Any) -> Any:
    return _known.get(model, {}).get(of_kind, lambda: None)()


def forget_to_make_whole(model: Any, kind: str) -> None:
    _meeting.get(model, {}).pop(kind, None)


def forget_step(model: Any, kind: str) -> None:
    """Another step is made of `model`."""
    forget_to_make_whole(model, kind)
    _tried[model] = {of_kind for of_kind in _tried.get(model, ()) if of_kind[0] != kind}


def note_made_for_whole(function: Any) -> None:
    _made_for_whole.add(function)


def is_made_for_whole(function: Any) -> bool:
    return function in _made_for_whole


def note_traced(model: Any, kind: str, reason: Any) -> None:
    """The step of `model` for `kind` was traced, as the graph being built; `reason`: why it cannot be sharded."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    why = "" if reason is None else str(reason)
    own = _meeting.get(model, {}).get(kind)
    if own is not None and programs.read_program(graph, own).is_unlike(own):
        why = why or OTHER
    _traced[graph] = why


def find_obstacle(model: Any, kind: str, function: Any, spec: Any, is_fixed: bool = False) -> str:
    """Why the step of `model` cannot compute a part of a batch; empty where it is proved that it can.

    Args:
        kind: "train" or "test".
        function: what Keras calls with an iterator.
        spec: the element spec of that iterator, a `Batch`.
        is_fixed: alone the number of rows of a batch is known when the step is traced.
    """
    from tensorflow.python.data.ops import iterator_ops

    functions = elastic_step.list_functions(function)
    if not functions:
        return EAGER
    try:
        with open_shapes.watch_rows(is_fixed):
            concrete = overlap_trial.trace_function(functions[0], (iterator_ops.IteratorSpec(spec),), {})
    except Exception:  # of the script's code, any: where it is a fault, its real step raises it, too
        return traces.NAMED
    graph = find_step(concrete, _traced)
    if graph is None:
        return NOT_KERAS
    _known.setdefault(model, {})[kind, describe_shapes(spec.data)] = weakref.ref(graph)
    return _traced[graph]


def find_step(concrete: Any, traced: Container[Any]) -> Any:
    """The graph of the step within what Keras calls; None if it is none of `traced`.

    It may have been traced for other shapes, of which these are some: TensorFlow takes what it has.
    """
    return next((graph for graph in graph_ops.iterate_graphs(concrete.graph) if graph in traced), None)


def find_obstacle_if_whole(
    model: Any,
    kind: str,
    spec: Any,
    is_fixed: bool,
    reasons: Sequence[str],
    states: Any,
    make_anew: Callable[[], Any],
    name: str,
) -> str | None:
    """Why ranks cannot share a step once values are made whole in it where rows meet; empty if they can. Collective.

    None if it is of no use to try that.

    Args:
        reasons: why they cannot share it as it is.
        states: the random states of Python with which its first trace began.
        make_anew: makes what the model calls for a step once more.
        name: that of the data, for messages.
    """
    if elastic.is_on() or {traces.NAMED, EAGER} & set(reasons):
        return None
    if not all(objects.allgather(may_make_whole(model, kind, spec), f"whether {name} is traced once more")):
        return None
    make_whole(model, kind, spec)
    with dry_trace.suppress_effects(states):  # alone it is traced once
        why = find_obstacle(model, kind, make_anew(), spec, is_fixed)
    everyone = objects.allgather(why, f"whether ranks can share {name} where its rows meet")
    if any(everyone):
        forget_to_make_whole(model, kind)
    return next(filter(None, everyone), "")


def has_fixed_batch(model: Any) -> bool:
    """Whether the batches of a model are of a fixed size, or each begins in the state in which the last one ends."""
    inputs = getattr(model, "inputs", None) or []
    fixed = any(tensor.shape is not None and len(tensor.shape) and tensor.shape[0] is not None for tensor in inputs)
    return fixed or any(
        getattr(layer, "stateful", False) is True and hasattr(layer, "reset_states")
        for layer in getattr(model, "layers", [])
    )


def has_fixed_rows(spec: Any) -> bool:
    return find_row_count(spec) is not None


def find_row_count(spec: Any) -> int | None:
    """How many rows each batch has, where that is known."""
    import tensorflow as tf

    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(spec)]
    counts = [shape.as_list()[0] for shape in shapes if shape is not None and shape.rank]
    return next((count for count in counts if count is not None), None)


def describe_shapes(data: Any) -> Any:
    import tensorflow as tf

    parts = tf.nest.flatten(data, expand_composites=True)
    return tuple((part.dtype, str(part.shape)) for part in parts if hasattr(part, "shape"))
