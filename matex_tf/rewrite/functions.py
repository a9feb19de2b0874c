"""The graphs of the functions that ops call, and of our functions that replace an op."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Expansion, Node, NoRuleError, Value
from matex_tf.rewrite.subgraphs import list_inputs


def trace_expansion(expansion: Expansion, inputs: Sequence[Value]) -> Any:
    """The graph of an expansion's function for inputs of these shapes and dtypes."""
    specs = tuple(tf.TensorSpec(value.shape, value.dtype) for value in inputs)
    # A closure may differ from one expansion to the next, and the cache would keep it alive.
    trace = _trace.__wrapped__ if expansion.function.__closure__ else _trace
    return trace(expansion, specs)


@functools.lru_cache(maxsize=256)
def _trace(expansion: Expansion, specs: tuple[Any, ...]) -> Any:
    from tensorflow.python.framework import func_graph

    def expand(*inputs: Any) -> Any:
        return expansion.function(*expansion.arguments, *inputs)

    with tf.init_scope():
        return func_graph.func_graph_from_py_func("expanded", expand, specs, {}, add_control_dependencies=False)


class OpRecord:
    """The facts about an op that each reading of its graph needs: its tensors and ops, by their ids."""

    __slots__ = ("before", "controls", "inputs", "is_stateful", "name", "needs", "number", "op", "outputs", "type")

    def __init__(self, op: Any, inputs: Sequence[Any], given: Container[int]):
        """given: the ids of the inputs of the graph."""
        controls = op.control_inputs
        self.op, self.number, self.name, self.type = op, id(op), op.name, op.type
        self.needs = [tensor.op for tensor in inputs if id(tensor) not in given] + controls
        self.inputs = [id(tensor) for tensor in inputs]
        self.outputs = [id(tensor) for tensor in op.outputs]
        self.controls = [id(one) for one in controls]
        self.before = [*self.inputs, *self.controls] if controls else self.inputs
        self.is_stateful = is_stateful(op)


_stateful: dict[str, bool] = {}


def is_stateful(op: Any) -> bool:
    """Whether an op has side effects, or returns other results each time."""
    found = _stateful.get(op.type)
    if found is None:
        definition = op.op_def
        if definition is None:
            return True  # a call of a function by the function's name
        found = _stateful[op.type] = definition.is_stateful
    return found


_movable: dict[str, bool] = {}


def is_movable(node: Node) -> bool:
    """Whether an op can move into another function: it calls no function and takes no reference of a variable."""
    found = _movable.get(node.type)
    if found is None:
        definition = node.op.op_def
        if definition is None:
            return False
        calls = any(one.type in ("func", "list(func)") for one in definition.attr)
        refers = any(one.is_ref for one in (*definition.input_arg, *definition.output_arg))
        found = _movable[node.type] = not calls and not refers
    return found


@functools.cache
def read_only_types() -> frozenset[str]:
    """The types of the ops that only read a resource."""
    from tensorflow.python.framework import auto_control_deps_utils

    return frozenset(auto_control_deps_utils.RESOURCE_READ_OPS)


def find_callee(op: Any, name: str, inputs: Sequence[Any] | None = None) -> Any:
    """The graph of the function `name`, which `op` calls with `inputs` (default: the inputs of the op).

    The inputs and outputs of the graph are those of the op, in their order.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import function_def_to_graph

    given = list(op.inputs) if inputs is None else list(inputs)
    function = op.graph._get_function(name)
    found = getattr(function, "graph", None)
    if found is not None and len(getattr(found, "inputs", None) or ()) == len(given):
        return found
    definition = getattr(function, "cached_definition", None) or context.context().get_function_def(name)
    if definition is None:
        raise LookupError(f"the graph of the function {name}, which {op.type} '{op.name}' calls, is not known")
    with op.graph.as_default():  # which has the functions that this one calls
        return function_def_to_graph.function_def_to_graph(definition, input_shapes=[one.shape for one in given])


def list_ops(graph: Any, run: Iterable[Any], has_loops: bool = False) -> list[OpRecord]:
    """The ops between the inputs and the outputs of a graph, and the ops in `run`, in an order in which they can run.

    The order of creation is kept where it is such an order. It is not always: a gradient adds residuals to the inputs
    of a loop after the loop was created. `has_loops`: the graph may have loops of tf.compat.v1, whose back edges are
    left out.
    """
    given = {id(tensor) for tensor in graph.inputs}
    pending = [*(tensor.op for tensor in graph.outputs if id(tensor) not in given), *run]
    steps: dict[Any, OpRecord] = {}
    while pending:
        op = pending.pop()
        if op not in steps:
            one = steps[op] = OpRecord(op, list_inputs(op) if has_loops else op.inputs, given)
            pending += one.needs
    found: list[OpRecord] = []
    is_found: dict[Any, bool] = {}  # False: the op waits for its inputs
    for made in graph.get_operations():
        waiting = [made] if made in steps else []
        while waiting:
            op = waiting[-1]
            missing = [one for one in steps[op].needs if not is_found.get(one)]
            if not missing:
                if not is_found.get(op):
                    is_found[op] = True
                    found.append(steps[op])
                waiting.pop()
                continue
            if op in is_found:
                raise NoRuleError  # a cycle, as loops of tf.compat.v1 have
            is_found[op] = False
            waiting += missing
    return found
