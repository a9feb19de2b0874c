"""Constant folding: finds values that are fixed before the graph runs, such as the axes and shapes that rules need.

An op that makes a few integers or booleans of known values is run while the graph is read (`evaluate`); a few are up to
`MAX_TRACKED`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import HANDLES, evaluate_op, is_stateful, list_functions
from matex_tf.rewrite.nodes import MAX_TRACKED, Node, Value
from matex_tf.rewrite.placement import WHOLE, Replicated, Size
from matex_tf.rewrite.subgraphs import V1_FLOW

_FOLDED = ("int32", "int64", "bool")
_Attributes = tuple[tuple[str, bytes], ...]


def find_constants(node: Node) -> None:
    """Set the constants of a node's outputs where its inputs fix them."""
    if node.type == "Const":
        node.outputs[0].constant = _read(node.definition.attr["value"].tensor.SerializeToString(deterministic=True))
    elif node.type == "Shape":
        shape = node.inputs[0].shape
        if isinstance(node.inputs[0].placement, Replicated) and shape is not None and None not in shape:
            node.outputs[0].constant = np.array(shape, node.outputs[0].dtype.as_numpy_dtype)
    elif _is_foldable(node):
        arrays = [value.constant for value in node.inputs if value.constant is not None]
        for value, constant in zip(node.outputs, evaluate(node, arrays)):
            value.constant = constant


def note_sizes(value: Value, sizes: Sequence[Size]) -> None:
    """Make a value of sizes that are the same on all ranks `WHOLE`, with a constant if all of them are fixed."""
    numbers = [size.value for size in sizes]
    shape = value.tensor.shape
    if None not in numbers and shape.rank in (0, 1) and value.constant is None:
        value.constant = np.array(numbers, value.dtype.as_numpy_dtype).reshape([-1] if shape.rank else [])
    value.placement = WHOLE


def find_shapes(node: Node) -> list[list[int | None] | None]:
    """Infer the shapes of a node's outputs from its inputs, of which more sizes are known than the graph shows."""
    op = node.op
    if is_stateful(op.type) or list_functions(node.definition):
        return []
    if all(tensor.shape.is_fully_defined() for tensor in op.outputs):
        return []
    if any(value.dtype.name in HANDLES for value in node.inputs):
        return []
    # Create the op in a graph of its own, where TensorFlow infers the shapes of its outputs.
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(value.dtype, value.shape)
            if value.constant is None
            else tf.constant(value.constant, value.dtype)
            for value in node.inputs
        ]
        attributes = {name: value for name, value in node.definition.attr.items() if not name.startswith("_")}
        dtypes = [tensor.dtype for tensor in op.outputs]
        created_op = graph._create_op_internal(node.type, inputs, dtypes, attrs=attributes)
        return [None if tensor.shape.rank is None else tensor.shape.as_list() for tensor in created_op.outputs]


@functools.lru_cache(maxsize=4096)
def _read(serialized: bytes) -> np.ndarray | None:
    """Decode a tensor proto, if its values are tracked. The cache helps: a step repeats a few constants often."""
    from tensorflow.core.framework import tensor_pb2

    proto = tensor_pb2.TensorProto.FromString(serialized)
    dtype = tf.as_dtype(proto.dtype)
    if math.prod(dim.size for dim in proto.tensor_shape.dim) > MAX_TRACKED:
        return None
    return np.asarray(tf.make_ndarray(proto)) if dtype.is_floating or dtype.name in _FOLDED else None


_evaluated: dict[tuple[str, _Attributes, tuple[Any, ...]], list[np.ndarray]] = {}
_MAX_EVALUATED = 4096


def evaluate(node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the op of a node on these arrays, or return an earlier result. Empty if the op cannot run now."""
    attributes = tuple(
        (name, value.SerializeToString(deterministic=True)) for name, value in sorted(node.definition.attr.items())
    )
    key = node.type, attributes, tuple((array.dtype.str, array.shape, array.tobytes()) for array in inputs)
    if key not in _evaluated:
        if len(_evaluated) >= _MAX_EVALUATED:
            _evaluated.clear()
        _evaluated[key] = evaluate_op(node.op, list(inputs))
    return _evaluated[key]


def _is_foldable(node: Node) -> bool:
    """Whether the op of a node can run now: its inputs are fixed, and it makes few numbers."""
    for value in node.inputs:  # a loop, since this function runs for each op, and the first input mostly decides
        if value.constant is None:
            return False
    if not node.inputs or any(value.dtype.name not in _FOLDED for value in node.outputs):
        return False
    if is_stateful(node.type) or node.type in V1_FLOW:
        return False
    return all((value.tensor.shape.num_elements() or MAX_TRACKED + 1) <= MAX_TRACKED for value in node.outputs)
