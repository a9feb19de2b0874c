"""Rules for ops that compute each row by itself, as a table, and for batch normalization.

A line of the table, such as "rows, same, rows -> sum" for the gradient of a convolution's filter, says: inputs 0 and 2
have the batch's rows, input 1 is whole, and the results of the ranks are partial sums.

Batch normalization needs statistics of all rows. Its rules replace the fused op by its formulas, of which the other
rules make sums over the ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Expansion, Node, require
from matex_tf.rewrite.placement import SUM, WHOLE, Placement, Size
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need

Mixes = Callable[[Node, int, int], bool]
_MIXES: dict[str, Mixes] = {
    "inner": lambda node, index, axis: axis > 0,
    "none": lambda node, index, axis: False,
    "last": lambda node, index, axis: axis == node.count_axes(index) - 1,
    "last 2": lambda node, index, axis: axis >= node.count_axes(index) - 2,
    "last 3": lambda node, index, axis: axis >= node.count_axes(index) - 3,
    "named by 1": lambda node, index, axis: axis in node.read_axes(1, node.count_axes(index)),
    "named by 2": lambda node, index, axis: axis in node.read_axes(2, node.count_axes(index)),
    "channels": lambda node, index, axis: axis == find_channel_axis(node),
    # The table has one axis of rows for all inputs. If inputs are broadcast, this is not so.
    "equations": lambda node, *place: node.count_axes(0) != node.count_axes(1) or _MIXES["last 2"](node, *place),
    "batches": lambda node, index, axis: bool(node.read_attribute("batch_dims", 0)),
}
"""Functions that return whether an op combines entries along an axis, `axis` of the input `index`. If this is the axis
of the rows, the op needs all rows.
"""

_TABLE: list[tuple[str, str, str]] = [
    ("rows -> rows", "inner", """
        AvgPool AvgPool3D DepthToSpace SpaceToDepth MaxPool MaxPool3D LRN FakeQuantWithMinMaxArgs ExtractImagePatches
        DecodeRaw Conv2D Conv3D DepthwiseConv2dNative ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea
        Dilation2D MaxPoolV2 FakeQuantWithMinMaxVars ScaleAndTranslate ResizeNearestNeighborGrad"""),
    ("rows, rows -> rows", "inner", """
        SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopKV2 InTopK
        ImageProjectiveTransformV3 ResizeBilinearGrad ResizeBicubicGrad"""),
    ("rows, rows, rows -> rows", "inner", """
        MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad MaxPool3DGradGrad LRNGrad MaxPoolGradV2"""),
    ("sizes, rows -> rows", "inner", "AvgPoolGrad AvgPool3DGrad"),
    ("sizes, same, rows -> rows", "inner", """
        Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput"""),
    ("rows, same, rows -> sum", "inner", """
        Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter"""),
    ("rows -> rows", "channels", "BiasAdd BiasAddV1"),
    ("rows -> sum", "channels", "BiasAddGrad"),
    ("rows -> rows", "last", """
        Softmax LogSoftmax TopKV2 TopK FFT IFFT RFFT IRFFT MatrixDiagV3 RGBToHSV HSVToRGB AdjustHue
        AdjustSaturation"""),
    ("rows -> rows", "last 3", "AdjustContrastv2"),
    ("rows -> sum", "none", "L2Loss"),
    ("rows -> rows", "last 2", """
        FFT2D IFFT2D RFFT2D IRFFT2D MatrixDiagPartV3 MatrixBandPart MatrixInverse Cholesky MatrixDeterminant
        LogMatrixDeterminant SelfAdjointEigV2 Qr Svd"""),
    ("rows, rows -> rows", "last", "Cross"),
    ("rows, rows -> rows", "last 2", "MatrixSetDiagV3"),
    ("rows, rows -> rows", "equations", "MatrixTriangularSolve MatrixSolve"),
    ("rows -> rows", "named by 1", "Cumprod Cumsum CumulativeLogsumexp ReverseV2"),
    ("rows -> rows", "named by 2", "Roll"),
    ("same, rows -> rows", "none", "LookupTableFindV2 LookupTableFind"),
    ("same, rows -> rows", "batches", "ResourceGather"),
    ("same, rows -> rows", "last", "ResourceGatherNd"),
]  # fmt: skip
"""The inputs and outputs of ops, the axes along which they combine entries (`_MIXES`), and the ops.

    rows     sharded along the axis of the rows
    same     replicated
    sizes    a shape that begins with the number of rows
    sum      partial

