"""Whether a loss in a graph is a mean or a sum over the rows of the batch, read from the graph itself.

The walk goes from the loss towards the data through what keeps the meaning of a scalar (sums of terms, factors,
casts) to the reductions. A sum that is divided by a count taken from the data's shape is a mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_THROUGH = {
    "Identity",
    "Cast",
    "AddV2",
    "Add",
    "AddN",
    "Sub",
    "Mul",
    "Neg",
    "Reshape",
    "Squeeze",
    "StopGradient",
    "CheckNumerics",
    "ExpandDims",
    "Pack",
    "EnsureShape",
    "PreventGradient",
    "IdentityN",
}
_DIVIDE = {"RealDiv", "DivNoNan", "Div", "TruncateDiv"}
_BENT = {"Sqrt", "Rsqrt", "Square", "Pow", "Log", "Log1p", "Exp", "Abs", "Maximum", "Minimum", "Tanh", "Sigmoid"}
_COUNTS = {"Shape", "Size", "ShapeN"}
_VARIABLE = {"ReadVariableOp", "VariableV2", "VarHandleOp", "Variable"}
# What comes out of these is the same on all ranks.
GLOBAL = {"MatexAllreduce", "MatexAllgather", "MatexReduceGradients", "MatexHandOverGradient"}
_STEPS = 2000


_MARK = "_matex_kind"
_ASIDE = "_matex_aside"
_DIVISOR = "_matex_divisor"


@dataclass
class Analysis:
    """What a loss is: "mean", "sum" or "unknown", and what makes its ranks' parts add up to something else.

    `terms` counts the parts that depend on the rows, `ratios` holds what those are divided by where that is a figure of
    the data, `mixed` says that some are means and others sums. `bent`: a curve is taken of one; `products`: or two are
    multiplied; `uneven`: a mean is taken of rows that the data choose, so that ranks have other numbers of them.
    """

    kind: str = "unknown"
    mixed: bool = False
    penalty: bool = False
    bent: bool = False
    products: bool = False
    uneven: bool = False
    terms: int = 0
    ratios: list[Any] = field(default_factory=list)

    @property
    def denominator(self) -> Any:
        """The only divisor of the loss's only term, where ranks' losses weighed by it add up; else None."""
        if len(self.ratios) != 1 or self.terms != 1 or self.bent:
            return None
        divisor = analyse(self.ratios[0])
        trained = _reaches(self.ratios[0], _VARIABLE, set())
        return None if trained or divisor.bent or divisor.ratios or divisor.kind == "unknown" else self.ratios[0]


def mark(tensor: Any, kind_of: str) -> Any:
    """Note on `tensor` how it depends on the rows, for what cannot be read from its ops; returns it."""
    setattr(tensor, _MARK, kind_of)
    return tensor


def aside(tensor: Any) -> Any:
    """Note that what `tensor`, the bound of a slice, is made of does not count in what the slice goes into."""
    setattr(tensor.op, _ASIDE, True)
    return tensor


def unmark(tensor: Any) -> Any:
    """Take back what was noted on `tensor`; returns it."""
    setattr(tensor, _MARK, None)
    return tensor


def marked(tensor: Any) -> str | None:
    return getattr(tensor, _MARK, None)


def divide(tensor: Any, divisor: Any) -> Any:
    """Note on the eager `tensor` that it is a sum over rows divided by another, `divisor`; returns it."""
    setattr(tensor, _DIVISOR, divisor)
    return mark(tensor, "mean")


def divisor(tensor: Any) -> Any:
    """What `tensor` is divided by if it is a ratio of sums over rows, so that ranks weigh by it; else None."""
    if hasattr(tensor, "numpy") or not hasattr(tensor, "op"):
        return getattr(tensor, _DIVISOR, None)
    return analyse(tensor).denominator


def kind(loss: Any) -> str:
    """ "mean", "sum" or "unknown": how the tensor `loss` of a graph depends on the number of rows."""
    return analyse(loss).kind


def analyse(loss: Any) -> Analysis:
    """How the tensor `loss` of a graph, what a tape differentiates, depends on the rows of the batch."""
    result = Analysis()
    found = _removals(loss, result, set())
    if not found and loss.shape.rank:
        found = {"sum"}  # what is differentiated is the sum of its elements
    if len(found) == 1:
        result.kind = found.pop()
    result.mixed = len(found) > 1
    return result


def is_sum(tensor: Any) -> bool:
    """Whether the tensor of a graph, of any shape, is a sum over the rows or a count of them, maybe added to others."""
    if _is_count(tensor):
        return True
    found = analyse(tensor)
    return found.kind == "sum" and not (found.bent or found.ratios or found.mixed)


def _removals(tensor: Any, result: Analysis, seen: set[int]) -> set[str]:
    """By what the dimension of the rows was removed on the way from the data to `tensor`; empty where it was not."""
    op = getattr(tensor, "op", None)
    if op is None or id(tensor) in seen or len(seen) > _STEPS:
        return set()
    seen.add(id(tensor))
    if marked(tensor) is not None:
        result.terms += 1
        return {marked(tensor)}
    if op.type in ("Mean", "Sum"):
        if not depends_on_data(op.inputs[0]):
            result.penalty = True  # on the weights alone: the same on every rank
            return set()
        before = _removals(op.inputs[0], result, seen)
        if before or _keeps_rows(op) or op.inputs[0].shape.rank == 0:
            return before
        result.terms += 1
        if op.type == "Mean" and _is_of_chosen_rows(op.inputs[0]):
            result.bent = result.uneven = True
        return {"mean" if op.type == "Mean" else "sum"}
    if op.type == "L2Loss":
        if not depends_on_data(op.inputs[0]):
            result.penalty = True
            return set()
        before = _removals(op.inputs[0], result, seen)
        result.terms += not before
        return before or {"sum"}
    if op.type in _DIVIDE:
        if _is_count(op.inputs[1]) or _is_own_size(op.inputs[1], op.inputs[0]):
            result.terms += 1
            return {"mean"}
        # A divisor of each row is that row's own affair.
        if op.inputs[1].shape.rank == 0 and depends_on_data(op.inputs[1]):
            result.terms += 1
            result.ratios.append(op.inputs[1])
            return {"mean"}
        return _removals(op.inputs[0], result, seen)
    if op.type in _BENT and tensor.shape.rank == 0:
        found = _removals(op.inputs[0], result, seen)
        result.bent = result.bent or bool(found)
        return {"mean"} if found else set()
    found: set[str] = set()
    if op.type == "Mul" and _multiplies_by_inverse_count(op):
        result.terms += 1
        return {"mean"}
    if op.type in _THROUGH:
        for part in op.inputs:
            found |= _removals(part, result, seen)
        if op.type == "Mul" and found and all(part.shape.rank == 0 and _is_of_data(part) for part in op.inputs):
            result.bent = result.products = True
    return found


def _is_of_chosen_rows(tensor: Any) -> bool:
    """Whether it depends on the data how many rows `tensor` has: those that a condition is true of."""
    shape = tensor.shape
    return bool(shape.rank) and shape.as_list()[0] is None and _reaches(tensor, {"Where"}, _VARIABLE | GLOBAL)


def _is_of_data(tensor: Any) -> bool:
    return depends_on_data(tensor) and not _is_count(tensor)


def _keeps_rows(op: Any) -> bool:
    """Whether a reduction leaves the first dimension, that of the rows."""
    import tensorflow as tf

    axes = tf.get_static_value(op.inputs[1])
    if axes is None or op.inputs[0].shape.rank is None:
        return False
    rank = op.inputs[0].shape.rank
    return all(int(axis) % max(rank, 1) != 0 for axis in axes.reshape(-1))


def _is_count(tensor: Any) -> bool:
    return _reaches(tensor, _COUNTS, _VARIABLE | {"Placeholder", "Arg"})


def _multiplies_by_inverse_count(op: Any) -> bool:
    """Whether `op` is a product of a sum and one over its number of rows: a mean."""
    for tensor, factor in (op.inputs, reversed(op.inputs)):
        while factor.op.type in ("Cast", "Identity"):
            factor = factor.op.inputs[0]
        counts = None
        if factor.op.type in _DIVIDE and _constant(factor.op.inputs[0]) is not None:
            counts = factor.op.inputs[1]
        elif factor.op.type in ("Reciprocal", "Inv"):
            counts = factor.op.inputs[0]
        if counts is not None and counts.shape.rank == 0 and depends_on_data(tensor):
            return _is_count(counts) or _is_own_size(counts, tensor)
    return False


def _is_own_size(divisor: Any, tensor: Any) -> bool:
    """Whether a sum is divided by its own number of elements or rows, which is known when traced.

    A script that divides by its batch size divides a slice's sum by another number than the slice's.
    """
    divisor = _constant(divisor)
    if divisor is None:
        return False
    for _ in range(10):
        if tensor.op.type == "Sum" and tensor.op.inputs[0].shape.rank != 0:
            shape = tensor.op.inputs[0].shape
            return divisor in (shape.num_elements(), shape.as_list()[0] if shape.rank else None)
        if tensor.op.type not in _THROUGH | {"Sum"} or not tensor.op.inputs:
            return False
        # Of a product with a factor, what is not the factor.
        inputs = list(tensor.op.inputs)
        tensor = next((part for part in inputs if _constant(part) is None), inputs[0])
    return False


def _constant(tensor: Any) -> float | None:
    """The value of a scalar that is known when traced, or None."""
    import tensorflow as tf

    value = tf.get_static_value(tensor)
    if value is not None:
        return float(value.reshape(())) if value.size == 1 else None
    if tensor.op.type in ("Cast", "Identity"):
        return _constant(tensor.op.inputs[0])
    if tensor.op.type == "StridedSlice":
        values = [tf.get_static_value(part) for part in tensor.op.inputs[:2]]
        return None if any(value is None for value in values) else float(values[0][int(values[1][0])])
    if tensor.op.type == "Mul":
        factors = [_constant(part) for part in tensor.op.inputs]
        return None if None in factors else factors[0] * factors[1]
    if tensor.op.type == "Prod":
        factors = tf.get_static_value(tensor.op.inputs[0])
        return None if factors is None else float(factors.prod())
    return None


def depends_on_data(tensor: Any) -> bool:
    """Whether the tensor of a graph depends on this rank's rows, as far as they were not made global."""
    return _reaches(
        tensor,
        {"Placeholder", "IteratorGetNext", "OptionalGetValue", "Arg", "PlaceholderWithDefault"},
        _VARIABLE | GLOBAL,
    )


def _reaches(tensor: Any, wanted: set[str], stop: set[str]) -> bool:
    seen: set[int] = set()
    pending = [tensor]
    while pending and len(seen) < _STEPS:
        current = pending.pop()
        op = getattr(current, "op", None)
        if op is None or id(op) in seen:
            continue
        seen.add(id(op))
        if getattr(op, _ASIDE, False):
            continue
        if op.type in wanted and current.dtype.name not in ("resource", "variant"):
            return True
        if op.type not in stop:
            pending.extend(op.inputs)
    return False
