"""Rules for slices such as `x[a:b]`: a slice may take all rows, or blocks of them, but no part of a block.

Of two concatenated batches of n rows, `x[:n]` is the first block, of which each rank has its rows. Begin and end may
count rows: n is 5 in the script, and 3 on a rank with 3 rows. `x[:10]` takes rows that some ranks do not have, so no
rule applies.
"""

from __future__ import annotations

import dataclasses

from matex_tf.rewrite.nodes import Decision, Node, NoRuleError, require, require_known
from matex_tf.rewrite.placement import WHOLE, PartialShape, Placement, Rows, Sharded, Size, Sizes
from matex_tf.rewrite.rules.arrays import read_unit, take_blocks
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need, find_rows, read_along, replace_size

_BEGIN, _END, _STRIDE = 1, 2, 3
"""The inputs of `StridedSlice` and `StridedSliceGrad` that name entries."""


@register_rule("StridedSlice", moves=0)
def slice_with_strides(node: Node) -> Decision:
    if isinstance(node.get_placement(0), PartialShape):
        return _take_size(node, node.require_kind(0, PartialShape).sizes)
    placement = node.require_rows()
    result, needs = _place_slice(node, placement, node.count_axes(0), node.read_length(0))
    # In a matrix from `tf.where(mask)`, column 0 has indices of rows of the script's tensor: `index_rows` is set. It
    # stays set for the slice `[:, 0]`, which takes all entries of axis 0 and entry 0 of axis 1.
    if placement.index_rows is not None and node.count_axes(0) == 2 and _list_entries(node) == (None, 0):
        result = dataclasses.replace(result, index_rows=placement.index_rows)
    return node.decide([None, *needs], result)


def _read_masks(node: Node) -> dict[str, int]:
    """The masks of a slice with strides, by name. Bit i of a mask is about the i-th entry of begin, end and stride."""
    names = ("begin", "end", "shrink_axis", "ellipsis", "new_axis")
    return {name: node.read_attribute(f"{name}_mask") for name in names}


def _list_entries(node: Node) -> tuple[int | None, ...]:
    """For each named axis, what a slice takes of it: the index of one entry; None: all entries; -1: other entries.

    Callers refuse -1, which may also be the index of the last entry. Empty if the slice has an ellipsis or a new axis.
    """
    begin, stride = node.read_constant(_BEGIN).tolist(), node.read_constant(_STRIDE).tolist()
    masks = _read_masks(node)
    if masks["ellipsis"] or masks["new_axis"]:
        return ()
    entries: list[int | None] = []
    for index, step in enumerate(stride):
        takes_all = step == 1 and (masks["begin"] & masks["end"]) >> index & 1
        if masks["shrink_axis"] >> index & 1:
            entries.append(begin[index])
        else:
            entries.append(None if takes_all else -1)
    return tuple(entries)


def _take_size(node: Node, sizes: tuple[Size, ...]) -> Decision:
    """Take the number of rows from a shape whose other entries are maxima over the ranks, a partial tensor.

    `StringSplitV2` returns such a shape: the number of texts, and the largest number of words of a text. A rank knows
    its own number of texts, so the shape need not be exchanged for `shape[0]`.
    """
    indices = [index for index in _list_entries(node) if index is not None]
    require(len(indices) == 1 and 0 <= indices[0] < len(sizes))
    require_known(require_known(sizes[indices[0]].rows).unit)  # so the number follows from the rank's slice (`tensors`)
    return node.decide([None], Sizes((sizes[indices[0]],)))


