"""Ops of a step's graph by which one row of a batch goes into what belongs to another.

The graph was traced for a number of rows that nothing else has, so that a dimension of that size, or of a multiple of
it, belongs to rows. Ops that reduce them linearly are no crossings: `meetings` looks at where their figures go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_ALONG_LAST = {"Softmax", "LogSoftmax", "TopKV2"}
# Which input names the axes.
_ALONG_AXES = {"Cumsum": 1, "Cumprod": 1, "CumulativeLogsumexp": 1, "ReverseV2": 1, "Roll": 2, "ArgMax": 1, "ArgMin": 1}
_EXTREMES = {"Max", "Min", "Prod", "EuclideanNorm"}
_LINEAR_REDUCTIONS = {"Sum", "Mean"}
# What takes numbers of each row together with numbers of all rows.
_COMBINES = {
    "AddV2", "Add", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum", "SquaredDifference", "Pow",
    "Greater", "GreaterEqual", "Less", "LessEqual", "FloorDiv", "FloorMod", "Xdivy", "Xlogy", "BiasAdd", "SelectV2",
    "MatMul", "BatchMatMulV2", "Einsum",
}  # fmt: skip
SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}
MADE_GLOBAL = "matex_tf_made_global"
"""What the name of an op begins with that stands for a sum over ranks."""


def any_in(operations: Iterable[Any], rows: int, local: Any, backwards: set[int]) -> bool:
    """Whether any of `operations`, in their order, is a crossing that something comes of.

    Args:
        local: the tensors that this rank's rows go into.
        backwards: the ids of ops that are left out, those that work on gradients.
    """
    figures: set[int] = set()
    for op in operations:
        if id(op) in backwards:
            continue
        inputs = [tensor for tensor in op.inputs if tensor in local]
        if not inputs or op.type in SHAPES or is_global(op):
            continue
        known = [tensor for tensor in inputs if id(tensor) in figures]
        crosses = any(_rows_at(tensor, rows) for tensor in inputs) and _mixes(op, rows, local)
        if known and op.type in _COMBINES:
            crosses = crosses or any(_rows_at(tensor, rows) for tensor in op.inputs)
        if crosses and _is_used(op) and _escapes(op, backwards):
            return True
        if known or _makes_figure(op, inputs, rows):
            figures.update(
                id(made) for made in op.outputs if made.shape.is_fully_defined() and not _rows_at(made, rows)
            )
    return False


def _rows_at(tensor: Any, rows: int) -> list[int]:
    """Which dimensions of `tensor` belong to rows."""
    if tensor.shape.rank is None:
        return []
    return [index for index, size in enumerate(tensor.shape.as_list()) if size and size % rows == 0]


def _makes_figure(op: Any, inputs: list[Any], rows: int) -> bool:
    """Whether `op` makes a figure of the rows. Of whole numbers only sums are: the longest text is no such."""
    if not any(_rows_at(tensor, rows) for tensor in inputs):
        return False
    return any(made.dtype.is_floating for made in op.outputs) or op.type in _LINEAR_REDUCTIONS


def _mixes(op: Any, rows: int, local: Any) -> bool:
    """Whether `op` takes rows together, or in another order, other than by a sum or mean of them."""
    tensor = op.inputs[0]
    at = _rows_at(tensor, rows)
    if op.type == "RandomShuffle":
        return 0 in at
    if op.type == "GatherV2":
        return _gathers_rows(op, at) and tensor in local
    if not at or tensor not in local:
        return False
    if op.type in _ALONG_LAST:
        return tensor.shape.rank - 1 in at
    if op.type in _ALONG_AXES:
        return _names(op.inputs[_ALONG_AXES[op.type]], tensor, at)
    if op.type in _EXTREMES:
        return tensor.dtype.is_floating and _names(op.inputs[1], tensor, at)
    if op.type == "Unpack":
        return op.get_attr("axis") in at
    if op.type == "StridedSlice":
        return 0 in at and 0 not in _rows_at(op.outputs[0], rows) and not _adds_dimension(op)
    return False


def _names(axes: Any, tensor: Any, at: list[int]) -> bool:
    """Whether `axes`, a constant, names one of the dimensions `at`."""
    import tensorflow as tf

    values = tf.get_static_value(axes)
    return values is not None and any(int(axis) % tensor.shape.rank in at for axis in values.reshape(-1))


def _gathers_rows(op: Any, at: list[int]) -> bool:
    """Whether rows are taken in an order of the script's own; those that a condition chooses stay in theirs."""
    import tensorflow as tf

    axis = tf.get_static_value(op.inputs[2])
    if axis is None or op.get_attr("batch_dims") or int(axis) not in at:
        return False
    indices = op.inputs[1]
    while indices.op.type in ("Squeeze", "Reshape", "Identity", "Cast"):
        indices = indices.op.inputs[0]
    return indices.op.type != "Where"


def _adds_dimension(op: Any) -> bool:
    return bool((op.get_attr("ellipsis_mask") | op.get_attr("new_axis_mask")) & 1)


def made_of(op: Any, tensor: Any) -> list[Any]:
    """The outputs of `op` that `tensor`, one of its inputs, goes into."""
    if op.type != "IdentityN":
        return list(op.outputs)
    return [made for part, made in zip(op.inputs, op.outputs) if part is tensor]


def is_global(op: Any) -> bool:
    """Whether what comes of `op` is the same on all ranks, made of what all of them have."""
    return op.type.startswith("Matex") or op.name.startswith(MADE_GLOBAL)


def _escapes(op: Any, backwards: set[int]) -> bool:
    """Whether what `op` makes goes anywhere but into sums over ranks, as the statistics of a normalisation do."""
    seen: set[int] = set()
    pending = list(op.outputs)
    while pending:
        tensor = pending.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        users = [user for user in tensor.consumers() if user.type not in SHAPES and id(user) not in backwards]
        # `tf.custom_gradient` has copies of what it is given, of no use to anyone, beside what it gives.
        if not users and tensor.op.type != "IdentityN":
            return True
        for user in users:
            if not is_global(user):
                pending.extend(made_of(user, tensor))
    return False


def _is_used(op: Any) -> bool:
    """Whether anything but the shape of what `op` gives is asked for."""
    return any(user.type not in SHAPES for tensor in op.outputs for user in tensor.consumers())
