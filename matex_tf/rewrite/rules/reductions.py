"""Rules for reductions. A reduction over the rows gives each rank a partial result: a partial sum, maximum or minimum.

With 2 ranks and 5 rows, `tf.reduce_sum(x, 0)` is the sum of rows 0-2 on rank 0, and the sum of rows 3-4 on rank 1. A
reduction along other axes computes each row by itself, and keeps the rows.
"""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Expansion, Node, NoRuleError, require, require_known
from matex_tf.rewrite.placement import HALF, SUM, WHOLE, Partial, Placement, Sharded, Sizes, multiply_sizes
from matex_tf.rewrite.rules.registry import keep_sum, register_rule

_REDUCTIONS = {"Max": "max", "Min": "min", "All": "min", "Any": "max"}
"""The reductions that a collective can combine, and the collective. All is the minimum of booleans, Any the maximum."""
_COMPARABLE = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")
"""The dtypes whose maximum and minimum a collective can compute."""


def _keep_rows(node: Node) -> Sharded | None:
    """The placement of the result of a reduction that keeps the rows of its input; None if it reduces the rows."""
    placement, named_axes = node.require_rows(), node.read_named_axes(1, node.count_axes(0))
    is_reduced, named_before = named_axes[placement.axis], named_axes[: placement.axis]  # None: unknown
    if is_reduced:
        return None
    keeps_axes = node.read_attribute("keep_dims", False)
    # If reduced axes are dropped, the new number of the axis of the rows depends on how many before it are reduced.
    require(is_reduced is not None and (keeps_axes or None not in named_before))
    return Sharded(placement.axis if keeps_axes else placement.axis - named_before.count(True), placement.rows)


def _find_shape(node: Node) -> list[int | None] | None:
    """The shape of the result of a reduction, as far as it is known; None if it is unknown which axes are reduced."""
    try:
        shape = node.read_shape(0)
        named_axes = node.read_named_axes(1, len(shape))
    except NoRuleError:
        return None
    keeps_axes = node.read_attribute("keep_dims", False)
    known_sizes = [1 if is_named else size for size, is_named in zip(shape, named_axes) if keeps_axes or not is_named]
    return None if None in named_axes else known_sizes


@register_rule("Sum")
def add_up(node: Node) -> Decision:
    if isinstance(node.get_placement(0), Sharded):
        return node.decide([None], _keep_rows(node) or SUM, shapes=[_find_shape(node)])
    return keep_sum(node)._replace(shapes=[_find_shape(node)])


@register_rule("Mean EuclideanNorm")
def reduce_by_formula(node: Node) -> Decision | Expansion:
    """A mean over the rows is the sum divided by the number of all rows; a norm is the root of the sum of squares."""
    is_mean, dtype = node.type == "Mean", node.inputs[0].dtype
    is_integer = not (dtype.is_floating or dtype.is_complex)
    if not node.has_rows:  # a mean of integers is rounded, so it is not linear
        return keep_sum(node) if is_mean and not is_integer else node.decide_whole()
    row_placement = _keep_rows(node)
    if row_placement is not None:
        return node.decide([None], row_placement, shapes=[_find_shape(node)])
    require(is_mean or not is_integer)  # `tf.sqrt` takes no integers
    axes = tuple(node.read_axes(1, node.count_axes(0)))
    return Expansion(_make_mean if is_mean else _make_norm, (axes, node.read_attribute("keep_dims")))


def _make_mean(axes: tuple[int, ...], keeps_axes: bool, rows: Any, _: Any) -> Any:
    sizes = tf.gather(tf.shape(rows, tf.int64), axes)
    wide = _widen(rows)
    total = tf.reduce_sum(wide, axes, keepdims=keeps_axes)
    count = tf.cast(tf.reduce_prod(sizes), wide.dtype)
    divide = tf.truncatediv if rows.dtype.is_integer else tf.divide  # the op rounds integers towards 0
    return tf.cast(divide(total, count), rows.dtype)


def _widen(rows: Any) -> Any:
    """Rows in the dtype in which the op adds them up: a sum, or a number of rows, may overflow although a mean fits."""
    if rows.dtype.is_integer and rows.dtype.size < 8:
        return tf.cast(rows, tf.int64)
    return tf.cast(rows, tf.float32) if rows.dtype.name in HALF else rows


