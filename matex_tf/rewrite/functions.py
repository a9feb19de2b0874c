"""The graphs of functions that ops call, and of functions of ours that stand in the place of an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf.analysis import graph_ops
from matex_tf.rewrite.nodes import Value


class Callee(NamedTuple):
    """A function's graph: its inputs and outputs are those of the op that calls it, in their order."""

    graph: Any

    @staticmethod
    def trace(function: Callable[..., Any], inputs: Sequence[Value]) -> Callee:
        """The graph of `function`, which takes tensors like these."""
        import tensorflow as tf
        from tensorflow.python.framework import func_graph

        specs = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
        return Callee(
            func_graph.func_graph_from_py_func("expanded", function, specs, {}, add_control_dependencies=False)
        )


def find_callee(op: Any, name: str, inputs: Sequence[Any] | None = None) -> Callee:
    """The function `name` that `op` calls with `inputs` (default: the inputs of the op)."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import function_def_to_graph

    given = list(op.inputs) if inputs is None else list(inputs)
    function = op.graph._get_function(name)
    found = getattr(function, "graph", None)
    if found is not None and len(getattr(found, "inputs", None) or ()) == len(given):
        return Callee(found)
    definition = getattr(function, "cached_definition", None) or context.context().get_function_def(name)
    if definition is None:
        raise LookupError(f"the graph of the function {name}, which {op.type} '{op.name}' calls, is not known")
    return Callee(function_def_to_graph.function_def_to_graph(definition, input_shapes=[one.shape for one in given]))


def has_op(op: Any, types: Any) -> bool:
    """Whether a function that `op` calls has an op of one of these types, in itself or in a function that it calls."""
    pending, seen = graph_ops.list_functions(op.node_def), set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        definition = getattr(op.graph._get_function(name), "cached_definition", None)
        for node in definition.node_def if definition is not None else ():
            if node.op in types:
                return True
            pending += graph_ops.list_functions(node)
    return False
