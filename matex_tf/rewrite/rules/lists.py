"""Rules for TensorLists, the basis of TensorArrays and of loops' backward passes. All items have one placement."""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import (
    EMPTY,
    LIST,
    SIZES,
    UNUSED,
    WHOLE,
    Placement,
    Size,
    join,
    list_of,
    make_sizes,
    shard,
)
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need


def _make_list(node: Node, item: Placement | None) -> Placement:
    return list_of(item, node.read_attribute("element_dtype"))


def read_list(node: Node) -> Placement:
    """The placement of the items of a list; for an empty list, or one that a loop carries, the placement that it will
    have.
    """
    if node.get_placement(0).kind != LIST:
        raise NoRuleError
    return node.get_placement(0)


@register_rule("EmptyTensorList TensorListReserve")
def make(node: Node) -> Decision:
    """The shape of the items is that of a rank's slice; the number of items is the script's."""

    sizes, rows = node.inputs[0].constant, node.batch_rows

    def emit(shape: Any, count: Any) -> list[Any]:
        if sizes is not None and rows:  # known once the list has an item
            shape = tf.constant(np.where(sizes % rows, sizes, -1), shape.dtype)
        kind = tf.raw_ops.EmptyTensorList if node.type == "EmptyTensorList" else tf.raw_ops.TensorListReserve
        return [kind(**{"element_shape": shape, "element_dtype": node.read_attribute("element_dtype"),
                        "max_num_elements" if node.type == "EmptyTensorList" else "num_elements": count})]  # fmt: skip

    return node.decide([_keep_sizes(node, 0), WHOLE], _make_list(node, None), emit=emit)


@register_rule("TensorListPushBack TensorListSetItem")
def put(node: Node) -> Decision:
    last = len(node.inputs) - 1 if node.type == "TensorListPushBack" else 2
    held, item = read_list(node).item, node.get_placement(last)
    needs: list[Placement | None] = [None] + [WHOLE] * (len(node.inputs) - 1)
    if item.kind == LIST:
        raise NoRuleError
    all_rows = [item.rows] if item.is_sharded else [size.rows for size in item.sizes if size.rows]
    if any(rows.chosen is not None for rows in all_rows):
        item = WHOLE  # the masks of different turns select different rows
    item = item._replace(numbers=None, is_zero=False)
    if held is not None and item.is_replicated and node.has_length(last, held):
        item = held
    elif held is not None:
        item = join(held, item)
        if item != held and not (item.is_replicated and held.is_replicated):
            raise NoRuleError
    needs[last] = None if item.kind == node.get_placement(last).kind and not item.is_replicated else item
    return node.decide(needs, _make_list(node, item))


@register_rule("TensorListGetItem")
def get(node: Node) -> Decision:
    item = read_list(node).item
    return node.decide([None, WHOLE, _keep_sizes(node, 2, item)], item or WHOLE)


def _keep_sizes(node: Node, index: int, item: Placement | None = None) -> Placement | None:
    """The placement to which the input with the shape of the items is brought."""
    if node.get_placement(index).kind == SIZES:
        return None
    constant = node.inputs[index].constant
    if item is None or not item.is_sharded or constant is None or constant.ndim == 0 or constant[item.axis] < 0:
        return WHOLE
    sizes = tuple(Size(None, int(size)) for size in constant)
    return find_need(node, index, (*sizes[: item.axis], Size(item.rows), *sizes[item.axis + 1 :]))


@register_rule("TensorListPopBack")
def pop(node: Node) -> Decision:
    item = read_list(node).item
    return node.decide([None, _keep_sizes(node, 1, item)], node.get_placement(0), item or WHOLE)


@register_rule("TensorListStack")
def stack(node: Node) -> Decision:
    item = read_list(node).item or WHOLE
    after = shard(item.axis + 1, item.rows) if item.is_sharded else item
    return node.decide([None, _keep_sizes(node, 1, item)], after)


@register_rule("TensorListFromTensor")
def unstack(node: Node) -> Decision:
    placement = node.get_placement(0)
    if placement.is_sharded and placement.axis:
        item = shard(placement.axis - 1, placement.rows)
        return node.decide([None, _keep_sizes(node, 1, item)], _make_list(node, item))
    if placement.is_partial:
        return node.decide([None, _keep_sizes(node, 1)], _make_list(node, placement))
    return node.decide([WHOLE, WHOLE], _make_list(node, WHOLE))


@register_rule("TensorListLength TensorListResize")
def measure(node: Node) -> Decision:
    held = read_list(node)
    rest = [WHOLE] * (len(node.inputs) - 1)
    return node.decide([None, *rest], held if node.type == "TensorListResize" else WHOLE)


@register_rule("TensorListElementShape")
def find_item_shape(node: Node) -> Decision:
    """The shape of a rank's items, with -1 for sizes that may vary."""
    item = read_list(node).item
    if item is None or not item.is_sharded:
        return node.decide([None], WHOLE)
    shape = node.outputs[0].shape
    if shape is None or shape[0] is None:
        raise NoRuleError
    return node.decide([None], make_sizes([Size(item.rows if at == item.axis else None) for at in range(shape[0])]))


@register_rule("OptionalNone")
def make_none(node: Node) -> Decision:
    return node.decide([], EMPTY)


@register_rule("FakeParam")
def stand_in(node: Node) -> Decision:
    return node.decide([], UNUSED)


@register_rule("OptionalFromValue")
def wrap(node: Node) -> Decision:
    if len(node.inputs) != 1 or node.get_placement(0).kind == SIZES:
        return Decision([WHOLE] * len(node.inputs), [list_of(WHOLE)])
    return node.decide([None], list_of(node.get_placement(0)))


@register_rule("OptionalGetValue")
def unwrap(node: Node) -> Decision:
    return Decision([None], [read_list(node).item or WHOLE] * len(node.outputs))


@register_rule("OptionalHasValue")
def is_wrapped(node: Node) -> Decision:
    return node.decide([None], WHOLE)
