"""Expresses a tensor of a graph as an affine function of a variable: `keep` times the variable, plus `more`.

The new weight `w - 0.1 * g` has keep 1 and more `-0.1 * g`; the moving average `0.9 * m + 0.1 * x` has keep 0.9 and
more `0.1 * x`. `additive` turns assignments of such values into additions in shared memory.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from matex_tf.rewrite.subgraphs import list_consumers, reach

_MAX_DEPTH = 8  # ops between a variable and its new value; an optimizer has three


class Sum(NamedTuple):
    """`keep * variable + more`."""

    keep: Any  # an int, such as 0 or 1; a scalar tensor if the variable is multiplied by a tensor
    more: Any  # a tensor; None for zero

    def add_sum(self, other: Sum, sign: int = 1) -> Sum:
        """The sum of both; with sign -1, the difference."""
        # 0 is not added, because the sum of a tensor and 0 would be another op of the graph.
        keep = self.keep if _is_zero(other.keep) else self.keep + sign * other.keep
        if other.more is None:
            return Sum(keep, self.more)
        if self.more is None:
            return Sum(keep, other.more if sign > 0 else -other.more)
        return Sum(keep, self.more + other.more if sign > 0 else self.more - other.more)

    def scale_sum(self, factor: Any) -> Sum:
        """This sum times `factor`."""
        return Sum(0 if _is_zero(self.keep) else self.keep * factor, None if self.more is None else self.more * factor)

    def evaluate_at(self, variable: Any) -> Any:
        """The value of this sum for a value of the variable."""
        import tensorflow as tf

        scaled_variable = tf.cast(self.keep, variable.dtype) * variable
        return scaled_variable if self.more is None else scaled_variable + self.more


def _is_zero(keep: Any) -> bool:
    return isinstance(keep, int) and keep == 0


def find_sum(tensor: Any, handle: Any, max_depth: int = _MAX_DEPTH) -> Sum:
    """Express `tensor` by the variable with this handle in its graph.

    If no factor `keep` is found, the result is `Sum(0, tensor)`, which is always right: 0 times the variable, plus the
    tensor itself. So `more` may also depend on the variable (`is_dependent`).
    """
    op = tensor.op
    unknown_sum = Sum(0, tensor)
    if op.type == "ReadVariableOp":
        return Sum(1, None) if op.inputs[0].name == handle.name else unknown_sum
    if not max_depth:
        return unknown_sum
    found_sum = unknown_sum
    if op.type == "Identity" or (op.type == "Cast" and op.inputs[0].dtype == tensor.dtype):
        found_sum = find_sum(op.inputs[0], handle, max_depth - 1)
    elif op.type in ("AddV2", "Add", "Sub"):
        left, right = (find_sum(term, handle, max_depth - 1) for term in op.inputs)
        if not (_is_zero(left.keep) and _is_zero(right.keep)):
            found_sum = left.add_sum(right, -1 if op.type == "Sub" else 1)
    elif op.type == "Mul":
        for term, factor in itertools.permutations(op.inputs):
            if factor.shape.rank != 0:  # `keep` is a scalar
                continue
            term_sum = find_sum(term, handle, max_depth - 1)
            if not _is_zero(term_sum.keep):
                found_sum = term_sum.scale_sum(factor)
    # The terms cancel out, as in v - v: neither a factor nor a term is left. The result is then the tensor itself.
    is_empty = _is_zero(found_sum.keep) and found_sum.more is None
    return unknown_sum if is_empty else found_sum


def is_dependent(tensor: Any, handle: Any) -> bool:
    """Whether a tensor of the graph depends on the variable with this handle."""
    if tensor is None or isinstance(tensor, int):
        return False
    return tensor.op in reach(handle.consumers(), list_consumers)
