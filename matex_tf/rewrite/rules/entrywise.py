"""Rules for elementwise ops, with broadcasting: if an input has rows, the result has these rows.

Elementwise ops also compute sizes of tensors. A result that counts rows must be known as such: n * 3 has 3 entries for
each of the n rows (`placement.Size`).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import WHOLE, ItemList, Partial, Sharded, Size, Sizes, Zeros, multiply_sizes
from matex_tf.rewrite.rules.arrays import scale_blocks
from matex_tf.rewrite.rules.registry import keep_sum, register_rule

IDENTITIES = "CheckNumerics CheckNumericsV2 DebugIdentityV2"
LINEAR = "Neg Real Imag Conj"
SUMS = "AddV2 Add Sub AddN AccumulateNV2"
NONLINEAR = """
    Abs Acos Acosh Asin Asinh Atan Atanh BesselI0e BesselI1e Ceil ComplexAbs Cos Cosh Digamma Elu Erf Erfc Erfinv Exp
    Expm1 Floor Inv Invert IsFinite IsInf IsNan Lgamma Log Log1p LogicalNot Ndtri Reciprocal Relu Relu6 LeakyRelu Rint
    Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh Bucketize StringLength StringLower
    StringUpper AsString StringStrip StringToHashBucketFast StringToHashBucketStrong StringToHashBucket
    StaticRegexReplace StaticRegexFullMatch StringToNumber Pow Mod TruncateDiv TruncateMod SquaredDifference Equal
    NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr ApproximateEqual Atan2 Xdivy Xlogy Xlog1py
    BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift NextAfter Igamma Igammac Zeta Polygamma Complex ClipByValue
    Betainc MulNoNan Spence Expint Dawsn FresnelCos FresnelSin"""
LINEAR_IN = {
    # Ops of the backward pass are linear in the incoming gradient. The number is the index of that input.
    **dict.fromkeys("ReluGrad Relu6Grad EluGrad SeluGrad LeakyReluGrad SoftplusGrad SoftsignGrad".split(), 0),
    **dict.fromkeys("SigmoidGrad TanhGrad RsqrtGrad SqrtGrad ReciprocalGrad InvGrad".split(), 1),
}

TYPES = frozenset(f"{NONLINEAR} {LINEAR} {SUMS} Mul RealDiv Div DivNoNan Cast".split()).union(LINEAR_IN)
"""Elementwise ops, for `spreading`, and for `pieces`, which adds others: each entry of the result depends only on the
entries at its position, after broadcasting.
"""


def compute_entries(node: Node) -> Decision:
    """Decide on an elementwise op, whose inputs are broadcast against one another.

    The result has the rows of the first sharded input. A replicated input that has the rows is sliced.
    """
    sharded_index, placement = node.find_input_with_rows(range(len(node.inputs)))
    axis_counts = [node.count_axes(index) for index in range(len(node.inputs))]
    # Broadcasting aligns the last axes, so the axis of the rows is counted from the end.
    axis_from_end = axis_counts[sharded_index] - placement.axis
    # An input with too few axes, such as a scalar, has no axis of rows, and is taken whole.
    needs = [
        node.bring_rows(index, Sharded(count - axis_from_end, placement.rows)) if count >= axis_from_end else WHOLE
        for index, count in enumerate(axis_counts)
    ]
    return node.decide(needs, Sharded(max(axis_counts) - axis_from_end, placement.rows))


register_rule(NONLINEAR)(compute_entries)
register_rule(LINEAR, linear=0)(compute_entries)
register_rule("SelectV2", linear=slice(1, 3))(compute_entries)
for _name, _index in LINEAR_IN.items():
    register_rule(_name, linear=_index)(compute_entries)


@register_rule(IDENTITIES)
def keep(node: Node) -> Decision:
    """The result is the input, with its placement, and with its value if that is constant."""
    return Decision([None], [node.get_placement(0)], None, [node.inputs[0].constant])


@register_rule("Cast")
def cast(node: Node) -> Decision:
    placement = node.get_placement(0)
    source_dtype, target_dtype = node.inputs[0].dtype, node.op.outputs[0].dtype
    # A cast to an integer of no more bits keeps a sum: both wrap around. Before other casts the sum must be whole: they
    # round or overflow, or come after the rounding of the script's sum. In a loop this would be a collective in each
    # turn, so there casts to floats that are not narrower keep the sum.
    wraps = source_dtype.is_integer and target_dtype.is_integer and target_dtype.size <= source_dtype.size
    widens = source_dtype.is_floating and target_dtype.is_floating and target_dtype.size >= source_dtype.size
    keeps_sum = placement.is_row_sum and (wraps or (widens and node.repeats))
    # Sizes, and indices of rows, stay such numbers in a dtype that is wide enough for any of them.
    has_indices = isinstance(placement, Sharded) and placement.index_rows is not None
    is_wide = target_dtype.is_integer and target_dtype.size >= 4
    keeps_numbers = is_wide and (isinstance(placement, Sizes) or has_indices)
    if keeps_sum or keeps_numbers or isinstance(placement, Zeros):
        return node.decide([None], placement)
    return compute_entries(node)


@register_rule(SUMS, linear=slice(None))
def add(node: Node) -> Decision:
    lists = [placement for placement in node.placements if isinstance(placement, ItemList)]
    if lists:  # AddN adds them item by item; an empty list has no placement of items
        items = {placement.item for placement in lists if placement.item is not None}
        require(len(lists) == len(node.inputs) and len(items) <= 1)
        item = next(iter(items), None)
        # A sum of sizes is no size, and a sum of maxima no maximum.
        require(not isinstance(item, Sizes) and not (isinstance(item, Partial) and item.reduction != "sum"))
        return node.decide([None] * len(lists), ItemList(item, lists[0].dtype))
    sizes = _combine_sizes(node, _subtract_sizes if node.type == "Sub" else _add_sizes)
    return sizes or compute_entries(node)


@register_rule("Mul", is_product=True)
def multiply(node: Node) -> Decision:
    return _combine_sizes(node, lambda a, b: multiply_sizes([a, b])) or compute_entries(node)


@register_rule("RealDiv Div DivNoNan")
def divide(node: Node) -> Decision:
    """Division is linear in the dividend, except for integers, where it rounds. So it depends on the dtype, which
    `linear` of `register_rule` does not know.
    """
    dtype = node.inputs[0].dtype
    is_linear = dtype.is_floating or dtype.is_complex
    return keep_sum(node) if is_linear and not node.has_rows else compute_entries(node)


@register_rule("FloorDiv Maximum Minimum FloorMod")
def compute_numbers(node: Node) -> Decision:
    """Arithmetic on integers that may count rows, such as sizes divided by sizes."""
    rules: dict[str, Callable[[Size, Size], Size | None]] = {"FloorDiv": _divide_sizes, "Maximum": _maximize_sizes}
    return _combine_sizes(node, rules.get(node.type, lambda *_: None)) or compute_entries(node)


@register_rule("Select", linear=slice(1, 3))
def select_rows(node: Node) -> Decision:
    """The condition may be a scalar, or a vector that selects along the first axis."""
    if node.count_axes(0) in (0, node.count_axes(1)):
        return compute_entries(node)
    _, sharded = node.find_input_with_rows(range(3))
    require(sharded.axis == 0 and sharded.rows.chosen is None)
    return node.decide([Sharded(0, sharded.rows)] * 3, Sharded(0, sharded.rows))


def _combine_sizes(node: Node, combine: Callable[[Size, Size], Size | None]) -> Decision | None:
    """The decision on an operation on two vectors of sizes, if its results count rows. None if it is no such operation.

    combine: computes a size from two sizes of which one or both count rows; None: no `Size` describes the result.
    """
    terms = [value.sizes for value in node.inputs if value.sizes is not None]
    counts_rows = any(isinstance(placement, Sizes) for placement in node.placements)
    if not counts_rows or not len(terms) == len(node.inputs) == 2:
        return None
    length = max(map(len, terms))
    # A single number is broadcast against a vector.
    first, second = (sizes * length if len(sizes) == 1 else sizes for sizes in terms)
    require(len(first) == len(second))  # a number and an empty vector give an empty vector
    combined_sizes = [combine(a, b) if a.rows or b.rows else Size() for a, b in zip(first, second)]
    return node.decide([None, None], Sizes(tuple(map(require_known, combined_sizes))))


def _add_sizes(first: Size, second: Size) -> Size | None:
    """The sum if one size is 0. Other sums are refused: n + n may be the length of two batches, one after the other, or
    of a batch with each row twice (`Rows.blocks`).
    """
    return second if first == Size(None, 0) else _subtract_sizes(first, second)


def _subtract_sizes(first: Size, second: Size) -> Size | None:
    return first if second == Size(None, 0) else None


def _divide_sizes(first: Size, second: Size) -> Size:
    """n / k, if each row of the batch has a multiple of k entries in each block, as `scale_blocks` requires."""
    divisor = require_known(second.value)
    require(divisor > 0)
    return Size(scale_blocks(require_known(first.rows), Fraction(1, divisor)))


def _maximize_sizes(first: Size, second: Size) -> Size:
    """The maximum of a number of rows and 1 or less: the number of rows, since the batch and each slice have a row."""
    row_count, number = (first, second) if second.rows is None else (second, first)
    rows = require_known(row_count.rows)
    require(require_known(number.value) <= 1 and rows.chosen is None)
    require(all(block and block > 0 for block in rows.blocks))
    return row_count
