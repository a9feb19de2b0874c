"""Functions, branches, loops and lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.analysis.placement import (
    DERIVED,
    EMPTY,
    EMPTY_LIST,
    Placement,
    join_placements,
    make_replicated,
    make_unknown,
)
from matex_tf.analysis.rules.registry import SIZES, Node, UnprovedError, register_rule

_TURNS = 8


@register_rule("PartitionedCall", "StatefulPartitionedCall")
def call(node: Node) -> list[Placement]:
    found = node.interpreter.interpret_function(
        node.read_attribute("f").name, node.inputs, node.op
    ).list_output_placements()
    return _hand_on(node, [_renew_choice(node, one, (node.op, one.chosen)) for one in found])


def _renew_choice(node: Node, one: Placement, mark: object) -> Placement:
    """The placement of what a function makes. What chose rows in it chooses others when it is called again."""
    if one.chosen is None or any(one.chosen == given.chosen for given in node.inputs):
        return one
    return one._replace(chosen=mark)


def _hand_on(node: Node, found: Sequence[Placement]) -> list[Placement]:
    """What is derived of figures within a function can be computed anew of its inputs only if those are figures."""
    if all(one.is_figure for one in node.inputs):
        return list(found)
    why = "it derives a number of figures of the rows, within a function that is given rows"
    return [make_unknown(node.op, why) if one.kind == DERIVED else one for one in found]


@register_rule("StatelessIf", "If")
def branch(node: Node) -> list[Placement]:
    return _join_branches(node, [node.read_attribute("then_branch").name, node.read_attribute("else_branch").name])


@register_rule("StatelessCase", "Case")
def case(node: Node) -> list[Placement]:
    return _join_branches(node, [function.name for function in node.op.node_def.attr["branches"].list.func])


def _join_branches(node: Node, names: list[str]) -> list[Placement]:
    if not node.inputs[0].is_same:
        raise UnprovedError("the rows decide which branch is taken")
    found = [
        node.interpreter.interpret_function(name, node.inputs[1:], node.op).list_output_placements() for name in names
    ]
    joined = found[0]
    for other in found[1:]:
        joined = [join_placements(node.op, a, b) for a, b in zip(joined, other)]
    return _hand_on(node, [_renew_choice(node, one, (node.op, one.chosen)) for one in joined])


@register_rule("While", "StatelessWhile")
def loop(node: Node) -> list[Placement]:
    return _hand_on(node, settle_loop(node))


def settle_loop(node: Node) -> list[Placement]:
    """The placements of what a loop's turns hand on, which are the same before and after each of them."""
    carried = [_forget_numbers(one) for one in node.inputs]
    body, condition = node.read_attribute("body").name, node.read_attribute("cond").name
    for _ in range(_TURNS):
        after = node.interpreter.interpret_function(body, carried, node.op).list_output_placements()
        joined = [
            before
            if before == now
            else join_placements(node.op, before, _forget_numbers(_renew_choice(node, now, None)))
            for before, now in zip(carried, after)
        ]
        if joined == carried:
            break
        carried = joined
    else:
        raise UnprovedError("what its turns hand on does not settle")
    if not node.interpreter.interpret_function(condition, carried, node.op).list_output_placements()[0].is_same:
        raise UnprovedError("the rows decide how often it turns")
    return carried


def _forget_numbers(one: Placement) -> Placement:
    """A placement without numbers that change from turn to turn."""
    return one if one.is_mixed else one._replace(elements=None)


@register_rule("TensorListReserve", "EmptyTensorList")
def new_list(node: Node) -> Placement:
    """Of an empty list the placement is that of whatever is put into it."""
    if node.type == "TensorListReserve":
        node.need_same(1)
    return EMPTY_LIST


@register_rule("TensorListSetItem", "TensorListPushBack")
def put(node: Node) -> Placement:
    held, item = node.inputs[0], node.inputs[-1]
    if node.type == "TensorListSetItem":
        node.need_same(1)
        item = node.inputs[2]
    if item.is_mixed or (item.is_sharded and not item.even and item.chosen is None):
        raise UnprovedError(SIZES)
    return join_placements(node.op, held, item._replace(elements=None))


@register_rule("TensorListGetItem", "TensorListPopBack")
def take(node: Node) -> list[Placement]:
    if node.type == "TensorListGetItem":
        node.need_same(1)
        return [node.inputs[0]]
    return [node.inputs[0], node.inputs[0]]


@register_rule("TensorListStack")
def stack(node: Node) -> Placement:
    one = node.inputs[0]
    if one.kind == EMPTY:
        return make_replicated()
    if one.is_sharded and not one.even and one.chosen is None:
        raise UnprovedError("its items are rows that differ from turn to turn")
    return one._replace(axis=one.axis + 1) if one.is_sharded else one


@register_rule("TensorListFromTensor")
def part(node: Node) -> Placement:
    one = node.inputs[0]
    if one.is_mixed:
        raise UnprovedError(SIZES)
    if not one.is_sharded:
        return one._replace(elements=None)
    if one.axis == 0:
        raise UnprovedError("it takes rows out of the batch by their number")
    return one._replace(axis=one.axis - 1)


@register_rule("TensorListLength", "TensorListElementShape")
def about_list(node: Node) -> Placement:
    return make_replicated()


@register_rule("Switch", "RefSwitch")
def switch(node: Node) -> list[Placement]:
    """In graphs of `tf.compat.v1`, what goes into one branch or the other."""
    node.need_same(1)
    return [node.inputs[0], node.inputs[0]]


@register_rule("Merge", "RefMerge")
def merge(node: Node) -> list[Placement]:
    """What comes out of the branch that is taken."""
    found = node.inputs[0]
    for other in node.inputs[1:]:
        found = join_placements(node.op, found, other)
    return [found, make_replicated()]
