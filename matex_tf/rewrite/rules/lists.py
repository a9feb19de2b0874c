"""Rules for TensorLists, which TensorArrays and the backward passes of loops use, and for optionals.

All items of a list have one placement, `ItemList.item`. An optional is placed like a list of one item. A rank's list
has as many items as the script's; an item with rows has the rank's rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import (
    UNUSED,
    WHOLE,
    ItemList,
    Placement,
    Replicated,
    Sharded,
    Size,
    Sizes,
    drop_facts,
    join,
)
from matex_tf.rewrite.rules.registry import register_rule
from matex_tf.rewrite.rules.sizes import find_need


def _make_list(node: Node, item: Placement | None) -> Placement:
    return ItemList(item, node.read_attribute("element_dtype"))


def _read_item(node: Node) -> Placement | None:
    """The placement of the items of the list that the op takes; None: the list is empty."""
    return node.require_kind(0, ItemList).item


@register_rule("EmptyTensorList TensorListReserve")
def make(node: Node) -> Decision:
    """A list without items: `ItemList.item` is None until an op puts an item in."""
    sizes, rows = node.inputs[0].constant, node.batch_rows or 1
    count_name = "max_num_elements" if node.type == "EmptyTensorList" else "num_elements"

    def emit(_: Any, shape: Any, count: Any) -> list[Any]:
        # A size that is a multiple of the number of rows may count rows, and be another one on a rank: it is left open,
        # as is each size if the number of rows is not fixed (`rows` is 1).
        if sizes is not None:
            shape = tf.constant(np.where(sizes % rows, sizes, -1), shape.dtype)
        attributes = {"element_dtype": node.read_attribute("element_dtype"), count_name: count}
        return [getattr(tf.raw_ops, node.type)(element_shape=shape, **attributes)]

    return node.decide([_keep_sizes(node, 0)], _make_list(node, None), emit=emit)


@register_rule("TensorListPushBack TensorListSetItem")
def put(node: Node) -> Decision:
    item_input = 1 if node.type == "TensorListPushBack" else 2
    old_item, item = _read_item(node), node.get_placement(item_input)
    require(not isinstance(item, ItemList))
    sizes = item.sizes if isinstance(item, Sizes) else [Size(item.rows)] if isinstance(item, Sharded) else []
    # The masks of different turns select different rows.
    item = WHOLE if any(size.counts_chosen for size in sizes) else drop_facts(item)
    # The first item of a list gives the list its placement. Of a later item there are two cases:
    # - A whole item for a list of rows, with as many entries as the ranks have together: it is sliced.
    # - Any other item: it can be brought to the placement of the old items, or both are whole. Else no rule applies.
    if isinstance(old_item, Sharded) and isinstance(item, Replicated) and node.has_length(item_input, old_item):
        item = old_item
    elif old_item is not None:
        item = join(old_item, item)
        require(item == old_item or (isinstance(item, Replicated) and isinstance(old_item, Replicated)))
    is_unchanged = type(item) is type(node.get_placement(item_input)) and not isinstance(item, Replicated)
    index_needs = [WHOLE] * (item_input - 1)  # TensorListSetItem has an index between list and item
    return node.decide([None, *index_needs, None if is_unchanged else item], _make_list(node, item))


@register_rule("TensorListGetItem")
def get(node: Node) -> Decision:
    item = _read_item(node)
    return node.decide([None, WHOLE, _keep_sizes(node, 2, item)], item or WHOLE)


def _keep_sizes(node: Node, index: int, item: Placement | None = None) -> Placement | None:
    """The placement to which input `index`, the shape of the items, is brought; None: unchanged. item: of the list."""
    if isinstance(node.get_placement(index), Sizes):
        return None
    constant = node.inputs[index].constant
    # The shape is needed as it is, unless it fixes the number of rows of the items.
    if not isinstance(item, Sharded) or constant is None or constant.ndim == 0 or constant[item.axis] < 0:
        return WHOLE
    sizes = [Size(None, int(size)) for size in constant]
    sizes[item.axis] = Size(item.rows)
    return find_need(node, index, tuple(sizes))


@register_rule("TensorListPopBack")
def pop(node: Node) -> Decision:
    item = _read_item(node)
    return node.decide([None, _keep_sizes(node, 1, item)], node.get_placement(0), item or WHOLE)


@register_rule("TensorListStack")
def stack(node: Node) -> Decision:
    item = _read_item(node) or WHOLE
    require(not isinstance(item, Sizes))  # a matrix of sizes has no placement
    stacked = Sharded(item.axis + 1, item.rows) if isinstance(item, Sharded) else item
    return node.decide([None, _keep_sizes(node, 1, item)], stacked)


@register_rule("TensorListFromTensor")
def unstack(node: Node) -> Decision:
    placement = node.get_placement(0)
    if isinstance(placement, Sharded) and placement.axis:
        item = Sharded(placement.axis - 1, placement.rows)
        return node.decide([None, _keep_sizes(node, 1, item)], _make_list(node, item))
    if placement.is_row_sum:
        return node.decide([None, _keep_sizes(node, 1)], _make_list(node, placement))
    return node.decide([], _make_list(node, WHOLE))


@register_rule("TensorListLength TensorListResize")
def measure(node: Node) -> Decision:
    _read_item(node)
    return node.decide([None], node.get_placement(0) if node.type == "TensorListResize" else WHOLE)


@register_rule("TensorListElementShape")
def find_item_shape(node: Node) -> Decision:
    """The shape of a rank's items, with -1 for sizes that may vary."""
    item = _read_item(node)
    if not isinstance(item, Sharded):
        return node.decide([None], WHOLE)
    sizes = [Size()] * require_known(require_known(node.outputs[0].shape)[0])
    sizes[item.axis] = Size(item.rows)
    return node.decide([None], Sizes(tuple(sizes)))


@register_rule("OptionalFromValue")
def wrap(node: Node) -> Decision:
    """A single value keeps its placement in the optional. Several values, and sizes, are brought to whole tensors."""
    is_kept = len(node.inputs) == 1 and not isinstance(node.get_placement(0), Sizes)
    return node.decide([None], ItemList(node.get_placement(0))) if is_kept else node.decide([], ItemList(WHOLE))


register_rule("OptionalNone")(lambda node: node.decide([], ItemList(None)))
register_rule("OptionalGetValue")(lambda node: node.decide([None], _read_item(node) or WHOLE))
register_rule("OptionalHasValue")(lambda node: node.decide([None], WHOLE))
register_rule("FakeParam")(lambda node: node.decide([], UNUSED))  # stands for a residual of a branch that does not run
