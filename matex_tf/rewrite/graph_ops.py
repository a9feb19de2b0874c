"""Walks through graphs and the functions that they call, and runs single ops."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np

from matex_tf.lazy import tf

HANDLES = ("resource", "variant")
"""Dtypes of tensors that stand for an object, such as an iterator or a dataset."""
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
"""Ops of `tf.cond` and `tf.switch_case`. Their first input selects the branch; a branch takes the other inputs."""


@functools.cache
def _import_registry() -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry  # an import statement for each op would take 2% of the time to read a graph


def find_definition(op_type: str) -> Any:
    """The `OpDef` of a type of op; None if the type is the name of a function, which the op calls."""
    return _import_registry().get(op_type)


@functools.cache
def is_stateful(op_type: str) -> bool:
    """Whether ops of a type have side effects, or return other results each time; a function may."""
    definition = find_definition(op_type)
    return definition is None or bool(definition.is_stateful)


def iterate_nodes(graph: Any, ops: Iterable[Any] | None = None) -> Iterator[Any]:
    """The definitions of ops (default: all of `graph`), and of the ops in the functions that they call, each once."""
    seen_names = set[str]()
    pending_nodes = [op.node_def for op in (graph.get_operations() if ops is None else ops)]
    while pending_nodes:
        node = pending_nodes.pop()
        yield node
        for name in list_functions(node):
            function = None if name in seen_names else graph._get_function(name)
            seen_names.add(name)
            definition = getattr(function, "cached_definition", None)
            pending_nodes.extend(() if definition is None else definition.node_def)


def has_op(op: Any, types: Container[str]) -> bool:
    """Whether an op is of one of these types, or calls a function that has such an op."""
    return op.type in types or any(node.op in types for node in iterate_nodes(op.graph, [op]))


def has_sequence(graph: Any) -> bool:
    """Whether a graph, or a function that it calls, has a random op with a number sequence of its own (`seed2`)."""
    return any("seed2" in node.attr and not _is_without_dropout(node) for node in iterate_nodes(graph))


def _is_without_dropout(node: Any) -> bool:
    """Whether the node is a recurrent layer on a GPU (`CudnnRNN`) that draws nothing, as all of Keras."""
    return "dropout" in node.attr and node.attr["dropout"].f == 0


def list_functions(node: Any) -> list[str]:
    """The names of the functions that an op calls, by its definition, in the order of the names of its attributes."""
    names = []
    for _, attribute in sorted(node.attr.items()):  # a protobuf map has a different order each time
        if attribute.HasField("func"):
            names.append(attribute.func.name)
        names.extend(function.name for function in attribute.list.func)
    return names


def iterate_graphs(graph: Any) -> Iterator[Any]:
    """`graph`, and the graphs of the functions that its ops call, recursively, each once, after `graph`."""
    graphs = [graph]
    for current in graphs:  # grows by the graphs of the functions that these graphs call
        yield current
        called_graphs = [getattr(function, "graph", None) for function in current._functions.values()]
        graphs += [
            called_graph
            for called_graph in called_graphs
            if called_graph is not None and all(called_graph is not known_graph for known_graph in graphs)
        ]


def evaluate_op(op: Any, inputs: list[Any]) -> list[Any]:
    """The arrays that an op computes from known arrays, by running it now; empty if it cannot run."""
    from tensorflow.python.eager import context, execute

    if any(tensor.dtype.name in (*HANDLES, "string") for tensor in (*op.inputs, *op.outputs)):
        return []
    attributes: list[Any] = []
    for attribute in op.op_def.attr:
        value = op.get_attr(attribute.name)
        if attribute.type not in ("type", "list(type)", "int", "list(int)", "bool", "float", "string"):
            return []
        if attribute.type == "type":
            value = value.as_datatype_enum
        elif attribute.type == "list(type)":
            value = [dtype.as_datatype_enum for dtype in value]
        attributes += [attribute.name, value]
    with tf.init_scope(), tf.device("CPU:0"):
        tensors = [tf.constant(array, tensor.dtype) for array, tensor in zip(inputs, op.inputs)]
        try:
            outputs = execute.quick_execute(op.type, len(op.outputs), tensors, tuple(attributes), context.context())
        except (tf.errors.OpError, ValueError, TypeError):
            return []  # the run of the op itself raises the error
        return [np.asarray(tensor._numpy_internal()) for tensor in outputs]
