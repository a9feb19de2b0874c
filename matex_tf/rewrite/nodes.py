"""Nodes and values: the ops and tensors of the script's graph, with called functions inlined, and the facts about them.

The rule for an op's type reads these facts with the methods of `Node`, and returns a `Decision` or an `Expansion`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from matex_tf.rewrite.placement import WHOLE, NamedAxes, Placement, Replicated, Sharded, Size, Sizes

MAX_TRACKED = 64
"""The length of the longest vector whose values are tracked."""
_UNREAD = object()  # the shape of a value before its first use
_PLAIN = ("b", "i", "f", "s", "func", "shape")
"""Kinds of attributes that are read from the proto directly."""
USUAL_SIZE = 128
"""The size that cost estimates assume for unknown sizes."""
_Fact = TypeVar("_Fact")
_Kind = TypeVar("_Kind", bound=Placement)
_Class = type[_Kind]


class Value:
    """A tensor of the script's graph.

    tensor: the tensor in the script's graph.
    key: the names of the calling ops and the op, and the number of the output; the same in each reading of the graph.
    placement: how the tensors of the ranks make up the script's tensor.
    node: the node that makes the value; None for an input of the program, and for `counts`, which no op makes.
    constant: the array of numbers, if it is fixed before the graph runs.
    label: the gradient to which the value belongs, see `labels`.
    has_more_shape: more sizes are known than the script's graph shows.
    _shape: the known sizes of the script's tensor; computed at the first use, since TensorFlow's shapes are slow.
    """

    __slots__ = ("_shape", "constant", "has_more_shape", "key", "label", "node", "placement", "tensor")

    def __init__(self, tensor: Any, key: tuple[Any, ...], placement: Placement, node: Node | None = None):
        self.tensor, self.key, self.placement, self.node = tensor, key, placement, node
        self.constant: np.ndarray | None = None
        self._shape: Any = _UNREAD
        self.has_more_shape = False
        self.label: Any = None

    @property
    def dtype(self) -> Any:
        return self.tensor.dtype

    @property
    def shape(self) -> list[int | None] | None:
        """`whole_shape` with None for the sharded axis, whose length is another on each rank."""
        return self.find_shape(self.placement)

    @property
    def whole_shape(self) -> list[int | None] | None:
        """The fixed sizes of the script's tensor; None if the number of axes is unknown."""
        if self._shape is _UNREAD:
            shape = self.tensor.shape
            self._shape = None if shape.rank is None else shape.as_list()
        return self._shape

    def find_shape(self, placement: Placement) -> list[int | None] | None:
        """The known sizes of a rank's tensor, if the value is brought to this placement, which is no piece."""
        known_shape = self.whole_shape
        if known_shape is None or not isinstance(placement, Sharded):
            return known_shape
        return [None if axis == placement.axis else size for axis, size in enumerate(known_shape)]

    def set_shape(self, shape: list[int | None]) -> None:
        """Add fixed sizes that the script's graph does not show. A shape with another number of axes is ignored."""
        known_shape = self.whole_shape
        if known_shape is not None:
            if len(known_shape) != len(shape):
                return
            shape = [new_size if old_size is None else old_size for old_size, new_size in zip(known_shape, shape)]
        if shape != known_shape:
            self._shape, self.has_more_shape = shape, True

    def estimate_bytes(self, rows: int) -> int:
        """Bytes of the script's tensor for a batch of `rows` rows; unknown sizes count as `USUAL_SIZE`."""
        byte_count = int(self.dtype.size)
        for axis, size in enumerate([None] if self.shape is None else self.shape):
            if size is not None:
                byte_count *= size
            elif isinstance(self.placement, Sharded) and axis == self.placement.axis:
                byte_count *= rows * (self.placement.rows.unit or 1)
            else:
                byte_count *= USUAL_SIZE
        return byte_count

    @property
    def sizes(self) -> tuple[Size, ...] | None:
        """The entries of an integer scalar or short vector; None for another tensor, or if their number is unknown.

        A known number is `Size(None, number)`; `Size()` is an unknown number that is equal on all ranks.
        """
        if isinstance(self.placement, Sizes):
            return self.placement.sizes
        is_vector = self.dtype.is_integer and self.shape is not None and len(self.shape) <= 1
        if not is_vector or not isinstance(self.placement, Replicated):
            return None
        if self.constant is not None:
            return tuple(Size(None, int(number)) for number in self.constant.reshape(-1))
        count = self.tensor.shape.num_elements()
        return None if count is None or count > MAX_TRACKED else (Size(),) * count

    @property
    def counts(self) -> tuple[Size, ...] | None:
        """The entries of a vector of sizes, if this rank's number of rows determines all of them; else None."""
        if not isinstance(self.placement, Sizes):
            return None
        sizes = self.placement.sizes
        are_known = all(size.is_known for size in sizes)
        return sizes if are_known and self.shape in ([], [len(sizes)]) else None


