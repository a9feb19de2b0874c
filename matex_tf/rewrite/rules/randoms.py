"""Random numbers: those of the script. What has the rows of the batch is the slice of what the script draws for them."""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import SIZES, WHOLE, Rows, shard
from matex_tf.rewrite.rules.registry import register
from matex_tf.rewrite.rules.shapes import find_rows, with_copy

_LANES = {"float32": 4, "float64": 2}
"""Numbers of one value of Philox' counter, of the draws whose numbers follow one another in their order."""


@register("StatelessRandomUniformV2 StatelessRandomNormalV2")
def draw_by_counter(node: Node) -> Decision:
    """A counter that is moved on by what other ranks draw: the same bits, and nothing is drawn twice."""
    found = _find_rows(node)
    lanes = _LANES.get(node.op.outputs[0].dtype.name)
    if found is None or lanes is None or found[0] or len(found[1].blocks) != 1:
        return draw_all(node)
    axis, rows = found

    def emit(copy: Any, sizes: Any, key: Any, counter: Any, algorithm: Any) -> list[Any]:
        import tensorflow as tf

        sizes = tf.cast(sizes, tf.int64)
        before = copy.find_first(rows, sizes[0]) * tf.reduce_prod(sizes[1:])
        skipped = before % lanes
        moved = tf.tensor_scatter_nd_add(counter, [[0]], [tf.cast(before // lanes, counter.dtype)])
        flat = copy.create_op(
            node, [tf.reshape(tf.reduce_prod(sizes) + skipped, [1]), key, moved, algorithm], Tshape=tf.int64
        )[0]
        return [tf.reshape(flat[skipped:], sizes)]

    return node.decide([None, WHOLE, WHOLE, WHOLE], shard(axis, rows), emit=with_copy(emit))


@register("""RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt StatelessRandomUniform StatelessRandomNormal
    StatelessTruncatedNormal StatelessRandomUniformInt StatelessTruncatedNormalV2 StatelessRandomUniformIntV2
    StatelessRandomUniformFullIntV2""")
def draw_all(node: Node) -> Decision:
    """Every rank draws for all rows and takes its own."""
    found = _find_rows(node)
    if found is None:
        return node.decide_whole()
    rest = [WHOLE] * (len(node.inputs) - 1)
    one = shard(*found)

    def emit(copy: Any, sizes: Any, *others: Any) -> list[Any]:
        whole = copy.create_op(node, [copy.make_sizes_whole(sizes, node.at(0)), *others])[0]
        return [copy.slice_rows(whole, one)]

    return node.decide([None, *rest], one, emit=with_copy(emit))


def _find_rows(node: Node) -> tuple[int, Rows] | None:
    if node.at(0).kind != SIZES:
        return None
    found = find_rows(node.read_sizes(0))
    if found is not None and (found[1].chosen is not None or None in found[1].blocks):
        raise NoRuleError
    return found
