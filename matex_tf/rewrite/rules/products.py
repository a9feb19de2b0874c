"""Rules for matrix products: linear in each factor; a sum over the rows is a partial sum."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import SUM, WHOLE, shard
from matex_tf.rewrite.rules.registry import register_rule


def place_product(node: Node, terms: Sequence[Sequence[str]], result: Sequence[str]) -> Decision:
    """The placements of a product whose inputs have axes with these labels, as in `tf.einsum`."""
    first = next((index for index, placement in enumerate(node.placements) if placement.is_sharded), None)
    if first is None:
        raise NoRuleError
    label, rows = terms[first][node.get_placement(first).axis], node.get_placement(first).rows
    if any(labels.count(label) > 1 for labels in terms):
        raise NoRuleError
    needs = [
        node.bring_rows(index, shard(labels.index(label), rows)) if label in labels else WHOLE
        for index, labels in enumerate(terms)
    ]
    return node.decide(needs, shard(result.index(label), rows) if label in result else SUM)


@register_rule("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", is_product=True)
def multiply(node: Node) -> Decision:
    names = ("transpose_a", "transpose_b") if node.type == "MatMul" else ("adj_x", "adj_y")
    inner = [["rows", "sum"], ["sum", "columns"]]
    terms = []
    for index, name in enumerate(names):
        outer = [str(axis) for axis in range(2 - node.count_axes(index), 0)]
        last = inner[index][::-1] if node.read_attribute(name) else inner[index]
        terms.append([*outer, *last])
    outer = max((term[:-2] for term in terms), key=len)
    return place_product(node, terms, [*outer, "rows", "columns"])


@register_rule("Einsum", is_product=True)
def einsum(node: Node) -> Decision:
    equation = node.read_attribute("equation").decode().replace(" ", "")
    left, right = equation.split("->")
    terms = [_label_axes(term, node.count_axes(index)) for index, term in enumerate(left.split(","))]
    count = node.op.outputs[0].shape.rank
    if count is None:
        raise NoRuleError
    return place_product(node, terms, _label_axes(right, count))


def _label_axes(term: str, count: int) -> list[str]:
    """The label of each axis; the axes of an ellipsis are numbered from the end."""
    if "..." not in term:
        return list(term)
    before, after = term.split("...")
    dots = count - len(before) - len(after)
    return [*before, *(f"...{index - dots}" for index in range(dots)), *after]
