"""Questions about graphs: which ops in them, or in the functions that they call, reduce gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from matex_tf import tags
from matex_tf.analysis import declarations

_UNLIKE = {"seed", "seed2", "message", "shared_name", "container", "token"}
"""Attributes that differ from trace to trace."""
REDUCTIONS = ("MatexReduceGradients", "MatexReduceOnDevice", "MatexAnnounceUpdate")
_CALLS = ("Call", "If", "While", "Case", "Dataset")
"""What is in the names of ops that call functions."""


def keep_alive(value: Any) -> None:
    """Keep `value` (a variable that the graph being built uses) alive as long as that graph."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        tags.get_or_make_tag(graph, "variables", list).append(value)
        graph = getattr(graph, "outer_graph", None)


def note_accounts(variables: Iterable[Any]) -> None:
    """In `variables` the graph being built may keep this rank's part: they are made global elsewhere."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return
    found = [getattr(variable, "_value", variable) for variable in variables]
    handles = [variable.handle for variable in found if hasattr(variable, "handle")]
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        declarations.declare_accounts(graph, handles)
        graph = getattr(graph, "outer_graph", None)


def list_ancestors(leaves: Iterable[Any]) -> list[Any]:
    """The ops that `leaves`, ops or tensors of a graph, need to be run, those of the leaves among them."""
    seen: dict[int, Any] = {}
    pending = [getattr(leaf, "op", leaf) for leaf in leaves]
    while pending:
        op = pending.pop()
        if id(op) in seen or not hasattr(op, "control_inputs"):
            continue
        seen[id(op)] = op
        pending.extend(tensor.op for tensor in op.inputs)
        pending.extend(op.control_inputs)
    return list(seen.values())


def list_reductions(operations: Iterable[Any]) -> list[Any]:
    """Those of `operations` that reduce gradients or call a function that does."""
    return [op for op in operations if op.type in REDUCTIONS or _is_reduction_call(op)]


def has_reductions(graph: Any) -> bool:
    """Whether running the whole of `graph` reduces gradients."""
    return bool(list_reductions(graph.get_operations()))


def is_training_step(graph: Any) -> bool:
    """Whether `graph` is that of a function, not of a branch or of a loop's body, and reduces gradients."""
    control_flow = type(graph).__name__.startswith(("Cond", "While", "Switch"))
    return not control_flow and has_reductions(graph)


def list_op_types(graph: Any) -> set[str]:
    """The types of all ops in `graph` and in the functions that they call."""
    return {node.op for node in _iterate_nodes(graph)}


def _iterate_nodes(graph: Any) -> Iterator[Any]:
    """The definitions of all ops in `graph` and in the functions that they call."""
    pending = [op.node_def for op in graph.get_operations()]
    seen: set[str] = set()
    while pending:
        node = pending.pop()
        yield node
        for name in list_functions(node):
            function = None if name in seen else graph._get_function(name)
            seen.add(name)
            if function is not None:
                pending.extend(function.cached_definition.node_def)


def list_functions(node: Any) -> list[str]:
    """The names of the functions that an op, by its definition, calls, in the order of its attributes' names."""
    names = []
    for _, attribute in sorted(node.attr.items()):  # a map of protobuf has another order each time
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names.extend(function.name for function in attribute.list.func)
    return names


def iterate_graphs(graph: Any) -> Iterator[Any]:
    """`graph`, and those of the functions that its ops call, and these in turn, each once; the nearest first."""
    pending, seen = [graph], {id(graph)}
    for one in pending:
        yield one
        for name in (name for op in one.get_operations() if _is_call(op) for name in list_functions(op.node_def)):
            called = getattr(one._get_function(name), "graph", None)
            if called is not None and id(called) not in seen:
                seen.add(id(called))
                pending.append(called)


def _is_call(op: Any) -> bool:
    return any(kind in op.type for kind in _CALLS)


def _is_reduction_call(op: Any) -> bool:
    return _is_call(op) and any(_has_function_reductions(op.graph, name, set()) for name in list_functions(op.node_def))


def _has_function_reductions(graph: Any, name: str, seen: set[str]) -> bool:
    if name in seen:
        return False
    seen.add(name)
    function = graph._get_function(name)
    if function is None:
        return False
    for node in function.cached_definition.node_def:
        if node.op in REDUCTIONS or any(_has_function_reductions(graph, inner, seen) for inner in list_functions(node)):
            return True
    return False


def evaluate_op(op: Any, inputs: list[Any]) -> list[Any]:
    """The arrays that an op makes of such as are known, run at once; none where it cannot be run so."""
    import tensorflow as tf
    from tensorflow.python.eager import context, execute

    if any(part.dtype.name in ("variant", "resource", "string") for part in (*op.inputs, *op.outputs)):
        return []
    attributes: list[Any] = []
    for one in op.op_def.attr:
        value = op.get_attr(one.name)
        if one.type not in ("type", "list(type)", "int", "list(int)", "bool", "float", "string"):
            return []
        if one.type == "type":
            value = value.as_datatype_enum
        elif one.type == "list(type)":
            value = [part.as_datatype_enum for part in value]
        attributes += [one.name, value]
    with tf.init_scope(), tf.device("CPU:0"):
        given = [tf.constant(one, part.dtype) for one, part in zip(inputs, op.inputs)]
        try:
            made = execute.quick_execute(op.type, len(op.outputs), given, tuple(attributes), context.context())
        except (tf.errors.OpError, ValueError, TypeError):
            return []  # which its own run says, too
        return [np.asarray(one._numpy_internal()) for one in made]


def list_attributes(op: Any) -> tuple[tuple[str, bytes], ...]:
    """The attributes of an op that are the same in each trace, but for shapes."""
    return tuple(
        (name, attribute.SerializeToString(deterministic=True))
        for name, attribute in sorted(op.node_def.attr.items())
        if not (name.startswith("_") or name in _UNLIKE or attribute.HasField("shape") or attribute.list.shape)
    )
