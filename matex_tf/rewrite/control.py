"""Rules for `tf.cond`, `tf.switch_case` and `tf.while_loop`. Each branch and loop body is a program of its own.

Conditions become whole, so all ranks take the same branch, and the same number of turns of a loop. An output needs one
placement whichever branch was taken, and a variable of a loop needs one before and after each turn. For example, if one
branch returns a partial sum and the other a constant, the output is a partial sum: rank 0 keeps the constant, the other
ranks have 0.
"""

from __future__ import annotations

import functools
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.functions import find_callee
from matex_tf.rewrite.graph_ops import list_functions
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError, Value
from matex_tf.rewrite.placement import LIST, PARTIAL, PIECE, REPLICATED, SHARDED, SIZES, WHOLE, Placement, join, list_of

MAX_READINGS = 12
"""How often the body of a loop is read at most, until its output placements equal its input placements."""


def needs_exchange(placement: Placement, need: Placement | None) -> bool:
    """Whether a collective is needed to bring a tensor from `placement` to `need`; None: it stays as it is."""
    if placement.kind == REPLICATED or need is None:
        return False
    if placement.kind == PARTIAL:
        return need.kind != PARTIAL
    if placement.kind in (SHARDED, PIECE):
        return not placement.has_layout(need)
    if placement.kind == SIZES:  # a rank does not know how many rows a mask has selected on the others
        return any(size.rows is not None and size.rows.chosen is not None for size in placement.sizes)
    if placement.kind == LIST:
        item, needed_item = (each.item if each.kind == LIST else None for each in (placement, need))
        return item != needed_item and needs_exchange(item or WHOLE, WHOLE)
    return False


def strip_placement(placement: Placement) -> Placement:
    """Remove the parts of a placement that hold within one turn or branch only."""
    if placement.kind == LIST and placement.item is not None:
        return list_of(strip_placement(placement.item), placement.dtype)
    return placement._replace(index_rows=None, is_zero=False)


def strip_slice(placement: Placement) -> Placement:
    """Remove from the placement of an output all that depends on the slice of a batch which the body took by itself."""
    stripped = strip_placement(placement)
    if stripped.feed is not None:
        return stripped
    if stripped.kind == LIST and (stripped.item is None or stripped.item.is_replicated):
        return stripped
    return WHOLE


def place_branches(reader: Any, node: Node) -> Decision:
    """`tf.cond` and `tf.switch_case`: where branches give an output different placements, each converts it to one."""
    values = node.inputs[1:]
    placements, constants = [value.placement for value in values], [value.constant for value in values]
    names, has_condition = list_functions(node.definition), node.type in ("If", "StatelessIf")
    if has_condition:
        names.reverse()  # else_branch comes first by name, and last for `tf.cond`
    node.bodies = [
        reader.read(find_callee(node.op, name, list(node.op.inputs)[1:]), placements, (*node.key, index), constants)
        for index, name in enumerate(names)
    ]
    gives = [_join_branches(node, index) for index in range(len(node.outputs))]
    for body in node.bodies:
        body.gives = gives

    def emit(copy: Any, index: Any, *arguments: Any) -> list[Any]:
        def run(body: Any) -> Any:
            return copy.build(body, arguments, body.gives) or [tf.constant(0)]  # a tensor for which ops can wait

        branches = [functools.partial(run, body) for body in node.bodies]
        outputs = tf.cond(tf.cast(index, tf.bool), *branches) if has_condition else tf.switch_case(index, branches)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    return Decision([WHOLE, *[None] * len(values)], gives, emit)


def _join_branches(node: Node, index: int) -> Placement:
    """The placement of an output to which each branch can be brought."""
    placements = [strip_placement(body.outputs[index].placement) for body in node.bodies]
    joined = functools.reduce(join, placements)
    if any(body.takes_batch for body in node.bodies):
        joined = strip_slice(joined)
    elif joined.is_sharded and joined.rows.chosen is not None:  # a mask of one branch means nothing outside
        joined = WHOLE
    if any(
        needs_exchange(placement, joined) and placement.kind == LIST and placement.dtype is None
        for placement in placements
    ):
        raise NoRuleError  # residuals of different branches cannot be combined
    return joined


