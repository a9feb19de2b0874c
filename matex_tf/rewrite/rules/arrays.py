"""Rules for ops that join, split and move tensors along their axes."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import WHOLE, Placement, Rows, Size, shard
from matex_tf.rewrite.rules.registry import keep_sum, register_rule


def _match_rows(node: Node, indexes: Sequence[int]) -> tuple[list[Placement | None], Placement]:
    """The placements that give all of these inputs the rows of the first sharded input."""
    first = next(node.get_placement(index) for index in indexes if node.get_placement(index).is_sharded)
    placement = shard(*first.layout)
    return [node.bring_rows(index, placement) for index in indexes], placement


@register_rule("Pack", moves=slice(None))
def pack(node: Node) -> Decision:
    if not node.has_rows:
        raise NoRuleError
    needs, placement = _match_rows(node, range(len(node.inputs)))
    axis = node.read_attribute("axis") % (node.count_axes(0) + 1)
    return node.decide(needs, placement._replace(axis=placement.axis + (axis <= placement.axis)))


@register_rule("Unpack", moves=0)
def unpack(node: Node) -> Decision:
    placement, count = node.require_rows(), len(node.op.outputs)
    axis = node.read_attribute("axis") % node.count_axes(0)
    if axis == placement.axis:
        raise NoRuleError
    return Decision([None], [shard(placement.axis - (axis < placement.axis), placement.rows)] * count)


@register_rule("ConcatV2", moves=slice(0, -1))
def concatenate(node: Node) -> Decision:
    parts = range(len(node.inputs) - 1)
    if not any(node.get_placement(index).is_sharded for index in parts):
        raise NoRuleError
    axis = node.read_axes(len(parts), node.count_axes(0))[0]
    if all(node.get_placement(index).is_sharded and node.get_placement(index).axis == axis for index in parts):
        # Concatenation along the rows, one batch after the other: a rank has its rows of each.
        if any(node.get_placement(index).rows.chosen is not None for index in parts):
            raise NoRuleError
        blocks = tuple(block for index in parts for block in node.get_placement(index).rows.blocks)
        if len(blocks) > 1 and None in blocks:
            raise NoRuleError
        return node.decide([*[None] * len(parts), WHOLE], shard(axis, Rows(blocks)))
    needs, placement = _match_rows(node, parts)
    if placement.axis == axis:
        raise NoRuleError
    return node.decide([*needs, WHOLE], placement)


@register_rule("Split", moves=1)
@register_rule("SplitV", moves=0)
def split(node: Node) -> Decision:
    data, at = (1, 0) if node.type == "Split" else (0, 2)
    placement, count = node.require_rows(data), len(node.op.outputs)
    needs: list[Placement | None] = [WHOLE] * len(node.inputs)
    needs[data] = None
    if placement.axis not in node.read_axes(at, node.count_axes(data)):
        return Decision(needs, [shard(*placement.layout)] * count)
    unit = placement.rows.unit
    if node.type == "SplitV" or unit is None or unit % count:
        raise NoRuleError
    each = unit // count  # splits concatenated batches
    return Decision(needs, [shard(placement.axis, take_blocks(placement.rows, part * each, (part + 1) * each))
                            for part in range(count)])  # fmt: skip


def take_blocks(rows: Rows, begin: int, end: int | None) -> Rows:
    """The rows of the entries from `begin` to `end`; both count entries for each row of the batch."""
    if rows.unit is None:
        raise NoRuleError
    bounds = [sum(block for block in rows.blocks[:index] if block) for index in range(len(rows.blocks) + 1)]
    end = bounds[-1] if end is None else min(end, bounds[-1])
    if begin not in bounds or end not in bounds or end <= begin:
        raise NoRuleError
    return Rows(rows.blocks[bounds.index(begin) : bounds.index(end)])


@register_rule("PadV2")
def pad_with(node: Node) -> Decision:
    is_linear = not node.get_placement(0).is_sharded and node.get_placement(2).is_zero
    return keep_sum(node) if is_linear else pad(node)


@register_rule("Pad MirrorPad", moves=0)
def pad(node: Node) -> Decision:
    placement, rest = node.require_rows(), [WHOLE] * (len(node.inputs) - 1)
    if node.read_constant(1)[placement.axis].any():
        raise NoRuleError
    return node.decide([None, *rest], shard(*placement.layout))


@register_rule("ReverseSequence", linear=0)
def reverse_sequence(node: Node) -> Decision:
    axis = node.read_attribute("batch_dim")
    first = next((placement for placement in node.placements if placement.is_sharded), None)
    if first is None or (node.get_placement(0).is_sharded and first.axis != axis):
        raise NoRuleError
    placement = shard(axis, first.rows)
    return node.decide([node.bring_rows(0, placement), node.bring_rows(1, shard(0, first.rows))], placement)


@register_rule("SpaceToBatchND", linear=0)
def space_to_batch(node: Node) -> Decision:
    """Several copies of the batch, concatenated: each image has its part in every copy."""
    placement = node.require_rows()
    if placement.axis or placement.rows.unit is None or len(placement.rows.blocks) > 1:
        raise NoRuleError
    return node.decide([None, WHOLE, WHOLE], shard(0, Rows((placement.rows.unit,) * int(node.read_constant(1).prod()))))


@register_rule("BatchToSpaceND", linear=0)
def batch_to_space(node: Node) -> Decision:
    placement = node.require_rows()
    count, blocks = int(node.read_constant(1).prod()), placement.rows.blocks
    if placement.axis or placement.rows.unit is None or len(blocks) != count or len(set(blocks)) > 1:
        raise NoRuleError
    return node.decide([None, WHOLE, WHOLE], shard(0, Rows(blocks[:1])))


def count_rows(size: Size) -> int | None:
    """The number of entries for each row of the batch that a number stands for; None if it is unknown."""
    if size.rows is None:
        return 0 if size.value == 0 else None
    return size.rows.unit
