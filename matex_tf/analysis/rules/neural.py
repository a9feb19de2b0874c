"""Layers' ops, of which each row of the batch is computed by itself: rows are the first axis."""

from __future__ import annotations

from matex_tf.analysis.placement import REPLICATED, SHARDED, Placement, make_partial, make_replicated, make_unknown
from matex_tf.analysis.rules.arithmetic import add_inputs
from matex_tf.analysis.rules.registry import (
    FIGURE,
    FIXED,
    MEET,
    WEIGHS,
    Node,
    UnprovedError,
    combine_figures,
    need_fit,
    register_rule,
)


def _keep_rows(node: Node, linear: bool = False) -> Placement:
    """Rows along the first axis of the first input, everything else the same on all ranks."""
    one, *others = node.inputs
    if not one.is_sharded:
        return combine_figures(node)
    if one.axis != 0:
        raise UnprovedError(MEET)
    if one.power and not linear:
        raise UnprovedError(WEIGHS)
    for other in others:
        if not other.is_same:
            raise UnprovedError(MEET if other.is_sharded else FIGURE)
    return one


@register_rule("Conv", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "AvgPool", "AvgPool3D", "DepthToSpace",
    "SpaceToDepth",
      "ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea", "ExtractImagePatches",
      "ImageProjectiveTransformV3", "ScaleAndTranslate")  # fmt: skip
def linear_of_rows(node: Node) -> Placement:
    if node.type == "ImageProjectiveTransformV3":
        return _transform_images(node)
    return _keep_rows(node, linear=True)


@register_rule("MaxPool", "MaxPoolV2", "MaxPool3D", "LRN", "Dilation2D", "QuantizeAndDequantizeV2",
    "QuantizeAndDequantizeV3",
      "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxArgs", "RGBToHSV", "HSVToRGB", "DecodeRaw")  # fmt: skip
def of_rows(node: Node) -> Placement:
    given = "range_given" not in node.op.node_def.attr or node.read_attribute("range_given")
    if not given and node.inputs[0].is_sharded:
        raise UnprovedError("it takes the least and the most of the whole batch")
    return _keep_rows(node)


def _transform_images(node: Node) -> Placement:
    images, transforms, *others = node.inputs
    if not transforms.is_sharded:
        if images.is_sharded and node.get_shape(1)[0] != 1:
            raise UnprovedError(FIXED)
        return _keep_rows(node)
    for other in others:
        if not other.is_same:
            raise UnprovedError(FIGURE)
    need_fit(images, transforms)
    if images.axis or transforms.axis or images.power or transforms.power:
        raise UnprovedError(MEET)
    return images


@register_rule("AdjustContrastv2", "AdjustHue", "AdjustSaturation")
def adjust(node: Node) -> Placement:
    one, factor = node.inputs
    if not one.is_sharded:
        return _keep_rows(node)
    if one.power or not factor.is_same or one.axis >= node.count_axes(0) - 3:
        raise UnprovedError(MEET)
    return one


