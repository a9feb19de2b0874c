"""Rules for random ops: a draw for the rows of the batch is the slice of the script's draw."""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import SIZES, SUM, WHOLE, Placement, Rows, Size, make_sizes, shard
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_rows, mark_taker

_LANES = {"float32": 4, "float64": 2}
"""Numbers that one value of Philox' counter gives, for ops that use these numbers in order."""


@register_rule("StatelessRandomUniformV2 StatelessRandomNormalV2")
def draw_by_counter(node: Node) -> Decision:
    """Draws of a counter-based generator: the counter skips the draws of the ranks before. Same
    bits, no double work.
    """
    taken = _read_shape(node)
    found = _find_rows(taken)
    lanes = _LANES.get(node.op.outputs[0].dtype.name)
    if found is None or lanes is None or found[0] or len(found[1].blocks) != 1:
        return draw_all(node)
    axis, rows = found

    def emit(copy: Any, sizes: Any, key: Any, counter: Any, algorithm: Any) -> list[Any]:
        def count() -> list[Any]:
            """The tensors that draws of one shape have in common."""
            wide = tf.cast(sizes, tf.int64)
            before = copy.find_first(rows, wide[0]) * tf.reduce_prod(wide[1:])
            skipped = before % lanes
            moved = tf.reshape(tf.cast(before // lanes, counter.dtype), [1])
            return [wide, tf.reshape(tf.reduce_prod(wide) + skipped, [1]), skipped, moved]

        wide, drawn, skipped, moved = copy.make_once((sizes, rows, lanes), count)
        counter = tf.tensor_scatter_nd_add(counter, [[0]], moved)
        flat = copy.create_op(node, [drawn, key, counter, algorithm], Tshape=tf.int64)[0]
        return [tf.reshape(flat[skipped:], wide)]

    return node.decide([taken, WHOLE, WHOLE, WHOLE], shard(axis, rows), emit=mark_taker(emit))


@register_rule("""RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt StatelessRandomUniform
    StatelessRandomNormal StatelessTruncatedNormal StatelessRandomUniformInt StatelessTruncatedNormalV2
    StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2""")
def draw_all(node: Node) -> Decision:
    """Other draws: every rank draws for all rows and takes its own."""
    taken = _read_shape(node)
    found = _find_rows(taken)
    if found is None:
        raise NoRuleError
    if has_no_seed(node.op):  # any numbers will do for the rows of a rank
        return node.decide([taken] + [WHOLE] * (len(node.inputs) - 1), shard(*found))
    rest = [WHOLE] * (len(node.inputs) - 1)
    placement = shard(*found)

    def emit(copy: Any, sizes: Any, *others: Any) -> list[Any]:
        whole = copy.draw(node, [copy.make_sizes_whole(sizes, taken), *others])
        return [copy.slice_rows(whole, placement)]

    return node.decide([taken, *rest], placement, emit=mark_taker(emit))


_have_seeds: dict[str, bool] = {}  # by the types of ops


def has_no_seed(op: Any) -> bool:
    """Whether the op draws other numbers in each process, and in each run of the script."""
    has_seeds = _have_seeds.get(op.type)
    if has_seeds is None:
        has_seeds = _have_seeds[op.type] = "seed2" in op.node_def.attr
    return has_seeds and not (op.get_attr("seed") or op.get_attr("seed2"))


def draw_once(node: Node) -> Decision:
    """Draws of an op without a seed from whole inputs, such as sampled candidates: one rank draws for all."""

    def emit(copy: Any, *inputs: Any) -> list[Any]:
        return [copy.keep_once(tensor) for tensor in copy.create_op(node, inputs)]

    outputs = node.op.outputs
    return Decision([WHOLE] * len(node.inputs), [SUM] * len(outputs), mark_taker(emit))


def _read_shape(node: Node) -> Placement:
    """The shape to draw. A constant shape that begins with the number of rows is taken to be a shape of the rows."""
    constant = node.inputs[0].constant
    if constant is None or not node.batch_rows or constant.ravel()[:1].tolist() != [node.batch_rows]:
        return node.get_placement(0)
    return make_sizes([Size(Rows()), *(Size(None, int(size)) for size in constant[1:])])


def _find_rows(taken: Placement) -> tuple[int, Rows] | None:
    if taken.kind != SIZES:
        return None
    found = find_rows(taken.sizes)
    if found is not None and (found[1].chosen is not None or None in found[1].blocks):
        raise NoRuleError
    return found
