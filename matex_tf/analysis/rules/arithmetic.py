"""Ops on single entries, with broadcasting: linear ones keep a weight, others take tensors as they are alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matex_tf.analysis import elements
from matex_tf.analysis.placement import (
    PARTIAL,
    REPLICATED,
    ROW_NUMBERS,
    SHARDED,
    Element,
    Placement,
    as_partial,
    choose_order,
    is_aligned,
    make_partial,
    make_replicated,
    make_vector,
    require_known,
)
from matex_tf.analysis.rules.registry import (
    FIGURE,
    FIXED,
    MEET,
    SIZES,
    WEIGHS,
    Node,
    UnprovedError,
    combine_figures,
    need_fit,
    register_rule,
)

LINEAR = (
    "Identity", "StopGradient", "PreventGradient", "CheckNumerics", "CheckNumericsV2", "DebugIdentityV2",
    "Snapshot", "Real", "Imag", "Conj",
)  # fmt: skip
NONLINEAR = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BesselI0e", "BesselI1e", "Bitcast", "Ceil",
    "ComplexAbs", "Cos", "Cosh", "Digamma", "Elu", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "Inv", "Invert",
    "IsFinite", "IsInf", "IsNan", "Lgamma", "Log", "Log1p", "LogicalNot", "Ndtri", "Reciprocal", "Relu", "Relu6",
    "LeakyRelu", "Rint", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
    "Square", "Tan", "Tanh", "Bucketize", "StringLength", "StringLower", "StringUpper", "AsString", "StringStrip",
    "StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket", "StaticRegexReplace",
    "StaticRegexFullMatch", "StringToNumber", "EluGrad", "LeakyReluGrad", "ReciprocalGrad", "Relu6Grad", "ReluGrad",
    "RsqrtGrad", "SeluGrad", "SigmoidGrad", "SoftplusGrad", "SoftsignGrad", "SqrtGrad", "TanhGrad",
)  # fmt: skip
BINARY = (
    "Maximum", "Minimum", "Pow", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "SquaredDifference",
    "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "ApproximateEqual",
    "Atan2", "Xdivy", "Xlogy", "Xlog1py", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift",
    "NextAfter", "Igamma", "Igammac", "Zeta", "Polygamma", "Complex",
)  # fmt: skip


ENTRYWISE = {*LINEAR, *NONLINEAR, *BINARY, "AddV2", "Add", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Cast"}
ENTRYWISE |= {"SelectV2"}
"""Ops whose result has the shape that their inputs have together."""


def find_frame(node: Node, indexes: Sequence[int] | None = None) -> Placement | None:
    """Where the rows are in an entry by entry op with broadcasting: a sharded placement of power 0, or None if nowhere.

    Raises:
        UnprovedError: rows would meet other rows, or what is no row of the batch.
    """
    indexes = range(len(node.inputs)) if indexes is None else indexes
    sharded = [index for index in indexes if node.inputs[index].is_sharded]
    if not sharded:
        return None
    places = {node.inputs[index].axis - node.count_axes(index) for index in sharded}
    found = [node.inputs[index] for index in sharded]
    units = {one.unit for one in found} - {None}
    if len(places) > 1 or len(units) > 1 or not all(is_aligned(found[0], one) for one in found[1:]):
        raise UnprovedError(MEET)
    place = places.pop()
    for index in indexes:
        if index in sharded:
            continue
        shape = node.get_shape(index)
        if len(shape) >= -place and shape[place] != 1:
            raise UnprovedError(FIXED)
    most = max(node.count_axes(index) for index in indexes)
    unit = units.pop() if units else None
    return choose_order(found)._replace(power=0, axis=most + place, unit=unit, zero=False, elements=None)


def combine_inputs(node: Node, indexes: Sequence[int] | None = None) -> Placement:
    """The placement of an op that takes these inputs entry by entry and as they are alone."""
    indexes = range(len(node.inputs)) if indexes is None else indexes
    found = find_frame(node, indexes)
    if found is None:
        return combine_figures(node, indexes)
    for one in (node.inputs[index] for index in indexes):
        if not ((one.is_sharded and (one.power == 0 or one.zero)) or one.is_same):
            raise UnprovedError(FIGURE)
    return found


@register_rule(*LINEAR, shaped_alike=True)
def linear(node: Node) -> Placement:
    return node.inputs[0]


@register_rule("IdentityN")
def each_itself(node: Node) -> list[Placement]:
    return node.inputs


@register_rule("Neg", shaped_alike=True)
def negate(node: Node) -> Placement:
    one = node.inputs[0]
    if one.kind == ROW_NUMBERS:
        raise UnprovedError(SIZES)
    if one.elements is None:
        return one
    return make_vector([elements.negate(of) for of in one.elements])


@register_rule("Cast", shaped_alike=True)
def cast(node: Node) -> Placement:
    one = node.inputs[0]
    source, target = node.read_attribute("SrcT"), node.read_attribute("DstT")
    if target.is_bool or (target.is_integer and target.size < min(source.size, 4)):
        return combine_inputs(node)
    if source.is_floating or source.is_complex:
        if target.is_floating or target.is_complex or one.kind == ROW_NUMBERS:
            return one
        # Rounding keeps what is whole or the same for all.
        if one.elements and all(of.power == 0 or of.unit is not None for of in one.elements):
            return one
        return combine_inputs(node)
    return one


@register_rule(*NONLINEAR, shaped_alike=True)
def nonlinear(node: Node) -> Placement:
    return combine_inputs(node)


@register_rule(*BINARY, shaped_alike=True)
def binary(node: Node) -> Placement:
    return _compute_numbers(node, _WHOLE.get(node.type, elements.forget_value)) or combine_inputs(node)


@register_rule("ClipByValue", "Betainc", shaped_alike=True)
def ternary(node: Node) -> Placement:
    return combine_inputs(node)


@register_rule("AddV2", "Add", "Sub", shaped_alike=True)
def add(node: Node) -> Placement:
    made = _compute_numbers(node, elements.subtract if node.type == "Sub" else elements.add)
    return made or add_inputs(node)


@register_rule("AddN", "AccumulateNV2", shaped_alike=True)
def add_all(node: Node) -> Placement:
    return add_inputs(node)


def add_inputs(node: Node) -> Placement:
    """The placement of a sum of all inputs, with broadcasting."""
    found, inputs = find_frame(node), node.inputs
    if found is not None:
        powers = {one.power for one in inputs if not one.zero}
        # What is replicated stands for the same number beside each row.
        if any(not (one.is_sharded or (one.kind == REPLICATED and not one.is_mixed)) for one in inputs):
            raise UnprovedError(FIGURE)
        if len(powers) > 1:
            raise UnprovedError(WEIGHS)
        return found._replace(power=powers.pop() if powers else 0)
    terms = [one for one in inputs if not one.zero]
    if not terms:
        return inputs[0]._replace(elements=None)
    if all(one.kind == REPLICATED and not one.is_mixed for one in terms) and len({one.power for one in terms}) == 1:
        return make_replicated(terms[0].power)
    parts = require_known(as_partial(one) for one in terms)
    if parts is not None and len(set(parts)) == 1:
        return parts[0]
    return combine_inputs(node)


@register_rule("Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan", shaped_alike=True)
def multiply(node: Node) -> Placement:
    divides = node.type in ("RealDiv", "Div", "DivNoNan")
    if divides and not (node.tensors[0].dtype.is_floating or node.tensors[0].dtype.is_complex):
        return combine_inputs(node)  # it rounds
    made = _compute_numbers(node, elements.divide_exactly if divides else elements.multiply)
    if made is not None:
        return made
    first, second = node.inputs
    power = first.power - second.power if divides else first.power + second.power
    found = find_frame(node)
    if found is not None:
        if any(one.kind not in (SHARDED, REPLICATED) or one.is_mixed for one in node.inputs):
            raise UnprovedError(FIGURE)
        return found._replace(power=power, zero=first.zero or (second.zero and not divides))
    kinds = (first.kind, second.kind)
    if first.is_mixed or second.is_mixed:
        raise UnprovedError("a vector of sizes goes into it")
    if kinds == (REPLICATED, REPLICATED):
        return make_replicated(power)
    if kinds == (PARTIAL, REPLICATED) or (kinds == (REPLICATED, PARTIAL) and not divides):
        return make_partial(power)
    return combine_inputs(node)


@register_rule("SelectV2", "Select", shaped_alike=True)
def select(node: Node) -> Placement:
    condition, *branches = node.inputs
    if node.type == "Select" and node.count_axes(0) == 1 and node.count_axes(1) != 1:
        shard = None
        if any(one.is_sharded for one in node.inputs):  # the condition chooses along the first axis
            if not all(one.is_sharded and one.axis == 0 for one in node.inputs):
                raise UnprovedError(MEET)
            need_fit(*node.inputs)
            shard = branches[0]
    else:
        shard = find_frame(node)
    if shard is None:
        parts = require_known(as_partial(one) for one in branches if not one.zero)
        if condition.is_same and parts and len(set(parts)) == 1 and not all(one.is_same for one in branches):
            return parts[0]
        return combine_figures(node)
    if not (condition.is_same or (condition.is_sharded and condition.power == 0)):
        raise UnprovedError(FIGURE)
    powers = {one.power for one in branches if not one.zero}
    if len(powers) > 1 or any(one.kind not in (SHARDED, REPLICATED) or one.is_mixed for one in branches):
        raise UnprovedError(FIGURE)
    return shard._replace(power=powers.pop() if powers else 0)


def _compute_numbers(node: Node, compute: Callable[[Element, Element], Element]) -> Placement | None:
    """The placement of what is computed of short vectors or scalars of whole numbers whose entries are followed.

    None: the inputs are others, or nothing is known of the one number that it is.
    """
    followed = require_known(one.elements for one in node.inputs)
    if followed is None:
        return None
    first, second = followed
    if len(first) != len(second):
        first = first * len(second) if len(first) == 1 else first
        second = second * len(first) if len(second) == 1 else second
    made = [compute(a, b) for a, b in zip(first, second)]
    if len(made) == 1 and made[0].power is None and not any(one.is_mixed for one in node.inputs):
        return None
    return make_vector(made)


_WHOLE = {
    "FloorDiv": elements.divide_down,
    "Maximum": elements.make_extremum(max),
    "Minimum": elements.make_extremum(min),
    "FloorMod": elements.compute_remainder,
}
