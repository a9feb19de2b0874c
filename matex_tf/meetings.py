"""Whether the rows of a batch meet in a step: read from its graph, traced for a number of rows that nothing else has.

Where that number is a dimension of a tensor, its entries belong to rows. A tensor that has it twice compares rows with
rows. A tensor made of one that has it, without having it itself, is a figure of the batch: a sum or mean of which goes
into the loss as it is can be put together of the ranks' parts, one that is bent on the way cannot. No more can one that
is kept in a variable.
"""

from __future__ import annotations

from typing import Any

from matex_tf import crossings

_SAME_ROWS = {"Identity", "Cast"}
_LINEAR = {
    "Identity", "IdentityN", "Cast", "AddV2", "Add", "AddN", "Sub", "Neg", "Mean", "Sum", "Reshape", "Squeeze",
    "ExpandDims", "StopGradient", "PreventGradient", "Pack", "ConcatV2", "CheckNumerics", "EnsureShape",
}  # fmt: skip
_FACTORS = {"Mul", "RealDiv", "DivNoNan"}
_MOST_ROWS = 16
"""Of a tensor with two dimensions of rows neither is more (several views of each): one may be so by chance."""


def knows_rows(graph: Any) -> bool:
    """Whether a step's graph takes certain rows out of its batch by their number."""
    pending = _batch(graph)
    while pending:
        tensor = pending.pop()
        for op in tensor.consumers():
            if op.type in _SAME_ROWS:
                pending.extend(op.outputs)
            elif _picks_rows(op, tensor) and _is_used(op):
                return True
    return False


def rows_meet(graph: Any, rows: int, accounts: set[int]) -> bool:
    """Whether rows meet in a step's `graph`, traced for batches of `rows` rows.

    Args:
        accounts: ids of the handles of variables that are made global elsewhere.
    """
    outer = {id(inner): id(handle) for handle, inner in zip(graph.external_captures, graph.internal_captures)}
    local, backwards = _made_of_batch(graph), _backwards(graph)
    for op in graph.get_operations():
        if any(_times(tensor, rows) > 1 and _times(tensor, rows, _MOST_ROWS) for tensor in op.outputs):
            return True
        if _keeps(op, local) and outer.get(id(op.inputs[0])) not in accounts:
            return True
        figures = [tensor for tensor in op.outputs if id(op) not in backwards and _is_figure(op, tensor, rows)]
        if any(_is_bent(figure, backwards) for figure in figures):
            return True
    return crossings.any_in(graph.get_operations(), rows, local, backwards)


def _batch(graph: Any) -> list[Any]:
    captured = {id(tensor) for tensor in graph.internal_captures}
    return [tensor for tensor in graph.inputs if id(tensor) not in captured]


def made_global(tensor: Any) -> None:
    """In the graph of `tensor`, note that it goes into a sum over ranks."""
    import tensorflow as tf

    tf.identity(tensor, name=crossings.MADE_GLOBAL)


class _Tensors:
    """A set of tensors of a graph."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._kept: list[Any] = []

    def add(self, tensor: Any) -> bool:
        """Whether it is new."""
        if id(tensor) in self._ids:
            return False
        self._ids.add(id(tensor))
        self._kept.append(tensor)
        return True

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._ids


def _made_of_batch(graph: Any) -> _Tensors:
    """What this rank's rows go into, as far as it is not made global."""
    found, pending = _Tensors(), _batch(graph)
    while pending:
        tensor = pending.pop()
        if found.add(tensor):
            for op in tensor.consumers():
                if op.type not in crossings.SHAPES and not op.type.startswith("Matex"):
                    pending.extend(crossings.made_of(op, tensor))
    return found