def _place_slice(
    node: Node, placement: Sharded, axis_count: int, length: int | None
) -> tuple[Sharded, list[Placement | None]]:
    """The placement of the result of a slice, and the placements that its begin, end and stride need.

    placement: the placement of the sliced tensor, which has `axis_count` axes.
    length: the length of the axis with the rows, if it is constant.
    """
    masks = _read_masks(node)
    entry_count = require_known(node.read_shape(_BEGIN)[0])
    named_axes = entry_count - (masks["new_axis"] | masks["ellipsis"]).bit_count()
    result_axis = axis = 0  # the next axes of the result and of the sliced tensor
    result: Sharded | None = None
    needs: list[Placement | None] = [  # of inputs 1 to 3
        None if isinstance(node.get_placement(input_number), Sizes) else WHOLE
        for input_number in (_BEGIN, _END, _STRIDE)
    ]
    # Each entry of begin, end and stride is for one axis, for a new axis, or for "...": all axes without an entry.
    for index in range(entry_count):
        entry_masks = {name for name, mask in masks.items() if mask >> index & 1}
        if "ellipsis" in entry_masks:  # takes all entries of the axes that it stands for
            skipped_axes = axis_count - named_axes
            if axis <= placement.axis < axis + skipped_axes:
                result = Sharded(result_axis + placement.axis - axis, placement.rows)
            result_axis, axis = result_axis + skipped_axes, axis + skipped_axes
            continue
        if "new_axis" in entry_masks:
            result_axis += 1
            continue
        takes_one = "shrink_axis" in entry_masks  # the entry at `begin`; then the result does not have the axis
        # A bit of the masks "begin" and "end" means that the slice has no such bound along the axis.
        bounding_inputs = [
            input_number for input_number, name in ((_BEGIN, "begin"), (_END, "end")) if name not in entry_masks
        ]
        if axis == placement.axis:  # the axis of the rows: the slice must take whole blocks, with stride 1
            require(not takes_one and node.read_sizes(_STRIDE)[index] == Size(None, 1))
            bounds: dict[int, Size] = {}
            for input_number in bounding_inputs:
                sizes = read_along(node, input_number, index, placement, length)
                bounds[input_number], needs[input_number - 1] = sizes[index], find_need(node, input_number, sizes)
            result = Sharded(result_axis, _slice_blocks(placement.rows, bounds.get(_BEGIN), bounds.get(_END)))
        else:  # another axis: its bounds must not count rows, of which a rank has another number than the script
            for input_number in bounding_inputs:
                # A slice that takes one entry does not read its end.
                placement_of_bound, is_read = node.get_placement(input_number), input_number == _BEGIN or not takes_one
                if is_read and isinstance(placement_of_bound, Sizes):
                    require(placement_of_bound.sizes[index].rows is None)
        result_axis, axis = result_axis + (not takes_one), axis + 1
    if result is None:  # the slice names fewer axes, and not the axis of the rows
        result = Sharded(result_axis + placement.axis - axis, placement.rows)
    return result, needs


@register_rule("StridedSliceGrad", linear=4)
def slice_backward(node: Node) -> Decision:
    """The gradient of a slice, padded with zeros to the shape of the sliced tensor, which is input 0.

    Input 4 is the gradient of the result. The rule tries each axis along which the sliced tensor may have its rows. The
    slice of the right axis has the placement of the gradient.
    """
    gradient, length = node.require_rows(4), node.read_length(4)
    sizes = node.read_sizes(0)
    counted_placement = find_rows(sizes)
    if counted_placement:  # a number of the shape counts rows: the length of the axis is not constant
        candidates, length = [counted_placement], None
    else:  # a constant shape: the slice takes all rows, so the axis is as long as the gradient's axis of rows
        axes = [axis for axis, size in enumerate(sizes) if length is not None and size.value == length]
        candidates = [Sharded(axis, gradient.rows) for axis in axes]
    for source_placement in candidates:
        result_placement, needs = _place_slice(node, source_placement, len(sizes), length)
        if result_placement.has_layout(gradient):
            # A rank pads to its own number of rows.
            need = find_need(node, 0, replace_size(sizes, source_placement.axis, source_placement.rows))
            return node.decide([need, *needs, None], source_placement)
    raise NoRuleError


def _slice_blocks(rows: Rows, begin: Size | None, end: Size | None) -> Rows:
    """The rows from `begin` to `end`; None: from the first, or to the last."""
    begin = begin or Size(None, 0)
    is_to_last = end is None or _is_length(end, rows)
    if begin == Size(None, 0) and is_to_last:
        return rows
    return take_blocks(rows, read_unit(begin), None if end is None or is_to_last else read_unit(end))


def _is_length(size: Size, rows: Rows) -> bool:
    """Whether a size certainly is the length of an axis with these rows. Two unknown numbers of entries may differ."""
    return size.rows == rows and None not in rows.blocks


@register_rule("Slice", moves=0)
def slice_by_sizes(node: Node) -> Decision:
    placement = node.require_rows()
    begins, counts = (read_along(node, index, placement.axis, placement, node.read_length(0)) for index in (1, 2))
    other_sizes = [size for sizes in (begins, counts) for axis, size in enumerate(sizes) if axis != placement.axis]
    require(all(size.rows is None for size in other_sizes))
    begin, count = begins[placement.axis], counts[placement.axis]
    rows, takes_rest = placement.rows, count == Size(None, -1)  # -1: up to the end of the axis
    if begin != Size(None, 0) or not (takes_rest or _is_length(count, rows)):
        first_entry = read_unit(begin)
        rows = take_blocks(rows, first_entry, None if takes_rest else first_entry + read_unit(count))
    return node.decide([None, find_need(node, 1, begins), find_need(node, 2, counts)], Sharded(placement.axis, rows))
