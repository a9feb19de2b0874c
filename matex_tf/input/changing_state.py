"""Finds pipelines whose functions read variables or tables that may change.

Deferred work reads them later than the script alone does, possibly after a change, and for a rank's own rows only.
"""

from __future__ import annotations

from typing import Any

from matex_tf.input.functions import Split
from matex_tf.input.pipelines import list_functions
from matex_tf.lazy import tf
from matex_tf.rewrite import graph_ops


def tell_conflict(dataset: Any) -> str:
    """Text that names state which one function of a pipeline changes and another one reads; "" if there is none.

    Ranks cannot share such a pipeline. Every rank would change the state for each element, and read it for its own
    elements only later, after further changes.
    """
    functions = list_functions(dataset)
    handle_ids = [
        {id(tensor) for tensor in function.captured_inputs if tensor.dtype.name == "resource"} for function in functions
    ]
    if sum(map(len, handle_ids)) == len(set[int]().union(*handle_ids)):  # no two functions use the same
        return ""
    # A `Split` divides a function: its front runs for each element in order on every rank, its back only for a rank's
    # own elements, later. It has the state that the front may change (`writes`), and that the back uses (`reads`).
    splits = list(map(Split, functions))
    is_read = any(
        writer.writes & reader.reads & used_ids for writer in splits for reader, used_ids in zip(splits, handle_ids)
    )
    return "a variable or a table that one function changes and another one reads" if is_read else ""


def reads_changing(dataset: Any) -> bool:
    """Whether the functions of a pipeline read state that eager code can change: variables, or tables that can grow.

    Deferred work reads the state when a rank takes the element, possibly after a change. Files count as data, which do
    not change.
    """
    return any(map(_reads_changing, list_functions(dataset)))


def _reads_changing(function: Any) -> bool:
    # The last inputs of the graph stand for the captured tensors.
    captured_inputs = function.graph.inputs[len(function.inputs) - len(function.captured_inputs) :]
    captured_tensors = dict(zip(map(id, captured_inputs), function.captured_inputs))
    # Only tables of the function itself can be tested. Tables in functions that it calls count as tables that can grow.
    tables = [
        op for op in function.graph.get_operations() if op.type in _TABLES and id(op.inputs[0]) in captured_tensors
    ]
    fixed_count = sum(_is_fixed_table(captured_tensors[id(op.inputs[0])], op) for op in tables)
    nodes = list(graph_ops.iterate_nodes(function.graph))  # also of the functions that it calls
    return any(node.op in _VARIABLES for node in nodes) or sum(node.op in _TABLES for node in nodes) > fixed_count


_VARIABLES = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_TABLES = ("LookupTableFindV2", "LookupTableFind", "LookupTableSizeV2")


def _is_fixed_table(handle: Any, op: Any) -> bool:
    """Whether a table is immutable: it refuses even an insertion of no keys."""
    if op.type != "LookupTableFindV2" or not hasattr(handle, "numpy"):
        return False
    keys, values = (tf.zeros([0], tensor.dtype) for tensor in (op.inputs[1], op.inputs[2]))
    try:
        with tf.init_scope():
            tf.raw_ops.LookupTableInsertV2(table_handle=handle, keys=keys, values=values)
    except tf.errors.OpError as error:
        return isinstance(error, (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError))
    return False
