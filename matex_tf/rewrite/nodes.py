"""Ops and tensors of the script's graph, with what is known of them; functions that are called are part of the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf.rewrite.placement import REPLICATED, SIZES, WHOLE, Placement, Size

MOST = 64
"""Entries of a vector whose values are followed."""


class Value:
    """A tensor of the script's graph.

    key: the same in each reading of the graph: the path of calls, the op, the output.
    constant: the value, where it is fixed.
    """

    __slots__ = ("_shape", "constant", "key", "node", "placement", "tensor")

    def __init__(self, tensor: Any, key: tuple[Any, ...], placement: Placement, node: Node | None = None):
        self.tensor, self.key, self.placement, self.node = tensor, key, placement, node
        self.constant: np.ndarray | None = None
        self._shape: list[int | None] | None = None

    @property
    def dtype(self) -> Any:
        return self.tensor.dtype

    @property
    def shape(self) -> list[int | None] | None:
        """The sizes of the script's tensor, as far as they are fixed; None where even their number is not known."""
        if self._shape is not None or self.tensor.shape.rank is None:
            return self._shape
        sizes: list[int | None] = self.tensor.shape.as_list()
        return sizes

    @property
    def has_more_shape(self) -> bool:
        """Whether more sizes are known than the script's graph tells."""
        return self._shape is not None

    def set_shape(self, shape: list[int | None]) -> None:
        """Note sizes, as far as they are fixed, besides those that the script's graph tells."""
        known = self.shape
        if known is None or len(known) != len(shape):
            self._shape = shape if known is None else self._shape
        elif any(one is None is not other for one, other in zip(known, shape)):
            self._shape = [other if one is None else one for one, other in zip(known, shape)]

    @property
    def sizes(self) -> tuple[Size, ...] | None:
        """The entries of a scalar or short vector of whole numbers; None where there is no telling how many."""
        if self.placement.kind == SIZES:
            return self.placement.sizes
        if self.placement.kind != REPLICATED or not self.dtype.is_integer or self.shape is None or len(self.shape) > 1:
            return None
        if self.constant is not None:
            return tuple(Size(None, int(one)) for one in self.constant.reshape(-1)[: MOST + 1])
        count = self.tensor.shape.num_elements()
        return None if count is None or count > MOST else (Size(),) * count


class Decision(NamedTuple):
    """What a rule says of an op.

    needs: for each input the placement that it is brought to; None: as it is.
    gives: the placements of the outputs.
    emit: makes the outputs in the copy, of the inputs there; None: the op itself.
    constants, shapes: what is known of outputs besides, see `Value`.
    """

    needs: Sequence[Placement | None]
    gives: Sequence[Placement]
    emit: Callable[..., Sequence[Any]] | None = None
    constants: Sequence[np.ndarray | None] = ()
    shapes: Sequence[list[int | None] | None] = ()


class Expansion(NamedTuple):
    """A rule's answer: other ops, which `function` makes of the op's inputs, stand in the place of the op."""

    function: Callable[..., Any]


class Node:
    """An op of the script's graph, once for each call of the function that it is in.

    is_kept: whether the copy takes the outputs of the op itself.
    """

    __slots__ = ("bodies", "controls", "decision", "inputs", "is_kept", "key", "level", "op", "outputs")

    def __init__(self, op: Any, key: tuple[Any, ...], inputs: Sequence[Value], controls: Sequence[Node]):
        self.op, self.key, self.inputs, self.controls = op, key, list(inputs), list(controls)
        self.outputs: list[Value] = []
        self.decision: Decision = Decision((), ())
        self.bodies: list[Any] = []
        self.level = 0
        self.is_kept = False

    @property
    def type(self) -> str:
        return self.op.type

    def get_placement(self, index: int) -> Placement:
        return self.inputs[index].placement

    @property
    def placements(self) -> list[Placement]:
        return [one.placement for one in self.inputs]

    @property
    def has_rows(self) -> bool:
        return any(one.placement.is_sharded for one in self.inputs)

    def read_attribute(self, name: str, default: Any = None) -> Any:
        return self.op.get_attr(name) if name in self.op.node_def.attr else default

    def count_axes(self, index: int) -> int:
        shape = self.inputs[index].shape
        if shape is None:
            raise NoRuleError
        return len(shape)

    def read_shape(self, index: int) -> list[int | None]:
        shape = self.inputs[index].shape
        if shape is None:
            raise NoRuleError
        return shape

    def read_constant(self, index: int) -> np.ndarray:
        constant = self.inputs[index].constant
        if constant is None:
            raise NoRuleError
        return constant

    def read_axes(self, index: int, rank: int) -> list[int]:
        """The axes that a fixed input names, counted from 0."""
        return [int(axis) % max(rank, 1) for axis in self.read_constant(index).reshape(-1)]

    def read_named_axes(self, index: int, rank: int) -> list[bool | None]:
        """For each axis whether an input names it; None where that is not known."""
        axes = self.get_placement(index).axes
        if axes is not None and len(axes) <= rank:
            return [*axes, *[False] * (rank - len(axes))]  # of a product of matrices only the outer axes are compared
        named = self.read_axes(index, rank)
        return [axis in named for axis in range(rank)]

    def read_sizes(self, index: int) -> tuple[Size, ...]:
        sizes = self.inputs[index].sizes
        if sizes is None:
            raise NoRuleError
        return sizes

    def decide(self, needs: Sequence[Placement | None], *gives: Placement, emit: Any = None) -> Decision:
        return Decision(needs, gives, emit)

    def decide_whole(self) -> Decision:
        """All inputs are made whole, and so the outputs are those of the script."""
        return Decision([WHOLE] * len(self.inputs), [WHOLE] * len(self.op.outputs))


class NoRuleError(Exception):
    """A rule does not hold for these inputs: the op takes whole tensors."""
