"""The tensors of one program's copy: of each value in its own placement, and in the placements that ops need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite import paths
from matex_tf.rewrite.kept import Kept
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import WHOLE, Partial, Piece, Placement, Replicated, Sharded, Size, Sizes
from matex_tf.rewrite.sharing import cut_piece


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
            if value.node is not None and paths.is_constant(value.node):
                self.own[id(value)] = self._copy.create_op(value.node, [])[0]
            elif value in self._kept:
                self.own[id(value)] = self._kept.stand_in(value, self.find_shape(value, value.placement))
        return self.own[id(value)]

    def bring(self, value: Value, need: Placement | None) -> Any:
        """The tensor of a value in the placement `need`, by its path (`paths.find_path`): the value's own tensor;
        numbers of rows, which follow from the slice; the result of a collective, which has run before; or the result of
        ops on one of these, such as slicing.
        """
        path = paths.find_path(value, need)
        if path == paths.SAME or need is None:
            return self.find(value)
        if path == paths.COUNTED:  # the numbers follow from the number of rows of the batch, or of the rank's slice
            batch_slice = self._copy.batch_slice
            sizes = next(placement.sizes for placement in (value.placement, need) if isinstance(placement, Sizes))
            return self._count(value, sizes, batch_slice.total if isinstance(need, Replicated) else batch_slice.count)
        key = id(value), need if isinstance(need, (Partial, Sharded, Piece)) else WHOLE
        if key not in self.brought and path == paths.CONVERTED:
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
