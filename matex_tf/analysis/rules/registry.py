"""What a rule is given, what it may say, and the table of rules by op type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from matex_tf.analysis.placement import (
    DERIVATION,
    DERIVED,
    Element,
    Placement,
    is_aligned,
    make_replicated,
    make_unknown,
)

RULES: dict[str, Callable[[Node], Placement | Sequence[Placement]]] = {}

MEET = "rows of the batch meet one another in it"
FIXED = "rows of the batch meet a tensor whose first dimension is fixed"
FIGURE = "a figure of the whole batch meets rows of it"
RANK = "the number of dimensions of one of its inputs is not known"
DATA = "one of its arguments is not known before it runs"
SIZES = "a vector of sizes, or of row numbers, goes into it"
WEIGHS = "what it takes weighs differently for a slice than for the batch"

_KEEP_ZERO = set(
    """Add AddN AddV2 AccumulateNV2 BroadcastTo Case Cast ConcatV2 Const Conj Cumsum Div DivNoNan ExpandDims Fill Gather
    GatherV2 Identity IdentityN If Mul MulNoNan Neg Pack PartitionedCall PreventGradient RealDiv Reshape ReverseV2
    Roll Slice Split SplitV Squeeze StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile StopGradient
    StridedSlice Sub Sum TensorListFromTensor TensorListGetItem TensorListPopBack TensorListPushBack TensorListSetItem
    TensorListStack Tile Transpose Unpack While ZerosLike""".split()
)
"""Ops that, of what is 0 everywhere, make what is 0 everywhere."""

_SHAPED_ALIKE: set[str] = set()
"""Ops of which sizes of the result are sizes of the inputs, whatever the values of those are."""


class UnprovedError(Exception):
    """A rule does not hold for the inputs; the text, a clause, says why."""


class NeverError(UnprovedError):
    """As above, and neither could it be computed anew of whole inputs: it might fail for those of a slice."""


class Node:
    """An op as rules see it: the placements of its inputs, and what is known of it before it runs."""

    def __init__(self, op: Any, tensors: Sequence[Any], inputs: Sequence[Placement], interpreter: Any):
        self.op, self.tensors, self.inputs, self.interpreter = op, tensors, list(inputs), interpreter

    @property
    def type(self) -> str:
        return self.op.type

    def read_attribute(self, name: str) -> Any:
        return self.op.get_attr(name)

    def get_shape(self, index: int) -> list[int | None]:
        """The static shape of an input, None for what is not fixed.

        Raises:
            UnprovedError: its number of dimensions is not known.
        """
        shape = self.interpreter.find_shape(self.tensors[index])
        if shape is None:
            raise UnprovedError(RANK)
        return shape

    def count_axes(self, index: int) -> int:
        return len(self.get_shape(index))

    def get_output_shape(self, index: int = 0) -> list[int | None]:
        return _list_sizes(self.op.outputs[index])

    def read_constant(self, index: int) -> np.ndarray:
        """The value of an input that is fixed and the same for a slice as for the batch.

        Raises:
            UnprovedError: it is not.
        """
        elements = self.inputs[index].elements
        if elements is not None:
            if any(one.power != 0 or one.value is None for one in elements):
                raise UnprovedError(DATA)
            values = np.array([one.value for one in elements], np.int64)
            return values if self.count_axes(index) else values.reshape(())
        value = find_constant(self.tensors[index])
        if value is None:
            raise UnprovedError(DATA)
        return value

    def list_axes(self, index: int, rank: int) -> list[int]:
        """The axes that a constant input names, counted from 0."""
        return [int(axis) % max(rank, 1) for axis in self.read_constant(index).reshape(-1)]

    def need_same(self, *indexes: int) -> None:
        for index in indexes:
            if not self.inputs[index].is_same:
                raise UnprovedError(FIGURE if self.inputs[index].is_figure else DATA)


def settle_placement(op: Any, index: int, found: Placement) -> Placement:
    """What a rule says of an output, without what does not hold for this kind of op."""
    if found.kind == DERIVED and not op.outputs[index].shape.is_fully_defined() and op.type not in _SHAPED_ALIKE:
        # Of a slice's own figures it might be of a size for which what follows fails.
        return make_unknown(op, "figures of the whole batch decide how long it is")
    if found.zero and op.type not in _KEEP_ZERO:
        found = found._replace(zero=False)
    if found.elements is not None and op.outputs[index].shape.rank not in (0, 1):
        if found.is_mixed:
            return make_unknown(op, "a vector of sizes goes into it")
        found = found._replace(elements=None)
    return found


def combine_figures(node: Node, indexes: Sequence[int] | None = None) -> Placement:
    """The placement of what is made of inputs without rows.

    Raises:
        UnprovedError: an input has rows, or is a vector of sizes.
    """
    found = [node.inputs[index] for index in (range(len(node.inputs)) if indexes is None else indexes)]
    if all(one.is_same for one in found):
        return make_replicated()
    if all(one.is_figure for one in found):
        return DERIVATION
    raise UnprovedError(FIXED if any(one.is_sharded for one in found) else SIZES)


def need_fit(first: Placement, *others: Placement) -> None:
    """Raise unless the rows of sharded tensors are beside each other on every rank as they are alone."""
    if not first.is_sharded or not all(one.is_sharded and is_aligned(first, one) for one in others):
        raise UnprovedError(MEET)


def register_rule(*types: str, shaped_alike: bool = False) -> Callable[..., Any]:
    """Register a function as the rule of ops of these types.

    shaped_alike: sizes of their results are sizes of their inputs, whatever the values of those are.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in types:
            if name in RULES:
                raise ValueError(f"{name} has a rule already")
            RULES[name] = function
        if shaped_alike:
            _SHAPED_ALIKE.update(types)
        return function

    return register