@register_rule("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def transposed_convolution(node: Node) -> Placement:
    sizes, filters, rows = node.inputs
    if not rows.is_sharded:
        return combine_figures(node)
    if rows.axis != 0 or not rows.even or sizes.elements is None or sizes.elements[0].power != -1:
        raise UnprovedError("it names the number of rows of its batch" if rows.axis == 0 else MEET)
    if any(size.power != 0 for size in sizes.elements[1:]) or filters.kind != REPLICATED or filters.is_mixed:
        raise UnprovedError(FIGURE)
    return rows._replace(power=rows.power + filters.power)


@register_rule("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
def filter_gradient(node: Node) -> Placement:
    first, _, second = node.inputs
    if not (first.is_sharded or second.is_sharded):
        return combine_figures(node)
    node.need_same(1)
    need_fit(first, second)
    if first.axis or second.axis:
        raise UnprovedError(MEET)
    return make_partial(first.power + second.power)


def _find_channel_axis(node: Node) -> int:
    is_first = "data_format" in node.op.node_def.attr and node.read_attribute("data_format").startswith(b"NC")
    return 1 if is_first else node.count_axes(0) - 1


@register_rule("MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad")
def pooled_gradient(node: Node) -> Placement:
    found = node.inputs[:3]
    if not any(one.is_sharded for one in found):
        return combine_figures(node)
    need_fit(*found)
    if any(one.axis for one in found) or any(one.power for one in found[:2]):
        raise UnprovedError(MEET)
    return found[2]


@register_rule("AvgPoolGrad", "AvgPool3DGrad")
def averaged_gradient(node: Node) -> Placement:
    sizes, rows = node.inputs
    if not rows.is_sharded:
        return combine_figures(node)
    entries = sizes.elements or ()
    if rows.axis or not rows.even or not entries or entries[0].power != -1 or any(one.power for one in entries[1:]):
        raise UnprovedError(MEET)
    return rows


@register_rule("BiasAdd", "BiasAddV1")
def bias(node: Node) -> Placement:
    one, vector = node.inputs
    if not one.is_sharded:
        if vector.is_sharded:
            raise UnprovedError(FIXED)
        return add_inputs(node)
    powers = {other.power for other in node.inputs if not other.zero}
    if vector.kind != REPLICATED or vector.is_mixed or len(powers) > 1:
        raise UnprovedError(FIGURE)
    if one.axis == _find_channel_axis(node):
        raise UnprovedError(FIXED)
    return one._replace(power=powers.pop() if powers else 0)


@register_rule("BiasAddGrad")
def bias_gradient(node: Node) -> Placement:
    """The sum over all axes but that of the channels."""
    one = node.inputs[0]
    if one.kind not in (SHARDED, REPLICATED) or one.is_mixed:
        return combine_figures(node)
    if not one.is_sharded:
        return one
    if one.axis == _find_channel_axis(node):
        raise UnprovedError(MEET)
    return make_partial(one.power)


@register_rule("Softmax", "LogSoftmax", shaped_alike=True)
def softmax(node: Node) -> Placement:
    one = node.inputs[0]
    if not one.is_sharded:
        return combine_figures(node)
    if one.axis == node.count_axes(0) - 1:
        raise UnprovedError(MEET)
    if one.power:
        raise UnprovedError(WEIGHS)
    return one


@register_rule("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def cross_entropy(node: Node) -> list[Placement]:
    first, second = node.inputs
    if not (first.is_sharded or second.is_sharded):
        return [combine_figures(node)] * 2
    if not (first.is_sharded and second.is_sharded):
        raise UnprovedError(FIXED)
    need_fit(first, second)
    if first.axis or second.axis:
        raise UnprovedError(MEET)
    if first.power or second.power:
        raise UnprovedError(WEIGHS)
    return [first, first]


@register_rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_normalization(node: Node) -> list[Placement]:
    one = node.inputs[0]
    count = len(node.op.outputs)
    if not node.read_attribute("is_training"):
        # Of the statistics, outputs 3 and 4 are for training only: nobody writes them, so they hold what lay there.
        unwritten = make_unknown(node.op, "it is not written")
        same = make_replicated() if one.is_sharded else _keep_rows(node)
        return [_keep_rows(node), same, same, unwritten, unwritten, *[same] * (count - 5)]
    if not one.is_sharded:
        return [_keep_rows(node)] * count
    if one.axis == _find_channel_axis(node):
        # Each row is a channel, as in layer normalization: it is normalised by itself.
        scale, offset = node.inputs[1:3]
        need_fit(one, scale, offset)
        if one.power or scale.power or offset.power:
            raise UnprovedError(WEIGHS)
        return [one, *[one._replace(axis=0)] * 4, *[make_replicated()] * (count - 5)]
    raise UnprovedError("it normalises by the statistics of the batch")


@register_rule("CTCLossV2", "CTCLoss")
def of_sequences(node: Node) -> list[Placement]:
    raise UnprovedError("its rows are sparse")


@register_rule("CropAndResize")
def crop(node: Node) -> Placement:
    if all(one.is_same for one in node.inputs):
        return make_replicated()
    raise UnprovedError("it takes rows out of the batch by their number")