def place_loop(reader: Any, node: Node) -> Decision:
    """`tf.while_loop`: finds placements of the loop variables that a turn preserves.

    The body is read with the placements that the variables have before the loop. If a turn changes the placement of a
    variable, the variable gets one to which both can be brought, and the body is read again, until none changes.
    """
    cond_name, body_name = (node.read_attribute(name).name for name in ("cond", "body"))
    body_graph, inputs = find_callee(node.op, body_name), node.inputs
    # For each loop variable: whether a turn leaves it unchanged, its placement, and whether that placement is final.
    are_kept = [output is tensor for tensor, output in zip(body_graph.inputs, body_graph.outputs, strict=True)]
    constants = [value.constant if is_kept else None for value, is_kept in zip(inputs, are_kept)]
    carried = [_find_start(value, is_kept) for value, is_kept in zip(inputs, are_kept)]
    are_fixed = are_kept
    for _ in range(MAX_READINGS):
        body = reader.read_turn(body_graph, carried, (*node.key, "body"), constants)
        strip = strip_slice if body.takes_batch else strip_placement
        results = [strip(value.placement) for value in body.outputs]
        # First, variables that can be carried in slices get slices, since other placements may follow from these.
        can_slice = map(_can_slice, inputs, carried, body.outputs, results)
        new = [
            result if is_sliced and not is_fixed else old
            for old, result, is_sliced, is_fixed in zip(carried, results, can_slice, are_fixed)
        ]
        if new == carried:  # no slice was added: join the placements of all variables
            new = [old if is_fixed else join(old, result) for old, result, is_fixed in zip(carried, results, are_fixed)]
        if new == carried:
            break
        # A variable that became whole stays whole; otherwise its placement could change back and forth.
        are_fixed = [
            is_fixed or (placement == WHOLE and not old.is_replicated)
            for old, placement, is_fixed in zip(carried, new, are_fixed)
        ]
        carried = new
    else:
        raise NoRuleError
    condition = reader.read(find_callee(node.op, cond_name), carried, (*node.key, "cond"), constants)
    condition.gives, body.gives = [WHOLE], carried
    node.bodies = [condition, body]
    turns = node.read_attribute("parallel_iterations", 10)

    def emit(copy: Any, *arguments: Any) -> list[Any]:
        outputs = tf.while_loop(
            lambda *variables: copy.build(condition, variables, condition.gives)[0],
            lambda *variables: copy.build(body, variables, body.gives),
            list(arguments),
            shape_invariants=[tf.TensorShape(value.shape) for value in body.inputs],
            parallel_iterations=turns,
        )
        return list(outputs)

    needs = [None if placement == value.placement else placement for placement, value in zip(carried, inputs)]
    return Decision(needs, carried, emit)


def _find_start(value: Value, is_kept: bool) -> Placement:
    """The placement in which a loop variable enters the loop. is_kept: a turn leaves it unchanged."""
    placement = value.placement
    if placement.is_piece:
        return WHOLE
    if is_kept:
        return placement
    if placement.is_sharded and placement.rows.chosen is not None:
        return WHOLE
    # A loop variable that begins as zeros may be a partial sum, such as a gradient that each turn adds to.
    return strip_placement(placement)._replace(is_zero=placement.is_zero)


def _can_slice(first: Value, before: Placement, result: Value, after: Placement) -> bool:
    """Whether the loop can carry slices of a replicated loop variable whose length is the number of rows.

    first: the variable before the loop.
    before: its placement before a turn.
    result: the variable after a turn.
    after: the placement of `result`.
    """
    if not before.is_replicated or not after.is_sharded or after.rows.chosen is not None:
        return False
    lengths = [None if value.whole_shape is None else value.whole_shape[after.axis] for value in (first, result)]
    return lengths[0] is not None and lengths[0] == lengths[1]


FLOW = {
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), place_branches),
    **dict.fromkeys(("While", "StatelessWhile"), place_loop),
}
