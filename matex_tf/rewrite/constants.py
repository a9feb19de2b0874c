"""Values that are fixed before a graph runs, such as axes and shapes: computed while the graph is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.analysis.graph_ops import evaluate_op, list_functions
from matex_tf.rewrite.nodes import MOST, Node, Value
from matex_tf.rewrite.parts import FLOW

_FOLDED = ("int32", "int64", "bool")


def find_constants(node: Node) -> None:
    """Note the values of a node's outputs, where they are fixed."""
    op = node.op
    if op.type == "Const":
        tensor = op.outputs[0]
        count = tensor.shape.num_elements()
        if count is not None and count <= MOST and (tensor.dtype.is_floating or tensor.dtype.name in _FOLDED):
            node.outputs[0].constant = _read(op)
    elif op.type == "Shape":
        shape = node.inputs[0].shape
        if node.inputs[0].placement.is_replicated and shape is not None and None not in shape:
            node.outputs[0].constant = np.array(shape, op.outputs[0].dtype.as_numpy_dtype)
    elif _is_foldable(node):
        made = evaluate_op(op, [one.constant for one in node.inputs])
        for value, constant in zip(node.outputs, made):
            value.constant = constant


def note_sizes(value: Value) -> None:
    """Numbers that a rule took from a shape: a constant, where all of them are fixed."""
    numbers = [one.value for one in value.placement.sizes]
    shape = value.tensor.shape
    if None not in numbers and shape.rank in (0, 1) and value.constant is None:
        value.constant = np.array(numbers, value.dtype.as_numpy_dtype).reshape([-1] if shape.rank else [])
    value.placement = value.placement._replace(sizes=())


def find_shapes(node: Node) -> list[list[int | None] | None]:
    """The shapes of a node's outputs where more is known of those of its inputs than the script's graph tells."""
    import tensorflow as tf

    op = node.op
    if not any(one.has_more_shape for one in node.inputs) or op.op_def is None or op.op_def.is_stateful:
        return []
    if all(tensor.shape.is_fully_defined() for tensor in op.outputs) or list_functions(op.node_def):
        return []
    if any(one.dtype.name in ("resource", "variant") for one in node.inputs):
        return []
    with tf.Graph().as_default() as graph:
        given = [
            tf.compat.v1.placeholder(one.dtype, one.shape)
            if one.constant is None
            else tf.constant(one.constant, one.dtype)
            for one in node.inputs
        ]
        attributes = {name: value for name, value in op.node_def.attr.items() if not name.startswith("_")}
        made = graph._create_op_internal(op.type, given, [one.dtype for one in op.outputs], attrs=attributes)
        return [None if one.shape.rank is None else one.shape.as_list() for one in made.outputs]


def _read(op: Any) -> np.ndarray:
    import tensorflow as tf

    return np.asarray(tf.make_ndarray(op.get_attr("value")))


def _is_foldable(node: Node) -> bool:
    op = node.op
    if not node.inputs or op.op_def is None or op.op_def.is_stateful or op.type in FLOW:
        return False
    if any(one.constant is None for one in node.inputs):
        return False
    return all(
        tensor.dtype.name in _FOLDED and (tensor.shape.num_elements() or MOST + 1) <= MOST for tensor in op.outputs
    )
