"""Rules for ragged rows: the words of texts, and dense rows made of them."""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import PARTIAL, SIZES, WHOLE, Placement, Rows, Size, shard
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import mark_taker


@register_rule("StringSplitV2")
def split_texts(node: Node) -> Decision:
    """Split a rank's texts; the words are numbered by the script's texts.

    The shape that goes with the words is the largest of the ranks' shapes: each rank knows the number of texts.
    """
    one = node.require_rows()
    if node.count_axes(0) != 1 or one.rows.chosen is not None or len(one.rows.blocks) != 1:
        raise NoRuleError
    rows = one.rows
    chosen = Rows(rows.blocks, ("parts", node.inputs[0].key))

    def emit(copy: Any, texts: Any, separator: Any) -> list[Any]:
        indices, parts, shape = copy.create_op(node, [texts, separator])
        count = tf.shape(texts, tf.int64)[0]
        first = copy.find_first(rows, count)
        total = count // copy.share.count * copy.share.total
        return [indices + tf.stack([first, tf.zeros_like(first)]), parts, tf.stack([total, shape[1]])]

    numbered = shard(0, chosen)._replace(numbers=rows)
    largest = Placement(PARTIAL, by="max", sizes=(Size(rows), Size()))
    return node.decide([None, WHOLE], numbered, shard(0, chosen), largest, emit=mark_taker(emit))


@register_rule("RaggedTensorToTensor")
def make_dense(node: Node) -> Decision:
    """Rows of a fixed length, from values that are numbered by their rows."""
    kinds = list(node.read_attribute("row_partition_types"))
    if kinds != [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]:
        raise NoRuleError
    values, numbers = node.require_rows(1), node.require_rows(4)
    rows, lengths = numbers.numbers, node.read_constant(0).reshape(-1).tolist()  # a scalar's number of rows is unknown
    if rows is None or lengths[0] != -1 or len(lengths) < 2 or -1 in lengths[1:] or not values.has_layout(numbers):
        raise NoRuleError
    if node.get_placement(3).kind != SIZES or node.read_sizes(3) != (Size(rows),):
        raise NoRuleError

    def emit(copy: Any, shape: Any, entries: Any, default: Any, count: Any, numbered: Any) -> list[Any]:
        numbered -= tf.cast(copy.find_first(rows, count), numbered.dtype)
        return list(copy.create_op(node, [shape, entries, default, count, numbered]))

    return node.decide([WHOLE, None, WHOLE, None, None], shard(0, rows), emit=mark_taker(emit))
