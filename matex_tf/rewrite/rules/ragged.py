"""Rules for ragged rows: the words of texts, dense rows made of them, and sequences of labels."""

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
    placement = node.require_rows()
    if node.count_axes(0) != 1 or placement.rows.chosen is not None or len(placement.rows.blocks) != 1:
        raise NoRuleError
    rows = placement.rows
    chosen = Rows(rows.blocks, ("parts", node.inputs[0].key))

    def emit(copy: Any, texts: Any, separator: Any) -> list[Any]:
        indices, parts, shape = copy.create_op(node, [texts, separator])
        count = tf.shape(texts, tf.int64)[0]
        first = copy.find_first(rows, count)
        total = count // copy.batch_slice.count * copy.batch_slice.total
        return [indices + tf.stack([first, tf.zeros_like(first)]), parts, tf.stack([total, shape[1]])]

    numbered = shard(0, chosen)._replace(numbers=rows)
    largest = Placement(PARTIAL, reduction="max", sizes=(Size(rows), Size()))
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


@register_rule("CTCLoss CTCLossV2")
def align_labels(node: Node) -> Decision:
    """The loss of each row, and its gradient. The labels are entries of a sparse matrix that begin with their rows.

    Where all ranks have all labels, a rank keeps those of its rows. It also keeps those of rows that are not there, and
    all labels if they are out of order, so that the op raises an error as it does alone.
    """
    logits, indices, values, lengths = node.placements
    found = logits if logits.is_sharded else lengths
    if not found.is_sharded or found.axis != (1 if logits.is_sharded else 0):
        raise NoRuleError
    rows = found.rows
    if rows.chosen is not None or len(rows.blocks) != 1:
        raise NoRuleError
    are_here = indices.is_sharded and indices.numbers == rows and values.has_layout(indices)

    def emit(copy: Any, logits: Any, indices: Any, values: Any, lengths: Any) -> list[Any]:
        count = tf.shape(logits, tf.int64)[1]
        first = copy.find_first(rows, count)
        if not are_here:
            total = count // copy.batch_slice.count * copy.batch_slice.total
            row = indices[:, 0]
            is_elsewhere = ((row >= 0) & (row < first)) | ((row >= first + count) & (row < total))
            stays = ~is_elsewhere | tf.reduce_any(row[1:] < row[:-1])
            indices, values = tf.boolean_mask(indices, stays), tf.boolean_mask(values, stays)
        indices -= tf.stack([first, tf.zeros_like(first)])
        return list(copy.create_op(node, [logits, indices, values, lengths]))

    need = None if are_here else WHOLE
    needs = [node.bring_rows(0, shard(1, rows)), need, need, node.bring_rows(3, shard(0, rows))]
    return node.decide(needs, shard(0, rows), shard(1, rows), emit=mark_taker(emit))