def list_entries(one: Placement) -> tuple[Element, ...]:
    """The entries of a short vector or scalar of whole numbers.

    Raises:
        UnprovedError: they are not followed.
    """
    if one.elements is None:
        raise UnprovedError(SIZES)
    return one.elements


def find_rows_place(sizes: Placement) -> int | None:
    """Which of the sizes in a vector is a number of rows; None if all are fixed.

    Raises:
        UnprovedError: that is not known.
    """
    if sizes.is_same:
        return None
    powers = [one.power for one in sizes.elements or ()]
    if sorted(powers, key=str) != sorted([-1] + [0] * (len(powers) - 1), key=str):
        raise NeverError("a shape is computed from the number of rows")
    return powers.index(-1)


def find_constant(tensor: Any) -> np.ndarray | None:
    """The value of a tensor that a constant op makes, maybe behind identities."""
    import tensorflow as tf

    op = tensor.op
    while op.type in ("Identity", "Cast") and op.inputs:
        op = op.inputs[0].op
    if op.type != "Const":
        return None
    return tf.make_ndarray(op.get_attr("value"))


def find_source(tensor: Any, depth: int = 8) -> Any:
    """What a tensor is computed as: equal for two of a graph that have the same entries in the same order."""
    op = tensor.op
    while op.type in ("Identity", "Reshape", "StopGradient", "Squeeze", "ExpandDims"):
        tensor = op.inputs[0]
        op = tensor.op
    if op.type == "Const":
        return op.type, op.node_def.attr["value"].SerializeToString(deterministic=True)
    is_plain = op.inputs and depth and op.op_def is not None and not op.op_def.is_stateful
    if not is_plain or op.type not in _PLAIN:
        return op, tensor.value_index
    attributes = tuple(sorted((name, str(value)) for name, value in op.node_def.attr.items() if name[0] != "_"))
    return op.type, attributes, *(find_source(one, depth - 1) for one in op.inputs)


_PLAIN = set(
    """Cast Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalNot Add AddV2 Sub Mul
    StridedSlice IsNan IsFinite Abs""".split()
)
"""Ops of which two with the same inputs are taken for one."""


def _list_sizes(tensor: Any) -> list[int | None]:
    shape = tensor.shape
    if shape.rank is None:
        raise UnprovedError(RANK)
    return shape.as_list()
