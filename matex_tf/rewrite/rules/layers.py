"""Rules for ops that compute each row by itself, as a table, and for batch normalization.

`rows`: sharded along the axis of the rows. `same`: replicated. `sizes`: a shape that begins with the number of rows.
`sum`: partial.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Expansion, Node, NoRuleError
from matex_tf.rewrite.placement import SUM, WHOLE, Placement, Size, shard
from matex_tf.rewrite.rules.registry import add_rules, register_rule
from matex_tf.rewrite.rules.sizes import find_need

Mixes = Callable[[Node, int, int], bool]
"""Tells whether an op mixes entries along an axis, from the node, an input with rows, and that axis of the input."""


def _mix_inner(node: Node, index: int, axis: int) -> bool:
    return axis > 0


def _mix_last(count: int) -> Mixes:
    return lambda node, index, axis: axis >= node.count_axes(index) - count


def _mix_named(at: int) -> Mixes:
    """The axes that the input `at` names."""
    return lambda node, index, axis: axis in node.read_axes(at, node.count_axes(index))


def _mix_channels(node: Node, index: int, axis: int) -> bool:
    return axis == find_channel_axis(node)


def _mix_equations(node: Node, index: int, axis: int) -> bool:
    return node.count_axes(0) != node.count_axes(1) or axis >= node.count_axes(0) - 2


def _mix_batches(node: Node, index: int, axis: int) -> bool:
    return bool(node.read_attribute("batch_dims", 0))


_TABLE: list[tuple[str, Mixes, str]] = [
    ("rows -> rows", _mix_inner, """
        AvgPool AvgPool3D DepthToSpace SpaceToDepth MaxPool MaxPool3D LRN FakeQuantWithMinMaxArgs RGBToHSV HSVToRGB
        ExtractImagePatches DecodeRaw Conv2D Conv3D DepthwiseConv2dNative ResizeBilinear ResizeNearestNeighbor
        ResizeBicubic ResizeArea Dilation2D AdjustContrastv2 AdjustHue AdjustSaturation MaxPoolV2
        FakeQuantWithMinMaxVars ScaleAndTranslate ResizeBilinearGrad ResizeBicubicGrad ResizeNearestNeighborGrad"""),
    ("rows, rows -> rows", _mix_inner, """
        SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopKV2 InTopK
        ImageProjectiveTransformV3"""),
    ("rows, rows, rows -> rows", _mix_inner, """
        MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad MaxPool3DGradGrad LRNGrad MaxPoolGradV2"""),
    ("sizes, rows -> rows", _mix_inner, "AvgPoolGrad AvgPool3DGrad"),
    ("sizes, same, rows -> rows", _mix_inner, """
        Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput"""),
    ("rows, same, rows -> sum", _mix_inner, """
        Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter"""),
    ("rows -> rows", _mix_channels, "BiasAdd BiasAddV1"),
    ("rows -> rows", _mix_last(1), "Softmax LogSoftmax TopKV2 TopK FFT IFFT RFFT IRFFT MatrixDiagV3"),
    ("rows -> sum", _mix_last(0), "L2Loss"),
    ("rows -> rows", _mix_last(2), """
        FFT2D IFFT2D RFFT2D IRFFT2D MatrixDiagPartV3 MatrixBandPart MatrixInverse Cholesky MatrixDeterminant
        LogMatrixDeterminant SelfAdjointEigV2 Qr Svd"""),
    ("rows, rows -> rows", _mix_last(2), "MatrixSetDiagV3"),
    ("rows, rows -> rows", _mix_equations, "MatrixTriangularSolve MatrixSolve"),
    ("rows -> rows", _mix_named(1), "Cumprod CumulativeLogsumexp"),
    ("same, rows -> rows", _mix_last(0), "LookupTableFindV2 LookupTableFind"),
    ("same, rows -> rows", _mix_batches, "ResourceGather"),
    ("same, rows -> rows", _mix_last(1), "ResourceGatherNd"),
]  # fmt: skip
"""The placements that ops take and return, and the axes along which they mix entries.

