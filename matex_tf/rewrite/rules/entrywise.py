"""Rules for elementwise ops, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import LIST, SIZES, WHOLE, Placement, Size, make_sizes, multiply_sizes, shard
from matex_tf.rewrite.rules.registry import add_rules, keep_sum, register_rule

IDENTITIES = "CheckNumerics CheckNumericsV2 DebugIdentityV2"
LINEAR = "Neg Real Imag Conj"
SUMS = "AddV2 Add Sub AddN AccumulateNV2"
PRODUCTS = "Mul RealDiv Div DivNoNan MulNoNan"
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

TYPES = frozenset(" ".join((NONLINEAR, LINEAR, SUMS, PRODUCTS, *LINEAR_IN, "Cast")).split())
"""The elementwise ops: each entry of the result depends only on the entries at its position, after broadcasting."""


def find_frame(node: Node, indexes: Sequence[int]) -> tuple[list[Placement | None], Placement] | None:
    """For inputs that are broadcast against one another: the placement that each needs, and that of the result.

    The rows are those of the first sharded input. A replicated input that has the rows is sliced. None: no input is
    sharded.
    """
    first = next((index for index in indexes if node.get_placement(index).is_sharded), None)
    if first is None:
        return None
    place, rows = node.get_placement(first).axis - node.count_axes(first), node.get_placement(first).rows
    counts = [node.count_axes(index) for index in indexes]
    needs = [
        node.bring_rows(index, shard(count + place, rows)) if count >= -place else WHOLE
        for index, count in zip(indexes, counts)
    ]
    return needs, shard(max(counts) + place, rows)


def compute_entries(node: Node) -> Decision:
    """Decide on an elementwise op: each entry is computed from the script's own entries."""
    found = find_frame(node, range(len(node.inputs)))
    if found is None:
        raise NoRuleError
    return node.decide(found[0], found[1])


add_rules([NONLINEAR], compute_entries)
add_rules([LINEAR], compute_entries, linear=0)
add_rules(["SelectV2"], compute_entries, linear=slice(1, 3))
for _name, _at in LINEAR_IN.items():
    add_rules([_name], compute_entries, linear=_at)


@register_rule(IDENTITIES)
def keep(node: Node) -> Decision:
    return Decision([None], [node.get_placement(0)], None, [node.inputs[0].constant])


@register_rule("Cast")
def cast(node: Node) -> Decision:
    placement = node.get_placement(0)
    source, target = node.inputs[0].dtype, node.op.outputs[0].dtype
    if placement.kind == SIZES:
        return node.decide([None], placement) if target.is_integer and target.size >= 4 else node.decide_whole()
    # Other casts of a sum round or overflow, so the sum must be whole first. In a loop that is a collective in each
    # turn.
    wraps = source.is_integer and target.is_integer and target.size <= source.size
    widens = node.repeats and source.is_floating and target.is_floating and target.size >= source.size
    if placement.is_partial and (wraps or widens):
        return node.decide([None], placement)
    if placement.numbers is not None and target.is_integer and target.size >= 4:
        return node.decide([None], placement)
    if placement.is_zero:
        return node.decide([None], placement)
    return compute_entries(node)


@register_rule(SUMS, linear=slice(None))
def add(node: Node) -> Decision:
    if any(placement.kind == LIST for placement in node.placements):
        items = {
            placement.item for placement in node.placements if placement.kind == LIST and placement.item is not None
        }
        if len(items) > 1 or any(placement.kind != LIST for placement in node.placements):
            raise NoRuleError
        return node.decide(
            [None] * len(node.inputs),
            next((placement for placement in node.placements if placement.item), node.get_placement(0)),
        )
    sizes = _combine_sizes(node, _subtract_sizes if node.type == "Sub" else _add_sizes)
    return sizes or compute_entries(node)


@register_rule("Mul", is_product=True)
def multiply(node: Node) -> Decision:
    return _combine_sizes(node, lambda a, b: multiply_sizes([a, b])) or compute_entries(node)


@register_rule("RealDiv Div DivNoNan")
def divide(node: Node) -> Decision:
    """Integer division rounds, so it is not linear."""
    dtype = node.inputs[0].dtype
    keeps = not node.has_rows and (dtype.is_floating or dtype.is_complex)
    return keep_sum(node) if keeps else compute_entries(node)


@register_rule("FloorDiv Maximum Minimum FloorMod")
def compute_numbers(node: Node) -> Decision:
    """Arithmetic on integers that may count rows, such as sizes divided by sizes."""
    sizes = _combine_sizes(node, {"FloorDiv": _divide_sizes, "Maximum": _raise_sizes}.get(node.type, _give_no_size))
    return sizes or compute_entries(node)


@register_rule("Select", linear=slice(1, 3))
def select_rows(node: Node) -> Decision:
    """The condition may be a vector that selects along the first axis."""
    if node.count_axes(0) == node.count_axes(1):
        return compute_entries(node)
    if node.count_axes(0) == 0 and node.has_rows:
        frame = find_frame(node, [1, 2])
        if frame is None:
            raise NoRuleError
        return node.decide([WHOLE, *frame[0]], frame[1])
    sharded = next((placement for placement in node.placements if placement.is_sharded), None)
    if sharded is None or sharded.axis != 0 or sharded.rows.chosen is not None:
        raise NoRuleError
    return node.decide([shard(0, sharded.rows)] * 3, shard(0, sharded.rows))


def _combine_sizes(node: Node, combine: Callable[[Size, Size], Size | None]) -> Decision | None:
    """The sizes that an operation on sizes returns, if they count rows again; None: the numbers become whole first."""
    placements = node.placements
    if all(placement.kind != SIZES for placement in placements) or any(each.is_sharded for each in placements):
        return None
    terms = [value.sizes for value in node.inputs if value.sizes is not None]
    if len(terms) != 2 or len(node.inputs) != 2:
        return None
    length = max(map(len, terms))
    first, second = (sizes * length if len(sizes) == 1 else sizes for sizes in terms)
    if len(first) != len(second):
        return None
    combined = [combine(a, b) if a.rows or b.rows else Size() for a, b in zip(first, second)]
    if None in combined:
        return None
    return node.decide([None, None], make_sizes([size for size in combined if size is not None]))


def _give_no_size(first: Size, second: Size) -> Size | None:
    return None


def _add_sizes(first: Size, second: Size, sign: int = 1) -> Size | None:
    """n + 0. The entries that n + n counts have no known order."""
    if first.rows is None and first.value == 0 and sign > 0:
        return second
    if second.rows is None and second.value == 0:
        return first
    return None


def _subtract_sizes(first: Size, second: Size) -> Size | None:
    return _add_sizes(first, second, -1)


def _divide_sizes(first: Size, second: Size) -> Size | None:
    if first.rows is None or second.rows is not None or second.value is None or second.value <= 0:
        return None
    if second.value == 1:
        return first
    if any(block is None or block % second.value for block in first.rows.blocks) or first.rows.chosen is not None:
        return None
    return Size(first.rows._replace(blocks=tuple(block // second.value for block in first.rows.blocks if block)))


def _raise_sizes(first: Size, second: Size) -> Size | None:
    """max(n, 1) of a number of rows n: the batch has a row, and so has each rank's slice."""
    for counting, number in ((first, second), (second, first)):
        bound = number.value if number.rows is None else None
        if counting.rows is not None and counting.rows.chosen is None and bound is not None and bound <= 1:
            return counting if 0 not in counting.rows.blocks else None
    return None
