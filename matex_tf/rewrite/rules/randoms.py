"""Rules for random ops. If the script draws numbers for all rows of a batch, a rank needs the numbers for its rows.

Ops that draw by a counter start at the counter of the rank's first row. Other ops with a seed draw for all rows on each
rank, and the rank takes its rows. Ops without a seed draw for the rank's rows: the script may get any numbers, too.
"""

from __future__ import annotations

import functools
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.graph_ops import find_definition
from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import SUM, Placement, Rows, Sharded, Size, Sizes
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_rows

_LANES = {"float32": 4, "float64": 2}
"""By dtype: how many numbers one value of Philox' counter gives, if the ops below use the numbers in order."""


@register_rule("StatelessRandomUniformV2 StatelessRandomNormalV2")
def draw_by_counter(node: Node) -> Decision:
    """Draws of a counter-based generator: the counter skips the numbers of the ranks before this one."""
    shape = _read_shape(node)
    placement = _place_numbers(shape)
    lanes = _LANES.get(node.op.outputs[0].dtype.name)
    # A rank's numbers must be consecutive in the script's draw: one block of rows along axis 0.
    is_consecutive = placement is not None and placement.axis == 0 and placement.rows.is_contiguous
    if placement is None or lanes is None or not is_consecutive:
        return draw_all(node)

    def emit(copy: Any, sizes: Any, key: Any, counter: Any, algorithm: Any) -> list[Any]:
        def make_common() -> list[Any]:
            """The tensors that draws of one shape share. Made for each draw, they were a third of a copy's ops."""
            wide_sizes = tf.cast(sizes, tf.int64)
            numbers_before = copy.find_first(wide_sizes[0]) * tf.reduce_prod(wide_sizes[1:])
            # With 4 lanes and 6 numbers before, the counter moves on by 1, and this rank skips 2 numbers.
            skipped_numbers = numbers_before % lanes
            counter_step = tf.reshape(tf.cast(numbers_before // lanes, counter.dtype), [1])
            drawn_shape = tf.reshape(tf.reduce_prod(wide_sizes) + skipped_numbers, [1])
            return [wide_sizes, drawn_shape, skipped_numbers, counter_step]

        wide_sizes, drawn_shape, skipped_numbers, counter_step = copy.make_once((sizes, lanes), make_common)
        counter = tf.tensor_scatter_nd_add(counter, [[0]], counter_step)
        flat_numbers = copy.create_op(node, [drawn_shape, key, counter, algorithm], Tshape=tf.int64)[0]
        return [tf.reshape(flat_numbers[skipped_numbers:], wide_sizes)]

    return node.decide([shape], placement, emit=emit)


@register_rule("""RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt StatelessRandomUniform
    StatelessRandomNormal StatelessTruncatedNormal StatelessRandomUniformInt StatelessTruncatedNormalV2
    StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2""")
def draw_all(node: Node) -> Decision:
    """Draws without such a counter: every rank draws for all rows and takes its own rows."""
    shape = _read_shape(node)
    placement = require_known(_place_numbers(shape))
    if has_no_seed(node.op):  # any numbers will do for the rows of a rank
        return node.decide([shape], placement)

    def emit(copy: Any, sizes: Any, *other_inputs: Any) -> list[Any]:
        (all_numbers,) = copy.create_op(node, [copy.make_sizes_whole(sizes, shape), *other_inputs])
        return [copy.slice_rows(all_numbers, placement)]

    return node.decide([shape], placement, emit=emit)


def has_no_seed(op: Any) -> bool:
    """Whether the op draws other numbers in each process, and in each run of the script."""
    return _has_seeds(op.type) and not (op.get_attr("seed") or op.get_attr("seed2"))


def is_seeded(op: Any) -> bool:
    """Whether the op takes its numbers from a sequence that its seed starts, each run after the numbers of the last."""
    return _has_seeds(op.type) and not has_no_seed(op)


@functools.cache
def _has_seeds(op_type: str) -> bool:
    definition = find_definition(op_type)
    return definition is not None and any(attribute.name == "seed2" for attribute in definition.attr)


def draw_once(node: Node) -> Decision:
    """Draws of an op without a seed from whole inputs, such as sampled candidates: one rank draws for all.

    The result is a partial sum: the numbers on one rank, and 0 on the others (`keep_once`).
    """

    def emit(copy: Any, *inputs: Any) -> list[Any]:
        return [copy.keep_once(tensor) for tensor in copy.create_op(node, inputs)]

    return node.decide([], SUM, emit=emit)


def _read_shape(node: Node) -> Placement:
    """The placement of the shape to draw. A constant shape that begins with the number of rows is a shape of rows."""
    constant = node.inputs[0].constant
    if constant is None or not node.batch_rows or constant.ravel()[:1].tolist() != [node.batch_rows]:
        return node.get_placement(0)
    return Sizes((Size(Rows()), *(Size(None, int(size)) for size in constant[1:])))


def _place_numbers(shape: Placement) -> Sharded | None:
    """The placement of numbers of this shape; None if they have no rows.

    Raises NoRuleError if the number of entries of a row is unknown.
    """
    placement = find_rows(shape.sizes) if isinstance(shape, Sizes) else None
    require(placement is None or placement.rows.unit is not None)
    return placement
