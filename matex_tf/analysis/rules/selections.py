"""Parts of tensors that numbers, masks or keys choose: gathers, tables, one-hot vectors."""

from __future__ import annotations

from matex_tf.analysis.placement import PARTIAL, REPLICATED, ROW_NUMBERS, Placement, make_vector
from matex_tf.analysis.rules.arrays import BY_NUMBER
from matex_tf.analysis.rules.registry import (
    FIGURE,
    MEET,
    WEIGHS,
    Node,
    UnprovedError,
    combine_figures,
    find_source,
    need_fit,
    register_rule,
)


@register_rule("GatherV2", "Gather")
def gather(node: Node) -> Placement:
    table, numbers = node.inputs[:2]
    axis, outer = 0, 0
    if node.type == "GatherV2":
        outer = node.read_attribute("batch_dims")
        outer += node.count_axes(1) if outer < 0 else 0
        if table.elements is not None and table.kind == REPLICATED and node.count_axes(0) == 1 and numbers.elements:
            picked = [int(at) for at in node.read_constant(1).reshape(-1)]
            if node.op.outputs[0].shape.rank <= 1:
                return make_vector([table.elements[at] for at in picked])
        axis = node.list_axes(2, node.count_axes(0))[0]
    if numbers.kind == ROW_NUMBERS:
        # Rows that a mask chooses, in their order.
        if axis == outer == 0 and node.count_axes(1) == 1 and _is_numbering(table, numbers):
            return _choose_rows(table, numbers)
        raise UnprovedError(MEET)
    if not table.is_sharded and not numbers.is_sharded:
        if numbers.is_same and table.kind in (REPLICATED, PARTIAL) and not table.is_mixed:
            return table._replace(elements=None)
        return combine_figures(node)
    if numbers.power:
        raise UnprovedError(WEIGHS)
    if not table.is_sharded:
        if table.kind != REPLICATED or table.is_mixed or outer:
            raise UnprovedError(FIGURE)
        return numbers._replace(power=table.power, axis=axis + numbers.axis)
    if not numbers.is_sharded:
        node.need_same(1)
        if outer or table.axis == axis:
            raise UnprovedError(BY_NUMBER)
        return table._replace(axis=table.axis if table.axis < axis else table.axis - 1 + node.count_axes(1))
    need_fit(table, numbers)
    if table.axis == numbers.axis < outer:
        return table
    raise UnprovedError(MEET)


def _is_numbering(table: Placement, numbers: Placement) -> bool:
    """Whether row numbers number the entries of a table's first axis."""
    if not table.is_sharded or table.axis != 0 or table.blocks or not table.even:
        return False
    return table.unit is not None and table.unit == numbers.unit


def _choose_rows(table: Placement, numbers: Placement) -> Placement:
    """The placement of the rows of `table` that row numbers choose."""
    if numbers.even:
        return table
    return table._replace(even=False, unit=None, chosen=numbers.chosen)


@register_rule("GatherNd")
def gather_nd(node: Node) -> Placement:
    table, numbers = node.inputs
    outer = node.read_attribute("batch_dims") if "batch_dims" in node.op.node_def.attr else 0
    if (
        outer == 0
        and table.is_same
        and numbers.is_sharded
        and not numbers.power
        and numbers.axis < node.count_axes(1) - 1
    ):
        return numbers
    if outer == 0 and numbers.kind == ROW_NUMBERS and node.get_shape(1)[1:] == [1] and _is_numbering(table, numbers):
        return _choose_rows(table, numbers)
    if not (table.is_sharded or numbers.is_sharded):
        return combine_figures(node)
    need_fit(table, numbers)
    if table.axis == numbers.axis < outer and not numbers.power:
        return table
    raise UnprovedError(MEET)


@register_rule("Where")
def where(node: Node) -> Placement:
    one = node.inputs[0]
    if one.is_sharded and not one.power and one.even and not one.blocks and node.count_axes(0) == 1:
        return Placement(ROW_NUMBERS, even=False, unit=one.unit, chosen=find_source(node.tensors[0]))
    if one.is_sharded:
        raise UnprovedError("it numbers the rows of the batch")
    return combine_figures(node)


@register_rule("OneHot")
def one_hot(node: Node) -> Placement:
    numbers = node.inputs[0]
    node.need_same(1, 2, 3)
    if not numbers.is_sharded:
        return combine_figures(node)
    if numbers.power:
        raise UnprovedError(WEIGHS)
    axis = node.read_attribute("axis")
    axis = node.count_axes(0) if axis < 0 else axis
    return numbers._replace(axis=numbers.axis + (axis <= numbers.axis))


@register_rule("TopKV2", "InTopKV2", "NthElement")
def largest(node: Node) -> list[Placement]:
    one = node.inputs[0]
    count = len(node.op.outputs)
    if node.type == "InTopKV2":
        labels = node.inputs[1]
        if not one.is_sharded and not labels.is_sharded:
            return [combine_figures(node)]
        need_fit(one, labels)
        node.need_same(2)
        if one.axis or labels.axis or one.power or labels.power:
            raise UnprovedError(MEET)
        return [one]
    if not one.is_sharded:
        return [combine_figures(node)] * count
    node.need_same(1)
    if one.axis == node.count_axes(0) - 1 or one.power:
        raise UnprovedError(MEET)
    return [one] * count


@register_rule("ResourceGather")
def look_up(node: Node) -> Placement:
    """Rows of a variable."""
    table, numbers = node.inputs
    held = node.interpreter.find_variable_placement(node.tensors[0])
    if node.read_attribute("batch_dims") or not table.is_same:
        raise UnprovedError(MEET)
    if numbers.is_same:
        return held
    if held.is_same and numbers.is_sharded and not numbers.power:
        return numbers
    raise UnprovedError(FIGURE)


@register_rule("ResourceGatherNd")
def look_up_nd(node: Node) -> Placement:
    table, numbers = node.inputs
    held = node.interpreter.find_variable_placement(node.tensors[0])
    if table.is_same and numbers.is_same:
        return held
    is_row = numbers.is_sharded and not numbers.power and numbers.axis < node.count_axes(1) - 1
    if table.is_same and held.is_same and is_row:
        return numbers
    raise UnprovedError(FIGURE)


@register_rule("LookupTableFindV2", "LookupTableFind")
def find_in_table(node: Node) -> Placement:
    node.need_same(0, 2)
    one = node.inputs[1]
    if one.power:
        raise UnprovedError(WEIGHS)
    if one.is_sharded or one.is_same:
        return one._replace(elements=None)
    raise UnprovedError(FIGURE)


@register_rule("LowerBound", "UpperBound")
def search_sorted(node: Node) -> Placement:
    table, values = node.inputs
    if not (table.is_sharded or values.is_sharded):
        return combine_figures(node)
    if values.power or table.power:
        raise UnprovedError(WEIGHS)
    if table.is_same and values.axis == 1 and node.get_shape(0)[0] == 1:
        return values
    need_fit(table, values)
    if table.axis == values.axis == 0:
        return values
    raise UnprovedError(MEET)
