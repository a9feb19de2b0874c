"""The tensors of one program's copy: of each value in its own placement, and in the placements that ops need.

`find_path` finds how an op gets a value in the placement that it needs, and `Tensors` makes the tensor. The number of
rows n is an example of the path COUNTED. The script computes n as the size of a tensor. In the copy n is a number of
the rank's slice, and the ops that compute the script's n are left out (`Value.counts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.kept import Kept
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import WHOLE, Partial, Piece, Placement, Replicated, Sharded, Size, Sizes
from matex_tf.rewrite.sharing import cut_piece

SAME, COUNTED, EXCHANGED, CONVERTED = "same", "counted", "exchanged", "converted"
"""The paths. The op gets:

    SAME         the value's own tensor
    COUNTED      numbers that follow from the rank's slice of the batch
    EXCHANGED    the result of a collective on the value
    CONVERTED    the result of ops, such as slicing, on the value or on the result of a collective
"""


def find_path(value: Value, need: Placement | None) -> str:
    """The path on which an op gets a value in the placement `need`; a need of None is the value's own placement."""
    placement = value.placement
    # Numbers that count rows, as the rank's own or as the script's.
    if value.counts is not None and (need is None or isinstance(need, (Sizes, Replicated))):
        return COUNTED
    # The placement fits.
    if need is None or placement.has_layout(need):
        return SAME
    # The op needs the rank's numbers of rows. The value has them, or has the script's, such as a constant shape.
    if isinstance(need, Sizes) and isinstance(placement, (Sizes, Replicated)):
        return COUNTED if isinstance(placement, Replicated) else SAME
    # A sum is needed as a sum.
    if isinstance(need, Partial) and isinstance(placement, Partial):
        return SAME
    # Ops make a term of a sum, rows or a piece of the whole value; or the script's sizes of a rank's sizes.
    if isinstance(need, (Partial, Sharded, Piece)) or isinstance(placement, Sizes):
        return CONVERTED
    return EXCHANGED if placement.needs_exchange(need) else SAME


def uses_tensor(value: Value, need: Placement | None) -> bool:
    """Whether the value's own tensor is used, possibly after a conversion or a collective."""
    path = find_path(value, need)
    # A conversion of numbers that count rows begins with numbers that follow from the slice, not with the tensor.
    is_count_converted = path == CONVERTED and value.counts is not None
    return path != COUNTED and not is_count_converted


def is_constant(node: Node) -> bool:
    """Whether the op is a constant, which is copied wherever it is used."""
    return node.type == "Const" and not node.controls and node.decision.emit is None and not node.is_reused


class Tensors:
    """The tensors of values in one graph. `bodies` adds the outputs of ops and the results of collectives.

    own: the tensors of values in the values' own placements, by the ids of the values.
    brought: the tensors of values in other placements, by the ids of the values and the placements. Results of
        collectives have the placement WHOLE, or are pieces.
    _copy: the `emit.Copy` of the step.
    _kept: the ops that the copy keeps unchanged.
    _counted: the tensors of sizes that count rows, each made once.
    """

    def __init__(self, copy: Any, kept: Kept):
        self.own: dict[int, Any] = {}
        self.brought: dict[tuple[int, Placement], Any] = {}
        self._copy, self._kept = copy, kept
        self._counted: dict[tuple[Any, ...], Any] = {}

    def find(self, value: Value) -> Any:
        """The tensor of a value in its own placement."""
        if id(value) not in self.own:
            if value.counts is not None:
                return self._count(value, value.counts, self._copy.batch_slice.count)
            # No op stands in for a constant: TensorFlow infers shapes from its numbers.
            if value.node is not None and is_constant(value.node):
                self.own[id(value)] = self._copy.create_op(value.node, [])[0]
            elif value in self._kept:
                self.own[id(value)] = self._kept.stand_in(value, self.find_shape(value, value.placement))
        return self.own[id(value)]

    def bring(self, value: Value, need: Placement | None) -> Any:
        """The tensor of a value in the placement `need`, by its path (`find_path`): the value's own tensor;
        numbers of rows, which follow from the slice; the result of a collective, which has run before; or the result of
        ops on one of these, such as slicing.
        """
        path = find_path(value, need)
        if path == SAME or need is None:
            return self.find(value)
        if path == COUNTED:  # the numbers follow from the number of rows of the batch, or of the rank's slice
            batch_slice = self._copy.batch_slice
            sizes = next(placement.sizes for placement in (value.placement, need) if isinstance(placement, Sizes))
            return self._count(value, sizes, batch_slice.total if isinstance(need, Replicated) else batch_slice.count)
        key = id(value), need if isinstance(need, (Partial, Sharded, Piece)) else WHOLE
        if key not in self.brought and path == CONVERTED:
            self.brought[key] = self._convert(value, need)
        return self.brought[key]

    def _convert(self, value: Value, need: Placement) -> Any:
        """The tensor that ops on the value's whole tensor make, or on a rank's sizes."""
        if isinstance(need, Partial):
            return self._copy.keep_once(self.bring(value, WHOLE))
        if isinstance(need, Sharded):
            return self._copy.slice_rows(self.bring(value, WHOLE), need)
        if isinstance(need, Piece):
            return cut_piece(self.bring(value, WHOLE), need.cuts, self._copy.exchanger.rank)
        return self._copy.make_sizes_whole(self.find(value), value.placement)

    def _count(self, value: Value, sizes: Sequence[Size], rows: Any) -> Any:
        """The numbers `sizes` of a value as a tensor. rows: a scalar, the rows of this rank or of the batch."""
        key = tuple(sizes), value.dtype, value.shape == [], id(rows)
        if key not in self._counted:
            with tf.control_dependencies(None):
                entries = [
                    tf.constant(size.value, value.dtype)
                    if size.rows is None
                    else tf.cast(rows if size.rows.unit == 1 else rows * size.rows.unit, value.dtype)
                    for size in sizes
                ]
                self._counted[key] = entries[0] if value.shape == [] else tf.stack(entries)
        return self._counted[key]

    def find_shape(self, value: Value, placement: Placement) -> list[int | None] | None:
        """The known part of the shape that the tensor of a value has in this placement."""
        if isinstance(placement, Piece):
            first, last = placement.cuts[self._copy.exchanger.rank :][:2]
            return [last - first]
        return value.find_shape(placement)
