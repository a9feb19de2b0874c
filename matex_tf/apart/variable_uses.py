"""Finds the ops of a traced step that use a variable. By these, `additive` decides whether each rank can train the step
by itself, and add to variables in shared memory (MATEX_STRATEGY=async).

An op uses a variable by its handle, as `ReadVariableOp` does, or by its value: a tensor that was read, and that may be
a view of the variable's memory. The uses of the handle show how a step changes a variable, also in called functions.
The uses of the value show whether an op may see a value that another op has changed in place. In a traced function, a
variable has two handles: the outer one, of the variable, and the inner one, a tensor of the function's graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from matex_tf.rewrite import graph_ops
from matex_tf.rewrite.subgraphs import list_consumers, reach

ADDS = ("MatexAdd", "MatexAddRows", "MatexMove")
"""Ops that change a variable in shared memory."""
_SAME_MEMORY = set(
    "Identity IdentityN Reshape ExpandDims Squeeze StopGradient PreventGradient Bitcast Cast CheckNumerics EnsureShape "
    # Rows of a tensor are a view of it. The other ops give their input itself if there is nothing to do.
    "Slice StridedSlice Split SplitV Unpack Pack ConcatV2 Pad PadV2 Tile BroadcastTo Transpose ReverseV2".split()
)
"""Ops whose result may be a view of their input, and so of a variable."""
_CALLS = graph_ops.BRANCHES | {"StatefulPartitionedCall", "PartitionedCall", "While", "StatelessWhile"}


def list_users(handle: Any) -> list[Any]:
    """The ops in the graph so far that use the value of the variable with this inner handle."""
    return [user for read in _list_reads(handle) for user in _list_viewers(read)]


def _list_reads(handle: Any) -> list[Any]:
    return [op for op in handle.consumers() if op.type not in ADDS]


def _list_viewers(read: Any) -> list[Any]:
    """A read of a variable, and the ops that take a tensor that may be a view of the value that was read."""

    def list_next(op: Any) -> list[Any]:
        return list_consumers(op) if op is read or op.type in _SAME_MEMORY else []

    return reach([read], list_next)


def find_stale_use(handle: Any) -> str:
    """The name of an op that may use a value after an addition has changed it in place; "" if there is none.

    An addition waits for the users of the value that were created before it (`Additions`). So the op is a user that was
    created after the addition, of a value that was read before.
    """
    numbers = {op.name: number for number, op in enumerate(handle.graph.get_operations())}  # in order of creation
    addition_numbers = [numbers[op.name] for op in handle.consumers() if op.type in ADDS]
    for read in _list_reads(handle):
        for user in _list_viewers(read):
            if any(numbers[read.name] < addition_number < numbers[user.name] for addition_number in addition_numbers):
                return user.name
    return ""


def list_handles(graph: Any) -> list[tuple[Any, Any]]:
    """The handles of variables that a graph uses, as (outer, inner) tensors."""
    import tensorflow as tf

    return [(outer, inner) for outer, inner in graph.captures if outer.dtype == tf.resource]


class Use(NamedTuple):
    """An op that takes the handle of a variable."""

    kind: str  # the type of the op
    within: frozenset[str]  # the types of the ops, such as While, in whose functions it is; empty: in the step itself
    name: str  # the name of the op


def list_uses(graph: Any) -> dict[int, list[Use]]:
    """The uses of each handle that the graph captures, by the handle's id, including uses in called functions."""
    uses_by_handle: dict[int, list[Use]] = {}
    for outer, inner in list_handles(graph):
        uses = uses_by_handle.setdefault(id(outer), [])
        for op in inner.consumers():
            for index, tensor in enumerate(op.inputs):
                if tensor.name == inner.name:
                    uses += _iterate_uses(graph, op.node_def, index, frozenset())
    return uses_by_handle


def _iterate_uses(graph: Any, node: Any, index: int, within: frozenset[str]) -> Iterator[Use]:
    """The uses of input `index` of the op `node`: `node` itself, or the uses in the functions that it calls."""
    if node.op not in _CALLS:
        yield Use(node.op, within, node.name)
        return
    from tensorflow.python.eager import context

    argument = index - 1 if node.op in graph_ops.BRANCHES else index  # the first input of a branch is its condition
    for name in graph_ops.list_functions(node):
        function = graph._get_function(name)  # a copy of a graph calls the functions of the original
        definition = getattr(function, "cached_definition", None) or context.context().get_function_def(name)
        parameter = definition.signature.input_arg[argument].name
        for inner_node in definition.node_def:
            for inner_index, input_name in enumerate(inner_node.input):
                # An input is the name of a parameter, or "op:output:index".
                if input_name.partition(":")[0] == parameter:
                    yield from _iterate_uses(graph, inner_node, inner_index, within | {node.op})
