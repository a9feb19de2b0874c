"""Finds what `propagate` reads: a graph's ops in order, and graphs of functions that ops call, or that replace ops."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import find_definition, is_stateful
from matex_tf.rewrite.nodes import Expansion, NoRuleError, Value
from matex_tf.rewrite.subgraphs import list_inputs


def trace_expansion(expansion: Expansion, inputs: Sequence[Value]) -> Any:
    """The graph of the function that replaces an op, for inputs of these shapes and dtypes."""
    return _trace(expansion, tuple(tf.TensorSpec(value.shape, value.dtype) for value in inputs))


@functools.lru_cache(maxsize=256)
def _trace(expansion: Expansion, specs: tuple[Any, ...]) -> Any:
    from tensorflow.python.framework import func_graph

    def expand(*inputs: Any) -> Any:
        return expansion.function(*expansion.arguments, *inputs)

    with tf.init_scope():  # outside of the graph that is being built: other graphs use the trace, too
        return func_graph.func_graph_from_py_func("expanded", expand, specs, {}, add_control_dependencies=False)


class OpRecord:
    """The facts about an op that each reading of its graph needs. TensorFlow would compute them at each access.

    makers: the ops that run before it: the makers of its inputs, and its control inputs.
    inputs, outputs, controls: the ids of its tensors and control inputs.
    """

    __slots__ = ("controls", "id", "inputs", "is_stateful", "makers", "name", "op", "outputs", "type")

    def __init__(self, op: Any, inputs: Sequence[Any], input_ids: Container[int]):
        """input_ids: the ids of the inputs of the graph, which no op of the graph makes."""
        controls = op.control_inputs
        self.op, self.id, self.name, self.type = op, id(op), op.name, op.type
        self.makers = [tensor.op for tensor in inputs if id(tensor) not in input_ids] + controls
        self.inputs = [id(tensor) for tensor in inputs]
        self.outputs = [id(tensor) for tensor in op.outputs]
        self.controls = [id(control) for control in controls]
        self.is_stateful = is_stateful(op.type)


@functools.cache
def is_movable(op_type: str) -> bool:
    """Whether ops of a type can move into another function: they call no function, and take no reference variable."""
    definition = find_definition(op_type)
    if definition is None:
        return False
    calls_function = any(attribute.type in ("func", "list(func)") for attribute in definition.attr)
    takes_reference = any(argument.is_ref for argument in (*definition.input_arg, *definition.output_arg))
    return not calls_function and not takes_reference


@functools.cache
def read_only_types() -> frozenset[str]:
    """The types of the ops that only read a resource."""
    from tensorflow.python.framework import auto_control_deps_utils

    return frozenset(auto_control_deps_utils.RESOURCE_READ_OPS)


def find_callee(op: Any, name: str, inputs: Sequence[Any] | None = None) -> Any:
    """The graph of the function `name`, which `op` calls with `inputs` (default: the inputs of the op).

    The first input of a branch op is its condition. The functions of the branches are called with the other inputs.
    The graph has these inputs, and the outputs of the op, in their order. Further outputs may follow.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

    tensors = list(op.inputs) if inputs is None else list(inputs)
    function = op.graph._get_function(name)
    # When TensorFlow makes the gradient of a loop, it appends inputs and outputs to the graph of the body. An op that
    # calls the body as it was before then has fewer inputs than the graph, and needs the function's definition.
    graph = getattr(function, "graph", None)
    if graph is not None and len(getattr(graph, "inputs", None) or ()) == len(tensors):
        return graph
    definition = getattr(function, "cached_definition", None) or context.context().get_function_def(name)
    if definition is None:
        raise LookupError(f"the graph of the function {name}, which {op.type} '{op.name}' calls, is not known")
    with op.graph.as_default():  # this graph has the functions that the function itself calls
        return function_def_to_graph(definition, input_shapes=[tensor.shape for tensor in tensors])


def list_ops(graph: Any, effects: Iterable[Any], has_loops: bool = False) -> list[OpRecord]:
    """The ops that the outputs of a graph or the ops in `effects` need, in an order in which they can run.

    The order of creation is kept where it is such an order. It is not always: a gradient adds residuals to the inputs
    of a loop after the loop was created.

    effects: ops that run although no output needs them.
    has_loops: the graph may have loops of tf.compat.v1, whose back edges are left out.
    """
    # Find the ops, backward from the outputs.
    input_ids = {id(tensor) for tensor in graph.inputs}
    pending_ops = [*(tensor.op for tensor in graph.outputs if id(tensor) not in input_ids), *effects]
    records: dict[Any, OpRecord] = {}
    while pending_ops:
        op = pending_ops.pop()
        if op not in records:
            records[op] = OpRecord(op, list_inputs(op) if has_loops else op.inputs, input_ids)
            pending_ops += records[op].makers
    # List them in the order of their creation, each after the ops that it needs (a depth-first search).
    ordered: list[OpRecord] = []
    is_listed: dict[Any, bool] = {}  # False: the op waits for its inputs
    for created_op in graph.get_operations():
        waiting_ops = [created_op] if created_op in records else []
        while waiting_ops:
            op = waiting_ops[-1]
            missing_makers = [maker for maker in records[op].makers if not is_listed.get(maker)]
            if not missing_makers:
                if not is_listed.get(op):
                    is_listed[op] = True
                    ordered.append(records[op])
                waiting_ops.pop()
                continue
            if op in is_listed:
                raise NoRuleError  # a cycle, as loops of tf.compat.v1 have
            is_listed[op] = False
            waiting_ops += missing_makers
    return ordered