class Decision(NamedTuple):
    """The answer of a rule for one op.

    needs: for each input, the placement that it is brought to; None: unchanged.
    gives: the placements of the outputs.
    emit: `emit(copy, *inputs)` creates ops in the `emit.Copy` in place of the op, and returns the outputs; None: the
        copy has the op itself.
    constants, shapes: what is known of each output besides its placement, see `Value`; empty: nothing.
    communicates: `emit` creates collectives.
    """

    needs: Sequence[Placement | None]
    gives: Sequence[Placement]
    emit: Callable[..., Sequence[Any]] | None = None
    constants: Sequence[np.ndarray | None] = ()
    shapes: Sequence[list[int | None] | None] = ()
    communicates: bool = False


_UNDECIDED = Decision((), ())


class Expansion(NamedTuple):
    """The answer of a rule that replaces an op: `function` computes the outputs from `arguments` and the op's inputs.

    `propagate` traces `function`, and decides on each op of the trace by the rule of this op. A cache has one trace for
    all inputs of the same shapes and dtypes, so `function` is a function of a module, and `arguments` are hashable.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Node:
    """An op of the script's graph; an op of a function has one node for each call of the function.

    key: the names of the calling ops and the op; the same in each reading of the graph.
    controls: the nodes that must run before, besides the makers of the inputs.
    rows: the number of rows of the batch in cost estimates.
    batch_rows: the number of rows of the batch, if it is fixed.
    repeats: the op is inside of a loop.
    decision: the placements that the op needs and gives.
    bodies: the programs of the functions that the op calls, such as branches and the body of a loop.
    level: the number of waves of collectives before the op (`waves`).
    is_reused: the copy takes the outputs of the script's own op.
    """

    op: Any
    key: tuple[Any, ...]
    inputs: list[Value]
    controls: list[Node]
    rows: int = USUAL_SIZE
    batch_rows: int | None = None
    repeats: bool = False
    outputs: list[Value] = dataclasses.field(default_factory=list)
    decision: Decision = _UNDECIDED
    bodies: list[Any] = dataclasses.field(default_factory=list)
    level: int = 0
    is_reused: bool = False
    type: str = dataclasses.field(init=False)
    _definition: Any = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        self.type = self.op.type

    @property
    def definition(self) -> Any:
        """The `NodeDef` of the op."""
        if self._definition is None:
            self._definition = self.op.node_def
        return self._definition

    def decide_on(self, decision: Decision) -> None:
        """Set the decision, and apply it to the outputs."""
        self.decision = decision
        for value, placement in zip(self.outputs, decision.gives, strict=True):
            value.placement = placement
        for value, constant in zip(self.outputs, decision.constants):
            if value.constant is None:
                value.constant = constant
        self.set_shapes(decision.shapes)

    def set_shapes(self, shapes: Sequence[list[int | None] | None]) -> None:
        """Add what is known about the shapes of the outputs; None: nothing."""
        for value, shape in zip(self.outputs, shapes):
            if shape is not None:
                value.set_shape(shape)

    def update_from(self, new_node: Node) -> None:
        """Take over the inputs and the decision of a new node of the same op, and keep the own outputs."""
        self.inputs, self.controls = new_node.inputs, new_node.controls
        self.decision, self.bodies = new_node.decision, new_node.bodies

    def get_placement(self, index: int) -> Placement:
        return self.inputs[index].placement

    def require_kind(self, index: int, kind: _Class[_Kind]) -> _Kind:
        """The placement of an input, if it is of this kind. Otherwise raises NoRuleError."""
        placement = self.inputs[index].placement
        if not isinstance(placement, kind):
            raise NoRuleError
        return placement

    def require_rows(self, index: int = 0) -> Sharded:
        """The placement of an input that has rows. Raises NoRuleError for any other input."""
        return self.require_kind(index, Sharded)

    def find_input_with_rows(self, indexes: Iterable[int]) -> tuple[int, Sharded]:
        """The index and the placement of the first of these inputs that has rows. Raises NoRuleError if none has."""
        for index in indexes:
            placement = self.inputs[index].placement
            if isinstance(placement, Sharded):
                return index, placement
        raise NoRuleError

    def bring_rows(self, index: int, placement: Sharded) -> Placement | None:
        """The placement that an input needs for an op that computes with the rows of `placement`.

        None: the input has these rows already. WHOLE: it has one entry along the axis of the rows, which is broadcast.
        Otherwise `placement`: the input is brought to these rows.
        """
        value = self.inputs[index]
        if value.placement.has_layout(placement):
            return None
        if value.shape is not None and len(value.shape) > placement.axis and value.shape[placement.axis] == 1:
            return WHOLE
        require(placement.rows.chosen is None)  # a rank knows only which of its own rows a mask selects
        return placement

    @property
    def predecessors(self) -> list[Node]:
        """The nodes that must run before this one: the makers of its inputs, and `controls`."""
        return [*(value.node for value in self.inputs if value.node is not None), *self.controls]

    @property
    def placements(self) -> list[Placement]:
        return [value.placement for value in self.inputs]

    @property
    def has_rows(self) -> bool:
        return any(isinstance(value.placement, Sharded) for value in self.inputs)

    def read_attribute(self, name: str, default: Any = None) -> Any:
        attributes = self.definition.attr
        if name not in attributes:
            return default
        value = attributes[name]
        kind = value.WhichOneof("value")
        return getattr(value, kind) if kind in _PLAIN else self.op.get_attr(name)

    def count_axes(self, index: int) -> int:
        return len(self.read_shape(index))

    def read_shape(self, index: int) -> list[int | None]:
        """The shape of an input. Raises NoRuleError if it is unknown, as `read_constant` and `read_sizes` do."""
        return require_known(self.inputs[index].shape)

    def read_length(self, index: int) -> int | None:
        """The fixed length of the script's tensor along the axis along which this input is sharded; None: unknown."""
        shape = self.inputs[index].whole_shape
        return None if shape is None else shape[self.require_rows(index).axis]

    def has_length(self, index: int, placement: Sharded) -> bool:
        """Whether an input certainly has as many entries along the axis of `placement` as all ranks have together."""
        shape, unit = self.inputs[index].whole_shape, placement.rows.unit
        if not shape or len(shape) <= placement.axis or not self.batch_rows or not unit:
            return False
        return shape[placement.axis] == self.batch_rows * unit

    def read_constant(self, index: int) -> np.ndarray:
        return require_known(self.inputs[index].constant)

    def read_axes(self, index: int, axis_count: int) -> list[int]:
        """The axes in a constant input, as non-negative numbers."""
        return [int(axis) % max(axis_count, 1) for axis in self.read_constant(index).reshape(-1)]

    def read_named_axes(self, index: int, axis_count: int) -> list[bool | None]:
        """For each axis: whether the input names it; None if that is unknown."""
        placement = self.get_placement(index)
        if isinstance(placement, NamedAxes) and len(placement.axes) <= axis_count:
            # The vector may be about the first axes only: of a matrix product, only the outer axes are broadcast. It
            # names no axis after these.
            return [*placement.axes, *[False] * (axis_count - len(placement.axes))]
        named_axes = self.read_axes(index, axis_count)
        return [axis in named_axes for axis in range(axis_count)]

    def read_sizes(self, index: int) -> tuple[Size, ...]:
        return require_known(self.inputs[index].sizes)

    def decide(
        self, needs: Sequence[Placement | None], *gives: Placement, emit: Any = None, shapes: Sequence[Any] = ()
    ) -> Decision:
        """The decision that inputs are brought to `needs`, and that outputs have the placements `gives`.

        Further inputs become whole. Further outputs have the last placement of `gives`.
        """
        further_needs = [WHOLE] * (len(self.inputs) - len(needs))
        further_gives = gives[-1:] * (len(self.outputs) - len(gives))
        return Decision([*needs, *further_needs], [*gives, *further_gives], emit, (), shapes)

    def decide_whole(self) -> Decision:
        """All inputs are brought to whole tensors, so the outputs are the script's tensors."""
        return Decision([WHOLE] * len(self.inputs), [WHOLE] * len(self.outputs))


class StandIn:
    """The op of a node for which the script's graph has no op, such as the conversion of a sum."""

    device = ""
    graph = op_def = None

    def __init__(self, kind: str, outputs: Sequence[Any]):
        from tensorflow.core.framework import node_def_pb2

        self.type = self.name = kind
        self.outputs = list(outputs)
        self.node_def = node_def_pb2.NodeDef()


class NoRuleError(Exception):
    """A rule does not apply to these inputs: the op takes whole tensors."""


def require(condition: bool) -> None:
    """Raise NoRuleError if a condition for a rule does not hold."""
    if not condition:
        raise NoRuleError


def require_known(fact: _Fact | None) -> _Fact:
    """A fact that a rule needs. Raises NoRuleError if it is None: unknown."""
    if fact is None:
        raise NoRuleError
    return fact


def has_same_outputs(first: Node, second: Node) -> bool:
    """Whether replacing `first` by `second` changes no decision about later nodes."""
    return all(
        value.placement == other_value.placement
        and value.shape == other_value.shape
        and _is_same(value.constant, other_value.constant)
        for value, other_value in zip(first.outputs, second.outputs, strict=True)
    )


def _is_same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    return first is second or (first is not None and second is not None and np.array_equal(first, second))