@register_rule("Prod")
def multiply(node: Node) -> Decision:
    """The product of the numbers of a shape is a number of entries. For any other product see `take_extreme`."""
    placement = node.get_placement(0)
    if isinstance(placement, Sizes) and node.count_axes(0) == 1 and node.read_constant(1).size:
        return node.decide([None], Sizes((require_known(multiply_sizes(placement.sizes)),)))
    return take_extreme(node)


@register_rule("Max Min All Any")
def take_extreme(node: Node) -> Decision:
    """The maximum or minimum. If the rows are reduced, a collective combines the results of the ranks' rows.

    A rank without rows computes a row of another rank, which does not change the maximum or minimum. No collective
    combines products (`multiply`), or maxima and minima of other dtypes.
    """
    result: Placement | None = _keep_rows(node)
    if result is None:  # the rows are reduced
        require(node.type in _REDUCTIONS and node.inputs[0].dtype.name in _COMPARABLE)
        require(node.require_rows().rows.chosen is None)  # a rank may have no selected rows
        result = Partial(_REDUCTIONS[node.type])
    return node.decide([None], result, shapes=[_find_shape(node)])


def _make_norm(axes: tuple[int, ...], keeps_axes: bool, rows: Any, _: Any) -> Any:
    wide = _widen(rows)
    return tf.cast(tf.sqrt(tf.reduce_sum(wide * tf.math.conj(wide), axes, keepdims=keeps_axes)), rows.dtype)


@register_rule("ArgMax ArgMin")
def find_along_axis(node: Node) -> Decision:
    return node.decide([None], require_known(_keep_rows(node)))


def _is_cheaper_gathered(node: Node) -> bool:
    """Whether gathering rows and their indices moves fewer bytes than adding up the sums of all ranks.

    A sum passes each link twice, in the reduction and in the broadcast; gathered rows pass it once. An example is the
    gradient of a large embedding. In a loop, a sum is cheaper, because the sums of all turns travel as one.
    """
    if node.repeats or node.outputs[0].shape is None or None in node.outputs[0].shape:
        return False
    inputs_with_rows = [value for value in node.inputs if isinstance(value.placement, Sharded)]
    gathered_bytes = sum(value.estimate_bytes(node.rows) for value in inputs_with_rows)
    return 0 < gathered_bytes < 2 * node.outputs[0].estimate_bytes(node.rows)


def _add_entries(node: Node, data: Placement, indices: Placement) -> Decision:
    """Decide on an op that adds up entries with equal indices. A rank adds up its own entries, to a partial sum.

    data, indices: the placements of the entries and of their indices.
    """
    if _is_cheaper_gathered(node):
        return node.decide_whole()
    placement = next(placement for placement in (indices, data) if isinstance(placement, Sharded)).plain
    # Rows that a mask selects cannot be cut from a whole tensor: a rank knows the selection of its own rows only.
    require(placement.rows.chosen is None or data.has_layout(indices))
    return node.decide([placement, placement], SUM)


@register_rule("UnsortedSegmentSum", linear=0)
def add_segments(node: Node) -> Decision:
    """The sum of each segment, by an index for each entry."""
    data, indices = node.get_placement(0), node.get_placement(1)
    if isinstance(indices, Sharded) or (isinstance(data, Sharded) and data.axis < node.count_axes(1)):
        return _add_entries(node, data, indices)
    # The rows are along an axis that the indices do not have. It stays; one axis replaces the axes of the indices.
    data = node.require_rows()
    return node.decide([None], Sharded(data.axis - node.count_axes(1) + 1, data.rows))


@register_rule("ScatterNd", linear=1)
def scatter(node: Node) -> Decision:
    indices, updates = node.get_placement(0), node.get_placement(1)
    axis = indices.axis if isinstance(indices, Sharded) else node.require_rows(1).axis
    require(axis < node.count_axes(0) - 1)  # the last axis of the indices has the coordinates of one entry
    return _add_entries(node, updates, indices)


@register_rule("Bincount DenseBincount")
def count_numbers(node: Node) -> Decision:
    """How often each number occurs, or the sum of its weights: in all rows, or (DenseBincount, matrix) in each row."""
    numbers = node.require_rows()
    require(numbers.rows.chosen is None)  # weights cannot be cut to rows that a mask selects, as in `_add_entries`
    has_weights = node.read_shape(2)[:1] != [0]
    needs = [None, WHOLE, numbers.plain if has_weights else WHOLE]
    if node.type == "DenseBincount" and node.count_axes(0) == 2:
        require(numbers.axis == 0)
        return node.decide(needs, Sharded(0, numbers.rows))
    require(not node.read_attribute("binary_output", False))
    return node.decide(needs, SUM)