def _times(tensor: Any, rows: int, most: int | None = None) -> int:
    """How many dimensions of `tensor` belong to rows; with `most`, 0 if one is more than so many times the rows."""
    shape = tensor.shape
    if shape.rank is None:
        return 0
    sizes = [size // rows for size in shape.as_list() if size and size % rows == 0]
    return 0 if most is not None and any(size > most for size in sizes) else len(sizes)


def _keeps(op: Any, local: _Tensors) -> bool:
    """Whether `op` keeps a figure of this rank's rows in a variable."""
    assigns = op.type.startswith("Assign") and len(op.inputs) > 1
    return assigns and op.inputs[1] in local and op.inputs[1].dtype.is_floating


def _backwards(graph: Any) -> set[int]:
    """The ids of the ops that take gradients, and of those that work on gradients."""
    found: set[int] = set()
    for op in graph.get_operations():
        if "gradient_tape/" in op.name or any(id(part.op) in found for part in op.inputs):
            found.add(id(op))
    return found


def _is_figure(op: Any, tensor: Any, rows: int) -> bool:
    """Whether `tensor`, more than one number, belongs to no row but is made of ones that do."""
    size = tensor.shape.num_elements()
    if op.type in crossings.SHAPES or not tensor.dtype.is_floating or size is None or size < 2 or _times(tensor, rows):
        return False
    return any(part.dtype.is_floating and _times(part, rows) for part in op.inputs)


def _is_bent(figure: Any, backwards: set[int]) -> bool:
    """Whether anything but a sum of `figure` comes out of the step, or into its loss."""
    seen: set[tuple[int, bool]] = set()
    pending = [(figure, False)]
    while pending:
        tensor, bent = pending.pop()
        if (id(tensor), bent) in seen:
            continue
        seen.add((id(tensor), bent))
        users = [op for op in tensor.consumers() if op.type not in crossings.SHAPES and id(op) not in backwards]
        # `tf.custom_gradient` has copies of what it is given, of no use to anyone, beside what it gives.
        if bent and not users and tensor.op.type != "IdentityN":
            return True
        for op in users:
            if op.type == "MatexAllreduce" or op.name.startswith(crossings.MADE_GLOBAL):
                continue
            now_bent = bent or not _is_linear(op, tensor)
            if op.outputs and not op.type.startswith("Matex"):
                pending.extend((made, now_bent) for made in crossings.made_of(op, tensor))
            elif now_bent:
                return True
    return False


def _is_linear(op: Any, tensor: Any) -> bool:
    if op.type in _LINEAR or op.type.startswith(("Assign", "Matex")):
        return True
    if op.type not in _FACTORS or (op.type != "Mul" and op.inputs[0] is not tensor):
        return False
    other = op.inputs[1] if op.inputs[0] is tensor else op.inputs[0]
    while other.op.type in ("Cast", "Identity"):
        other = other.op.inputs[0]
    return other.op.type in ("Const", "ReadVariableOp")


def _is_used(op: Any) -> bool:
    """Whether anything but the shape of what `op` gives is asked for, as `tf.zeros_like(x[:1])` does."""
    return any(user.type not in crossings.SHAPES for tensor in op.outputs for user in tensor.consumers())


def _picks_rows(op: Any, batch: Any) -> bool:
    import tensorflow as tf

    if op.type == "Unpack":
        return op.get_attr("axis") == 0
    if op.type in ("Split", "SplitV"):
        axis = tf.get_static_value(op.inputs[0 if op.type == "Split" else 2])
        return axis is not None and int(axis) == 0
    if op.type != "StridedSlice" or op.inputs[0] is not batch:
        return False
    if (op.get_attr("ellipsis_mask") | op.get_attr("new_axis_mask")) & 1:
        return False
    begin, end, stride = (tf.get_static_value(part) for part in op.inputs[1:4])
    if begin is None or not len(begin):
        return False
    if op.get_attr("shrink_axis_mask") & 1:
        return True
    opens, closes = op.get_attr("begin_mask") & 1, op.get_attr("end_mask") & 1
    whole = opens and closes and stride is not None and abs(int(stride[0])) == 1
    return not whole and (end is not None or bool(closes))