Inputs that are not listed are replicated; outputs that are not listed are like the last listed one.
"""

_LINEAR = ("BiasAddGrad", "Cross", "Cumsum", "ReverseV2", "Roll")
"""The ops of the table that are linear in the first input: of a partial sum, they also give a partial sum."""


def _follow_table(takes: list[str], gives: list[str], mixes: Mixes, node: Node) -> Decision:
    """The decision on an op by its line in the table. takes, gives: the two sides of the line's first part.

    Raises NoRuleError if the op needs all rows, or if an input has other rows; it then gets whole inputs.
    """
    sharded_index, sharded = node.find_input_with_rows(index for index, kind in enumerate(takes) if kind == "rows")
    placement = sharded.plain
    require(not mixes(node, sharded_index, placement.axis))
    needs: list[Placement | None] = []
    for index, kind in enumerate(takes):
        if kind == "rows":
            needs.append(node.bring_rows(index, placement))
        elif kind == "sizes":
            row_size, *other_sizes = node.read_sizes(index)
            # The sizes of Conv2DBackpropInput may lack the rows.
            require(len(other_sizes) == node.count_axes(sharded_index) - 1)
            require(row_size.rows in (None, placement.rows) and all(size.rows is None for size in other_sizes))
            needs.append(find_need(node, index, (Size(placement.rows), *other_sizes)))
        else:
            needs.append(WHOLE)
    return node.decide(needs, *(placement if kind == "rows" else SUM for kind in gives))


for _signature, _mixes, _types in _TABLE:
    _takes, _gives = ([_part.strip() for _part in _side.split(",")] for _side in _signature.split("->"))
    for _type in _types.split():
        _rule = functools.partial(_follow_table, _takes, _gives, _MIXES[_mixes])
        register_rule(_type, linear=0 if _type in _LINEAR else None)(_rule)


def find_channel_axis(node: Node) -> int:
    is_first = node.read_attribute("data_format", b"NHWC").startswith(b"NC")
    return 1 if is_first else node.count_axes(0) - 1


@register_rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def normalize(node: Node) -> Decision | Expansion:
    placement = node.require_rows()
    require(placement.axis != find_channel_axis(node))
    if not node.read_attribute("is_training"):  # the statistics are inputs, so each row is normalized by itself
        return node.decide([None], placement.plain, WHOLE)
    return Expansion(_make_norm, (
        find_channel_axis(node), node.count_axes(0), len(node.outputs), node.read_attribute("epsilon"),
        node.read_attribute("exponential_avg_factor", 1.0)))  # fmt: skip


def _make_norm(
    channel_axis: int, axis_count: int, output_count: int, epsilon: float, factor: float,
    x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
) -> Any:  # fmt: skip
    """The formulas of the fused op, with statistics over all rows. mean, variance: the moving averages; factor: the
    weight of the batch in their new values.
    """
    axes = [axis for axis in range(axis_count) if axis != channel_axis]
    wide = tf.cast(x, scale.dtype)
    count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x, tf.int64), axes)), scale.dtype)
    batch_mean = tf.reduce_sum(wide, axes) / count
    centred = wide - _spread(batch_mean, channel_axis, axis_count)
    batch_variance = tf.reduce_sum(tf.square(centred), axes) / count
    unbiased = batch_variance * (count / tf.maximum(count - 1, 1))
    root = tf.math.rsqrt(batch_variance + epsilon)
    y = centred * _spread(root * scale, channel_axis, axis_count) + _spread(offset, channel_axis, axis_count)
    averages = [batch_mean, unbiased]
    if factor != 1.0:
        averages = [
            (1 - factor) * old_average + factor * new_average
            for old_average, new_average in zip((mean, variance), averages)
        ]
    outputs = [tf.cast(y, x.dtype), *averages, batch_mean, batch_variance, tf.zeros([0], scale.dtype)]
    return outputs[:output_count]


@register_rule("FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3")
def normalize_backward(node: Node) -> Decision | Expansion:
    _, sharded = node.find_input_with_rows((0, 1))  # the gradient may be whole, such as that of a sum
    require(sharded.axis != find_channel_axis(node))
    return Expansion(_make_norm_backward, (
        find_channel_axis(node), node.count_axes(0), len(node.outputs), node.read_attribute("epsilon"),
        node.read_attribute("is_training")))  # fmt: skip


def _make_norm_backward(
    channel_axis: int, axis_count: int, output_count: int, epsilon: float, trains: bool,
    dy: Any, x: Any, scale: Any, mean: Any, variance: Any, *_: Any,
) -> Any:  # fmt: skip
    """Ioffe and Szegedy (arXiv 1502.03167), section 3; in inference the statistics are constants."""
    axes = [axis for axis in range(axis_count) if axis != channel_axis]
    dy, wide = tf.cast(dy, scale.dtype), tf.cast(x, scale.dtype)
    root = tf.math.rsqrt(variance + epsilon)
    normal = (wide - _spread(mean, channel_axis, axis_count)) * _spread(root, channel_axis, axis_count)
    d_offset = tf.reduce_sum(dy, axes)
    d_scale = tf.reduce_sum(dy * normal, axes)
    dx = dy
    if trains:
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x, tf.int64), axes)), scale.dtype)
        dx = dy - _spread(d_offset / count, channel_axis, axis_count)
        dx = dx - normal * _spread(d_scale / count, channel_axis, axis_count)
    dx = dx * _spread(scale * root, channel_axis, axis_count)
    empty = tf.zeros([0], scale.dtype)
    return [tf.cast(dx, x.dtype), d_scale, d_offset, empty, empty][:output_count]


def _spread(vector: Any, channel_axis: int, axis_count: int) -> Any:
    """A number for each channel, in a shape that is broadcast against a batch."""
    return tf.reshape(vector, [-1 if axis == channel_axis else 1 for axis in range(axis_count)])
