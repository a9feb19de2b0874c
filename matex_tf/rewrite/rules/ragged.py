"""Rules for ragged rows: the words of texts, dense rows made of them, and sequences of labels.

Entries of ragged rows come with the numbers of their rows, a tensor whose placement has `index_rows`. A rule converts
these numbers between the script's tensor and a rank's: if rank 1 has texts 3 and 4, its text 0 is the script's text 3.
"""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import WHOLE, PartialShape, Rows, Sharded, Size, Sizes
from matex_tf.rewrite.rules.registry import register_rule


def _shift_rows(indices: Any, distance: Any) -> Any:
    """The indices of entries in a ragged matrix, (row, column) pairs, with each row number increased by `distance`."""
    return indices + tf.stack([distance, tf.zeros_like(distance)])


@register_rule("StringSplitV2")
def split_texts(node: Node) -> Decision:
    """Split a rank's texts; the words are numbered by the script's texts.

    The op also returns a shape: the number of texts, which each rank knows, and the largest number of words of a text.
    So the script's shape is the maximum of the ranks' shapes.
    """
    rows = node.require_rows().rows
    require(node.count_axes(0) == 1 and rows.is_contiguous)
    # As with rows that a mask selects, the number of a rank's words depends on the data. So `Rows.chosen` is set, to a
    # name of the split: tensors with the same name have the same words.
    words = Rows(rows.blocks, ("parts", node.inputs[0].key))

    def emit(copy: Any, texts: Any, separator: Any) -> list[Any]:
        indices, words, shape = copy.create_op(node, [texts, separator])
        count = tf.shape(texts, tf.int64)[0]
        return [_shift_rows(indices, copy.find_first(count)), words, tf.stack([copy.find_total(count), shape[1]])]

    # Of its two numbers, the first counts rows, and the second is the same whatever the rows are (`Size()`).
    shape_placement = PartialShape("max", sizes=(Size(rows), Size()))
    return node.decide([None], Sharded(0, words, rows), Sharded(0, words), shape_placement, emit=emit)


@register_rule("RaggedTensorToTensor")
def make_dense(node: Node) -> Decision:
    """Rows of a fixed length, from values that are numbered by their rows.

    Inputs: the shape of the result, the values, the default, the number of rows, and the number of each value's row.
    """
    require(list(node.read_attribute("row_partition_types")) == [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"])
    values, numbers = node.require_rows(1), node.require_rows(4)
    rows = require_known(numbers.index_rows)
    # A fixed number of rows would be that of the batch. Without a fixed length, rows would be as long as the longest
    # one of the rank. A shape that is a scalar (-1, unknown) has no lengths.
    row_count, *lengths = node.read_constant(0).reshape(-1).tolist()
    require(row_count == -1 and bool(lengths) and -1 not in lengths)
    require(values.has_layout(numbers))
    require(node.require_kind(3, Sizes).sizes == (Size(rows),))  # a rank has its own number of rows

    def emit(copy: Any, shape: Any, entries: Any, default: Any, count: Any, row_numbers: Any) -> list[Any]:
        row_numbers -= tf.cast(copy.find_first(count), row_numbers.dtype)
        return list(copy.create_op(node, [shape, entries, default, count, row_numbers]))

    return node.decide([WHOLE, None, WHOLE, None, None], Sharded(0, rows), emit=emit)


@register_rule("CTCLoss CTCLossV2")
def align_labels(node: Node) -> Decision:
    """The loss of each row, and its gradient. The logits are (time, row, class). The labels are entries of a sparse
    matrix, with (row, column) indices.

    If the labels are whole, a rank selects the labels of its rows. It also keeps labels of rows that do not exist, and
    all labels if they are out of order, so that the op raises the same error as in the script alone.
    """
    _, indices_placement, values_placement, _ = node.placements
    input_with_rows, sharded = node.find_input_with_rows((0, 3))
    rows = sharded.rows
    require(rows.is_contiguous and sharded.axis == (1 if input_with_rows == 0 else 0))
    are_selected = (
        isinstance(indices_placement, Sharded)
        and indices_placement.index_rows == rows
        and values_placement.has_layout(indices_placement)
    )

    def emit(copy: Any, logits: Any, indices: Any, values: Any, lengths: Any) -> list[Any]:
        row_count = tf.shape(logits, tf.int64)[1]
        first_row = copy.find_first(row_count)
        if not are_selected:
            label_rows, row_total = indices[:, 0], copy.find_total(row_count)
            is_of_another = ((label_rows >= 0) & (label_rows < first_row)) | (
                (label_rows >= first_row + row_count) & (label_rows < row_total)
            )
            are_kept = ~is_of_another | tf.reduce_any(label_rows[1:] < label_rows[:-1])
            indices, values = tf.boolean_mask(indices, are_kept), tf.boolean_mask(values, are_kept)
        return list(copy.create_op(node, [logits, _shift_rows(indices, -first_row), values, lengths]))

    label_need = None if are_selected else WHOLE
    needs = [node.bring_rows(0, Sharded(1, rows)), label_need, label_need, node.bring_rows(3, Sharded(0, rows))]
    return node.decide(needs, Sharded(0, rows), Sharded(1, rows), emit=emit)
