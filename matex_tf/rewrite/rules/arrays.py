"""Rules for ops that join, split and move tensors along their axes.

Two batches of n rows, concatenated along the rows, have 2n entries in two blocks. A rank has its rows of each block, so
rank 0 of 2 does not have the first half of the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import WHOLE, Placement, Rows, Sharded, Size, Zeros
from matex_tf.rewrite.rules.registry import keep_sum, register_rule


def _match_rows(node: Node, indexes: Sequence[int]) -> tuple[list[Placement | None], Sharded]:
    """The placements that give all of these inputs the rows of the first sharded input."""
    placement = node.find_input_with_rows(indexes)[1].plain
    return [node.bring_rows(index, placement) for index in indexes], placement


@register_rule("Pack", moves=slice(None))
def pack(node: Node) -> Decision:
    needs, placement = _match_rows(node, range(len(node.inputs)))
    axis = node.read_attribute("axis") % (node.count_axes(0) + 1)
    # The new axis moves the axis of the rows up by one if it comes before, and `unpack` moves it back.
    return node.decide(needs, Sharded(placement.axis + (axis <= placement.axis), placement.rows))


@register_rule("Unpack", moves=0)
def unpack(node: Node) -> Decision:
    placement = node.require_rows()
    axis = node.read_attribute("axis") % node.count_axes(0)
    require(axis != placement.axis)
    return node.decide([None], Sharded(placement.axis - (axis < placement.axis), placement.rows))


@register_rule("ConcatV2", moves=slice(0, -1))
def concatenate(node: Node) -> Decision:
    part_count = len(node.inputs) - 1
    axis = node.read_axes(part_count, node.count_axes(0))[0]
    parts = [part for part in node.placements[:-1] if isinstance(part, Sharded) and part.axis == axis]
    if len(parts) == part_count:
        # Concatenation along the rows, one batch after the other: a rank has its rows of each. It finds the blocks in
        # its tensor by their numbers of entries for each row. Rows that masks select have no such number.
        require(all(part.rows.chosen is None for part in parts))
        blocks = tuple(block for part in parts for block in part.rows.blocks)
        require(len(blocks) == 1 or None not in blocks)
        return node.decide([None] * part_count, Sharded(axis, Rows(blocks)))
    needs, placement = _match_rows(node, range(part_count))
    require(placement.axis != axis)
    return node.decide(needs, placement)


@register_rule("Split", moves=1)
@register_rule("SplitV", moves=0)
def split(node: Node) -> Decision:
    data_input, axis_input = (1, 0) if node.type == "Split" else (0, 2)
    placement, count = node.require_rows(data_input), len(node.outputs)
    needs = [WHOLE, None] if node.type == "Split" else [None]
    if placement.axis not in node.read_axes(axis_input, node.count_axes(data_input)):
        return node.decide(needs, placement.plain)
    # The op splits along the axis of the rows: entries of concatenated batches, at the borders of blocks.
    unit = require_known(placement.rows.unit)
    require(node.type == "Split" and unit % count == 0)
    bounds = [unit // count * index for index in range(count + 1)]
    rows_of_parts = [take_blocks(placement.rows, begin, end) for begin, end in itertools.pairwise(bounds)]
    return node.decide(needs, *(Sharded(placement.axis, rows) for rows in rows_of_parts))


def take_blocks(rows: Rows, begin: int, end: int | None) -> Rows:
    """The blocks of `rows` between borders, in entries for each row: of the blocks (2, 1, 3), 2 and 6 give (1, 3)."""
    require(rows.unit is not None)
    bounds = [sum(block for block in rows.blocks[:index] if block) for index in range(len(rows.blocks) + 1)]
    end = bounds[-1] if end is None else min(end, bounds[-1])
    require(begin in bounds and end in bounds and begin < end)
    return Rows(rows.blocks[bounds.index(begin) : bounds.index(end)])


def scale_blocks(rows: Rows, factor: Fraction) -> Rows:
    """The rows of an axis with `factor` (3 or 1/3) times as many entries. Raises NoRuleError for a part of an entry."""
    if factor == 1:
        return rows
    blocks = [block * factor for block in rows.blocks if block is not None]
    require(rows.unit is not None and all(block.denominator == 1 for block in blocks))
    return Rows(tuple(map(int, blocks)))


@register_rule("PadV2")
def pad_with(node: Node) -> Decision:
    is_linear = not isinstance(node.get_placement(0), Sharded) and isinstance(node.get_placement(2), Zeros)
    return keep_sum(node) if is_linear else pad(node)


@register_rule("Pad MirrorPad", moves=0)
def pad(node: Node) -> Decision:
    placement = node.require_rows()
    require(not node.read_constant(1)[placement.axis].any())
    return node.decide([None], placement.plain)


@register_rule("ReverseSequence", linear=0)
def reverse_sequence(node: Node) -> Decision:
    """Input 0 has the sequences, along the axis `batch_dim`; input 1, a vector, has their lengths."""
    axis, (_, sharded) = node.read_attribute("batch_dim"), node.find_input_with_rows((0, 1))
    require(sharded.axis == axis or not isinstance(node.get_placement(0), Sharded))
    placement = Sharded(axis, sharded.rows)
    return node.decide([node.bring_rows(0, placement), node.bring_rows(1, Sharded(0, sharded.rows))], placement)


@register_rule("SpaceToBatchND", linear=0)
def space_to_batch(node: Node) -> Decision:
    """The result is several copies of the batch, concatenated: each copy has other pixels of every image."""
    placement = node.require_rows()
    require(placement.axis == 0 and placement.rows.unit is not None and placement.rows.is_contiguous)
    copies = int(node.read_constant(1).prod())
    return node.decide([None], Sharded(0, Rows(placement.rows.blocks * copies)))


@register_rule("BatchToSpaceND", linear=0)
def batch_to_space(node: Node) -> Decision:
    """The inverse of `space_to_batch`."""
    placement = node.require_rows()
    copies, blocks = int(node.read_constant(1).prod()), placement.rows.blocks
    require(placement.axis == 0 and placement.rows.unit is not None)
    require(len(blocks) == copies and len(set(blocks)) == 1)
    return node.decide([None], Sharded(0, Rows(blocks[:1])))


def read_unit(size: Size) -> int:
    """The number of entries for each row of the batch that a size counts; 0 for the size 0. Else raises NoRuleError."""
    return 0 if size == Size(None, 0) else require_known(None if size.rows is None else size.rows.unit)
