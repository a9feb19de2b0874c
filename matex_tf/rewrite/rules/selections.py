"""Rules for selections by indices or masks: gathers, `tf.where`, one-hot vectors.

Indices may be numbers of rows of the script's batch. If rank 1 has rows 3 and 4, its row 0 is the script's row 3: a
rule adds or subtracts the index of the rank's first row.
"""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import WHOLE, Rows, Sharded
from matex_tf.rewrite.rules.registry import register_rule


def _make_offset(copy: Any, own_rows: Any, length: int) -> Any:
    """The index in the script's tensor of the first row of `own_rows`, this rank's slice: a vector (index, 0, ...)."""
    return tf.pad(tf.reshape(copy.find_first(tf.shape(own_rows)[0]), [1]), [[0, length - 1]])


@register_rule("GatherV2 Gather", moves=0)
def gather(node: Node) -> Decision:
    table, indices = node.get_placement(0), node.get_placement(1)
    axis = batch_axes = 0
    if node.type == "GatherV2":
        axis, batch_axes = node.read_axes(2, node.count_axes(0))[0], node.read_attribute("batch_dims")
        batch_axes += node.count_axes(1) if batch_axes < 0 else 0
    if axis == batch_axes == 0 and _number_own_rows(node, 1):
        return _take_own(node, tf.gather)
    # Table and indices have their first axes in common, among them the axis of the rows.
    if batch_axes:
        placement = table.plain if isinstance(table, Sharded) else node.require_rows(1).plain
        require(placement.axis < batch_axes)
        return node.decide([node.bring_rows(0, placement), node.bring_rows(1, placement)], placement)
    # Each rank selects from the whole table by its own indices.
    if isinstance(indices, Sharded):
        return node.decide([WHOLE, None], Sharded(axis + indices.axis, indices.rows))
    # Only the table has rows, along an axis from which the op does not select.
    table = node.require_rows()
    require(table.axis != axis)
    new_axis = table.axis if table.axis < axis else table.axis - 1 + node.count_axes(1)
    return node.decide([None], Sharded(new_axis, table.rows))


def _number_own_rows(node: Node, axis_count: int) -> bool:
    """Whether the indices, which have `axis_count` axes, number entries of the table that the rank has itself."""
    table, indices = node.get_placement(0), node.get_placement(1)
    if not isinstance(table, Sharded) or not isinstance(indices, Sharded):
        return False
    # Two unknown numbers of entries (`Rows.unit`) may differ.
    is_own = table.axis == 0 and table.rows == indices.index_rows and table.rows.unit is not None
    return is_own and node.count_axes(1) == axis_count


def _take_own(node: Node, take: Any) -> Decision:
    """Select entries of a table with rows by indices of the rank's own rows: all its rows, or rows that a mask selects.

    take: `tf.gather`, or `tf.gather_nd` if an index is a vector of coordinates.
    """
    coordinates = require_known(1 if take is tf.gather else node.read_shape(1)[-1])

    def emit(copy: Any, own_rows: Any, chosen_indices: Any, *_: Any) -> list[Any]:
        return [
            take(own_rows, chosen_indices - tf.cast(_make_offset(copy, own_rows, coordinates), chosen_indices.dtype))
        ]

    return node.decide([None, None], Sharded(0, node.require_rows(1).rows), emit=emit)


@register_rule("GatherNd", moves=0)
def gather_nd(node: Node) -> Decision:
    indices = node.require_rows(1)
    require(not node.read_attribute("batch_dims", 0) and indices.axis < node.count_axes(1) - 1)  # last: coordinates
    if _number_own_rows(node, 2):
        return _take_own(node, tf.gather_nd)
    return node.decide([WHOLE, None], Sharded(indices.axis, indices.rows))


@register_rule("Where")
def where(node: Node) -> Decision:
    """The indices of true entries, for each axis: along the axis of the rows, indices into the script's tensor."""
    placement, axis_count = node.require_rows(), node.count_axes(0)
    require(placement.axis == 0 and placement.rows.is_contiguous)

    def emit(copy: Any, mask: Any) -> list[Any]:
        return [tf.where(mask) + _make_offset(copy, mask, axis_count)]

    chosen_rows = Rows(placement.rows.blocks, ("chosen", node.inputs[0].key))  # the rows that this mask selects
    return node.decide([None], Sharded(0, chosen_rows, placement.rows), emit=emit)


@register_rule("OneHot")
def one_hot(node: Node) -> Decision:
    placement = node.require_rows()
    axis_count = node.count_axes(0)
    axis = node.read_attribute("axis")
    axis += axis_count + 1 if axis < 0 else 0
    # The new axis may be before the axis of the rows.
    return node.decide([None], Sharded(placement.axis + (axis <= placement.axis), placement.rows))
