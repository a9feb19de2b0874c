"""Values that are fixed before a graph runs, such as axes and shapes: computed while the graph is read."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from matex_tf.analysis.graph_ops import evaluate_op
from matex_tf.rewrite.nodes import MOST, Node

_FOLDED = ("int32", "int64", "bool")
_Attributes = tuple[tuple[str, bytes], ...]


def find_constants(node: Node) -> None:
    """Note the values of a node's outputs, where they are fixed."""
    if node.type == "Const":
        node.outputs[0].constant = _read(node.definition.attr["value"].tensor.SerializeToString(deterministic=True))
    elif node.type == "Shape":
        shape = node.inputs[0].shape
        if node.inputs[0].placement.is_replicated and shape is not None and None not in shape:
            node.outputs[0].constant = np.array(shape, node.outputs[0].dtype.as_numpy_dtype)
    elif _is_foldable(node):
        for value, constant in zip(node.outputs, _evaluate(node)):
            value.constant = constant


@functools.lru_cache(maxsize=4096)
def _read(serialized: bytes) -> np.ndarray | None:
    """The array of a tensor's message, if it is one of those that are followed; steps repeat few of them often."""
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    proto = tensor_pb2.TensorProto.FromString(serialized)
    dtype = tf.as_dtype(proto.dtype)
    if math.prod(dim.size for dim in proto.tensor_shape.dim) > MOST:
        return None
    return np.asarray(tf.make_ndarray(proto)) if dtype.is_floating or dtype.name in _FOLDED else None


_evaluated: dict[tuple[str, _Attributes, tuple[Any, ...]], list[np.ndarray]] = {}
_MOST_EVALUATED = 4096


def _evaluate(node: Node) -> list[np.ndarray]:
    attributes = tuple(
        (name, value.SerializeToString(deterministic=True)) for name, value in sorted(node.definition.attr.items())
    )
    constants = [one.constant for one in node.inputs]
    given = tuple((one.dtype.str, one.shape, one.tobytes()) for one in constants if one is not None)
    key = node.type, attributes, given
    if key not in _evaluated:
        if len(_evaluated) >= _MOST_EVALUATED:
            _evaluated.clear()
        _evaluated[key] = evaluate_op(node.op, constants)
    return _evaluated[key]


def _is_foldable(node: Node) -> bool:
    if not node.inputs or any(one.constant is None for one in node.inputs):
        return False
    if any(one.dtype.name not in _FOLDED for one in node.outputs) or node.op.op_def is None:
        return False
    if node.op.op_def.is_stateful:
        return False
    return all((one.tensor.shape.num_elements() or MOST + 1) <= MOST for one in node.outputs)
