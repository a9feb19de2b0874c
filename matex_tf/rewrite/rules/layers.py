"""Layers' ops, of which each row of the batch, the first axis, is computed by itself: a table of placements.

`rows`: sharded along axis 0. `same`: replicated. `sizes`: a shape that begins with the number of rows. `sum`: partial.
"""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite.nodes import Decision, Expansion, Node, NoRuleError
from matex_tf.rewrite.placement import SUM, WHOLE, Placement, Size, shard
from matex_tf.rewrite.rules.registry import add_rules, register_rule
from matex_tf.rewrite.rules.shapes import keep_figure
from matex_tf.rewrite.rules.sizes import find_need

TABLE = {
    "rows -> rows": """AvgPool AvgPool3D DepthToSpace SpaceToDepth MaxPool MaxPool3D LRN FakeQuantWithMinMaxArgs
        RGBToHSV HSVToRGB ExtractImagePatches DecodeRaw""",
    "rows, same -> rows": """Conv2D Conv3D DepthwiseConv2dNative ResizeBilinear ResizeNearestNeighbor ResizeBicubic
        ResizeArea Dilation2D AdjustContrastv2 AdjustHue AdjustSaturation""",
    "rows, same, same -> rows": "MaxPoolV2 FakeQuantWithMinMaxVars",
    "rows, same, same, same -> rows": "ScaleAndTranslate",
    "rows, rows, rows -> rows": "MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad MaxPool3DGradGrad LRNGrad",
    "rows, rows, rows, same, same -> rows": "MaxPoolGradV2",
    "sizes, rows -> rows": "AvgPoolGrad AvgPool3DGrad",
    "sizes, same, rows -> rows": "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput",
    "rows, same, rows -> sum": "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter",
    "rows, rows -> rows, rows": "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    "rows, same -> rows ": "ResizeBilinearGrad ResizeBicubicGrad ResizeNearestNeighborGrad",
}
"""By the placements that an op takes and gives, the types of the ops."""


def follow_table(takes: list[str], gives: list[str], node: Node) -> Decision:
    rows = next((one.rows for one in node.placements if one.is_sharded and one.axis == 0), None)
    if rows is None:
        return node.decide_whole()
    one = shard(0, rows)
    if rows.chosen is not None and any(
        kind == "rows" and not found.has_layout(one) for kind, found in zip(takes, node.placements)
    ):
        raise NoRuleError
    needs: list[Placement | None] = []
    for index, (kind, found) in enumerate(zip(takes, node.placements)):
        if kind == "sizes":
            first, *rest = node.read_sizes(index)
            if first.rows not in (None, rows) or any(size.rows is not None for size in rest):
                raise NoRuleError
            needs.append(find_need(node, index, (Size(rows), *rest)))
        else:
            needs.append(None if kind == "rows" and found.has_layout(one) else one if kind == "rows" else WHOLE)
    if "rows" not in takes:
        raise NoRuleError
    return Decision(needs, [{"rows": one, "sum": SUM, "same": WHOLE}[kind] for kind in gives])


def _add_table() -> None:
    for signature, types in TABLE.items():
        takes, gives = ([part.strip() for part in side.split(",")] for side in signature.split("->"))
        add_rules([types], lambda node, takes=takes, gives=gives: follow_table(takes, gives, node))  # type: ignore[misc]


_add_table()


def find_channel_axis(node: Node) -> int:
    is_first = node.read_attribute("data_format", b"NHWC").startswith(b"NC")
    return 1 if is_first else node.count_axes(0) - 1


@register_rule("BiasAdd BiasAddV1")
def add_bias(node: Node) -> Decision:
    one = node.get_placement(0)
    if not one.is_sharded:
        return node.decide_whole()
    if one.axis == find_channel_axis(node):
        raise NoRuleError
    return node.decide([None, WHOLE], shard(*one.layout))


@register_rule("BiasAddGrad")
def sum_channels(node: Node) -> Decision:
    one = node.get_placement(0)
    if not one.is_sharded:
        return keep_figure(node)
    if one.axis == find_channel_axis(node):
        raise NoRuleError
    return node.decide([None], SUM)


@register_rule("Softmax LogSoftmax")
def softmax(node: Node) -> Decision:
    one = node.get_placement(0)
    if not one.is_sharded:
        return node.decide_whole()
    if one.axis == node.count_axes(0) - 1:
        raise NoRuleError
    return node.decide([None], shard(*one.layout))


@register_rule("ImageProjectiveTransformV3")
def transform_images(node: Node) -> Decision:
    found = next((one for one in node.placements if one.is_sharded), None)
    if found is None or found.axis or found.rows.chosen is not None:
        return node.decide_whole()
    one = shard(0, found.rows)
    each = WHOLE if node.read_shape(1)[0] == 1 else one
    return node.decide([one, each, WHOLE, WHOLE], one)


@register_rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def normalize(node: Node) -> Decision | Expansion:
    one, count_outputs = node.get_placement(0), len(node.op.outputs)
    if not one.is_sharded:
        return node.decide_whole()
    if one.axis == find_channel_axis(node):
        raise NoRuleError
    if not node.read_attribute("is_training"):
        return Decision([None, *[WHOLE] * 4], [shard(*one.layout), *[WHOLE] * (count_outputs - 1)])
    return Expansion(_make_norm, (
        find_channel_axis(node), node.count_axes(0), count_outputs, node.read_attribute("epsilon"),
        node.read_attribute("exponential_avg_factor", 1.0)))  # fmt: skip


def _make_norm(
    channels: int, rank: int, count_outputs: int, epsilon: float, factor: float,
    x: Any, scale: Any, offset: Any, mean: Any, variance: Any,
) -> Any:  # fmt: skip
    """The formulas of the fused op, whose statistics are those of all rows."""
    import tensorflow as tf

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
    one, count_outputs = node.get_placement(0), len(node.op.outputs)
    if not node.has_rows:
        return node.decide_whole()
    if one.axis == find_channel_axis(node):
        raise NoRuleError
    return Expansion(_make_norm_backward, (
        find_channel_axis(node), node.count_axes(0), count_outputs, node.read_attribute("epsilon"),
        node.read_attribute("is_training")))  # fmt: skip


def _make_norm_backward(
    channels: int, rank: int, count_outputs: int, epsilon: float, trains: bool,
    dy: Any, x: Any, scale: Any, mean: Any, spread: Any, *_: Any,
) -> Any:  # fmt: skip
    """Ioffe and Szegedy (arXiv 1502.03167), section 3; in inference the statistics are constants."""
    import tensorflow as tf

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
    import tensorflow as tf

    return tf.reshape(vector, [-1 if axis == channels else 1 for axis in range(rank)])