Inputs that are not listed are replicated; outputs that are not listed are like the last listed one.
"""

_LINEAR: list[tuple[str, Mixes, str]] = [
    ("rows -> sum", _mix_channels, "BiasAddGrad"),
    ("rows -> rows", _mix_named(1), "Cumsum ReverseV2"),
    ("rows -> rows", _mix_named(2), "Roll"),
    ("rows, rows -> rows", _mix_last(1), "Cross"),
]
"""Ops among these that are linear in the first input."""


def _follow_table(takes: list[str], gives: list[str], mixes: Mixes, node: Node) -> Decision:
    of_rows = [index for index, kind in enumerate(takes) if kind == "rows"]
    index = next((index for index in of_rows if node.get_placement(index).is_sharded), None)
    if index is None:
        raise NoRuleError
    placement = shard(*node.get_placement(index).layout)
    if mixes(node, index, placement.axis):
        raise NoRuleError
    needs: list[Placement | None] = [WHOLE] * len(node.inputs)
    for at, kind in enumerate(takes):
        if kind == "rows":
            needs[at] = node.bring_rows(at, placement)
        elif kind == "sizes":
            first, *rest = node.read_sizes(at)
            if first.rows not in (None, placement.rows) or any(size.rows is not None for size in rest):
                raise NoRuleError
            needs[at] = find_need(node, at, (Size(placement.rows), *rest))
    every = [*gives, *[gives[-1]] * (len(node.op.outputs) - len(gives))]
    return Decision(needs, [placement if kind == "rows" else SUM for kind in every])


def _add_table(table: list[tuple[str, Mixes, str]], linear: int | None) -> None:
    for signature, mixes, types in table:
        takes, gives = ([part.strip() for part in side.split(",")] for side in signature.split("->"))
        add_rules([types], functools.partial(_follow_table, takes, gives, mixes), linear)


_add_table(_TABLE, None)
_add_table(_LINEAR, 0)


def find_channel_axis(node: Node) -> int:
    is_first = node.read_attribute("data_format", b"NHWC").startswith(b"NC")
    return 1 if is_first else node.count_axes(0) - 1


@register_rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def normalize(node: Node) -> Decision | Expansion:
    placement, count_outputs = node.require_rows(), len(node.op.outputs)
    if placement.axis == find_channel_axis(node):
        raise NoRuleError
    if not node.read_attribute("is_training"):
        return Decision([None, *[WHOLE] * 4], [shard(*placement.layout), *[WHOLE] * (count_outputs - 1)])
    return Expansion(_make_norm, (
        find_channel_axis(node), node.count_axes(0), count_outputs, node.read_attribute("epsilon"),
        node.read_attribute("exponential_avg_factor", 1.0)))  # fmt: skip


def _make_norm(
    channels: int, rank: int, count_outputs: int, epsilon: float, factor: float,
    x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
) -> Any:  # fmt: skip
    """The formulas of the fused op, with statistics over all rows."""
    axes = [axis for axis in range(rank) if axis != channels]
    wide = tf.cast(x, scale.dtype)
    count = tf.reduce_prod(tf.gather(tf.shape(x, tf.int64), axes))
    count = tf.cast(count, scale.dtype)
    here = tf.reduce_sum(wide, axes) / count
    centred = wide - _spread(here, channels, rank)
    spread = tf.reduce_sum(tf.square(centred), axes) / count
    unbiased = spread * (count / tf.maximum(count - 1, 1))
    root = tf.math.rsqrt(spread + epsilon)
    y = centred * _spread(root * scale, channels, rank) + _spread(offset, channels, rank)
    kept = [here, unbiased]
    if factor != 1.0:
        kept = [(1 - factor) * old + factor * new for old, new in zip((mean, variance), kept)]
    made = [tf.cast(y, x.dtype), *kept, here, spread, tf.zeros([0], scale.dtype)]
    return made[:count_outputs]


@register_rule("FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3")
def normalize_backward(node: Node) -> Decision | Expansion:
    placement, count_outputs = node.get_placement(0), len(node.op.outputs)
    if not node.has_rows or placement.axis == find_channel_axis(node):
        raise NoRuleError
    return Expansion(_make_norm_backward, (
        find_channel_axis(node), node.count_axes(0), count_outputs, node.read_attribute("epsilon"),
        node.read_attribute("is_training")))  # fmt: skip


def _make_norm_backward(
    channels: int, rank: int, count_outputs: int, epsilon: float, trains: bool,
    dy: Any, x: Any, scale: Any, mean: Any, spread: Any, *_: Any,
) -> Any:  # fmt: skip
    """Ioffe and Szegedy (arXiv 1502.03167), section 3; in inference the statistics are constants."""
    axes = [axis for axis in range(rank) if axis != channels]
    dy, wide = tf.cast(dy, scale.dtype), tf.cast(x, scale.dtype)
    root = tf.math.rsqrt(spread + epsilon)
    normal = (wide - _spread(mean, channels, rank)) * _spread(root, channels, rank)
    d_offset = tf.reduce_sum(dy, axes)
    d_scale = tf.reduce_sum(dy * normal, axes)
    dx = dy
    if trains:
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x, tf.int64), axes)), scale.dtype)
        dx = dy - _spread(d_offset / count, channels, rank) - normal * _spread(d_scale / count, channels, rank)
    dx = dx * _spread(scale * root, channels, rank)
    empty = tf.zeros([0], scale.dtype)
    return [tf.cast(dx, x.dtype), d_scale, d_offset, empty, empty][:count_outputs]


def _spread(vector: Any, channels: int, rank: int) -> Any:
    """A number for each channel, in a shape that is broadcast against a batch."""
    return tf.reshape(vector, [-1 if axis == channels else 1 for axis in range(rank)])
