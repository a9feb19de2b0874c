"""Rules for matrix products: which placements a product needs of its factors, and which one its result has.

A product is linear in each factor. So a product that sums over the rows, of which each rank has some, is a partial sum.
The activations times the weights, `ij,jk->ik` with rows along i, keep the rows. The gradient of the weights,
`ij,ik->jk`, sums over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.rewrite.nodes import Decision, Node, require, require_known
from matex_tf.rewrite.placement import SUM, WHOLE, Sharded
from matex_tf.rewrite.rules.registry import register_rule


def place_product(node: Node, factors: Sequence[Sequence[str]], result: Sequence[str]) -> Decision:
    """The placements of a product. factors: the labels of the axes of each input, as in `tf.einsum`. result: the labels
    of the output's axes. One label is of the rows. An input with this label needs the rows of the first sharded input,
    any other input must be whole. If a tensor has the label twice, the op takes whole tensors (`require`).
    """
    sharded_index, sharded = node.find_input_with_rows(range(len(node.inputs)))
    row_label, rows = factors[sharded_index][sharded.axis], sharded.rows
    require(all(labels.count(row_label) <= 1 for labels in (*factors, result)))
    needs = [
        node.bring_rows(index, Sharded(labels.index(row_label), rows)) if row_label in labels else WHOLE
        for index, labels in enumerate(factors)
    ]
    return node.decide(needs, Sharded(result.index(row_label), rows) if row_label in result else SUM)


@register_rule("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", is_product=True)
def multiply(node: Node) -> Decision:
    """`a @ b` is `...ij,...jk->...ik`; an input may be transposed."""
    transposes = ("transpose_a", "transpose_b") if node.type == "MatMul" else ("adj_x", "adj_y")
    batch_axes = max(node.count_axes(0), node.count_axes(1)) - 2
    labels = [str(axis) for axis in range(-batch_axes, 0)]
    factors = []
    for index, matrix in enumerate(("ij", "jk")):
        own_labels = labels[batch_axes + 2 - node.count_axes(index) :]
        factors.append([*own_labels, *(matrix[::-1] if node.read_attribute(transposes[index]) else matrix)])
    return place_product(node, factors, [*labels, "i", "k"])


@register_rule("Einsum", is_product=True)
def einsum(node: Node) -> Decision:
    equation = node.read_attribute("equation").decode().replace(" ", "")
    input_terms, output_term = equation.split("->")
    factors = [_label_axes(term, node.count_axes(index)) for index, term in enumerate(input_terms.split(","))]
    return place_product(node, factors, _label_axes(output_term, require_known(node.op.outputs[0].shape.rank)))


def _label_axes(term: str, count: int) -> list[str]:
    """The label of each of `count` axes. The axes of an ellipsis are numbered from the end."""
    if "..." not in term:
        return list(term)
    before, after = term.split("...")
    dots = count - len(before) - len(after)
    return [*before, *(f"...{index - dots}" for index in range(dots)), *after]
