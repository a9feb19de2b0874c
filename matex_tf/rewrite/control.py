"""Rules for `tf.cond`, `tf.switch_case` and `tf.while_loop`. Each branch and loop body is a program of its own.

Conditions become whole, so all ranks take the same branch, and make the same number of turns of a loop. An output of a
branch op must have one placement, whichever branch runs. A loop variable must have one placement before and after each
turn. For example, if one branch returns a partial sum and the other a constant, the output is a partial sum: rank 0
keeps the constant, the other ranks have 0.

`reader`, a `propagate.Reader`, reads a body. The placements in which a body must return its outputs are its `gives`.
"""

from __future__ import annotations

import functools
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.functions import find_callee
from matex_tf.rewrite.graph_ops import BRANCHES, list_functions
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError, Value
from matex_tf.rewrite.placement import (
    WHOLE,
    FedHandle,
    ItemList,
    Piece,
    Placement,
    Replicated,
    Sharded,
    Zeros,
    drop_facts,
    join,
)

MAX_READINGS = 12
"""The body of a loop is read until its output placements equal its input placements, at most so often."""


def _drop_inner_slice(placement: Placement) -> Placement:
    """The placement of an output of a body that takes a batch itself: whole, because the slice ends with the body.

    Iterators with a feed, which gives each rank its rows of a batch (`feeds`), and lists of whole items do not depend
    on the slice.
    """
    outer = drop_facts(placement)
    is_whole_list = isinstance(outer, ItemList) and not outer.has_parts
    return outer if isinstance(outer, FedHandle) or is_whole_list else WHOLE


def place_branches(reader: Any, node: Node) -> Decision:
    """`tf.cond` and `tf.switch_case`: each branch brings an output to the placement that all branches can give it."""
    values = node.inputs[1:]
    placements, constants = [value.placement for value in values], [value.constant for value in values]
    names, has_condition = list_functions(node.definition), node.type in ("If", "StatelessIf")
    if has_condition:
        names.reverse()  # `names` begins with the attribute else_branch; `tf.cond` takes then_branch first
    node.bodies = [
        reader.read(find_callee(node.op, name, list(node.op.inputs)[1:]), placements, (*node.key, index), constants)
        for index, name in enumerate(names)
    ]
    gives = [_join_branches(node, index) for index in range(len(node.outputs))]
    for body in node.bodies:
        body.gives = gives

    def emit(copy: Any, index: Any, *arguments: Any) -> list[Any]:
        def build_branch(body: Any) -> Any:
            return copy.build(body, arguments) or [tf.constant(0)]  # without outputs: a tensor to wait for

        branches = [functools.partial(build_branch, body) for body in node.bodies]
        outputs = tf.cond(tf.cast(index, tf.bool), *branches) if has_condition else tf.switch_case(index, branches)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    return Decision([WHOLE, *[None] * len(values)], gives, emit)


def _join_branches(node: Node, index: int) -> Placement:
    """The placement of an output to which each branch can be brought."""
    placements = [drop_facts(body.outputs[index].placement) for body in node.bodies]
    joined = functools.reduce(join, placements)
    if any(body.takes_batch for body in node.bodies):
        joined = _drop_inner_slice(joined)
    elif isinstance(joined, Sharded) and joined.rows.chosen is not None:  # rows that a mask of one branch has selected
        joined = WHOLE
    for placement in placements:
        # A residual, a tensor that a branch keeps for its gradient, is an optional, placed as a list without a dtype.
        # No collective can make it whole.
        is_optional = isinstance(placement, ItemList) and placement.dtype is None
        if is_optional and placement.needs_exchange(joined):
            raise NoRuleError
    return joined


def place_loop(reader: Any, node: Node) -> Decision:
    """`tf.while_loop`: finds placements of the loop variables that a turn preserves.

    The body is read with the placements that the variables have before the loop. If a turn changes the placement of a
    variable, the variable gets one to which both can be brought, and the body is read again, until none changes.
    """
    cond_name, body_name = (node.read_attribute(name).name for name in ("cond", "body"))
    body_graph, inputs = find_callee(node.op, body_name), node.inputs
    # For each loop variable: whether a turn leaves it unchanged (`are_kept`), the placement in which turns begin and
    # end with it (`carried`), and whether this placement is final (`are_fixed`).
    are_kept = [output is tensor for tensor, output in zip(body_graph.inputs, body_graph.outputs, strict=True)]
    constants = [value.constant if is_kept else None for value, is_kept in zip(inputs, are_kept)]
    carried = [_find_start(value, is_kept) for value, is_kept in zip(inputs, are_kept)]
    are_fixed = are_kept
    for _ in range(MAX_READINGS):
        body = reader.read(body_graph, carried, (*node.key, "body"), constants, repeats=True)
        drop_inner = _drop_inner_slice if body.takes_batch else drop_facts
        result_placements = [drop_inner(value.placement) for value in body.outputs]
        # First, variables that can be carried in rows get rows, since placements of other variables may follow.
        get_rows = map(_can_carry_rows, inputs, carried, body.outputs, result_placements)
        new_placements = [
            result_placement if gets_rows and not is_fixed else old_placement
            for old_placement, result_placement, gets_rows, is_fixed in zip(
                carried, result_placements, get_rows, are_fixed
            )
        ]
        if new_placements == carried:  # no variable got rows: join the placements of all variables
            new_placements = [
                old_placement if is_fixed else join(old_placement, result_placement)
                for old_placement, result_placement, is_fixed in zip(carried, result_placements, are_fixed)
            ]
        if new_placements == carried:
            break
        # A variable that has become whole stays whole. Otherwise its placement could change back and forth.
        are_fixed = [
            is_fixed or (placement == WHOLE and not isinstance(old_placement, Replicated))
            for old_placement, placement, is_fixed in zip(carried, new_placements, are_fixed)
        ]
        carried = new_placements
    else:
        raise NoRuleError
    condition = reader.read(find_callee(node.op, cond_name), carried, (*node.key, "cond"), constants)
    condition.gives, body.gives = [WHOLE], carried
    node.bodies = [condition, body]
    parallel_turns = node.read_attribute("parallel_iterations", 10)

    def emit(copy: Any, *arguments: Any) -> list[Any]:
        outputs = tf.while_loop(
            lambda *variables: copy.build(condition, variables)[0],
            lambda *variables: copy.build(body, variables),
            list(arguments),
            shape_invariants=[tf.TensorShape(value.shape) for value in body.inputs],
            parallel_iterations=parallel_turns,
        )
        return list(outputs)

    needs = [None if placement == value.placement else placement for placement, value in zip(carried, inputs)]
    return Decision(needs, carried, emit)


def _find_start(value: Value, is_kept: bool) -> Placement:
    """The placement in which a loop variable enters the first turn. is_kept: a turn leaves it unchanged."""
    placement = value.placement
    if isinstance(placement, Piece):
        return WHOLE
    # A loop variable that begins as zeros may be a partial sum, such as a gradient that each turn adds to.
    if is_kept or isinstance(placement, Zeros):
        return placement
    # A mask may select other rows in each turn.
    return WHOLE if isinstance(placement, Sharded) and placement.rows.chosen is not None else drop_facts(placement)


def _can_carry_rows(initial: Value, placement_before: Placement, result: Value, placement_after: Placement) -> bool:
    """Whether the loop can carry a rank's rows of a loop variable that is replicated, and of which a turn returns rows.

    The variable is sliced before the first turn. So its length there must be fixed, and equal its length after a turn.

    initial: the variable before the loop.
    placement_before: its placement before a turn.
    result: the variable after a turn.
    placement_after: the placement of `result`.
    """
    if not isinstance(placement_before, Replicated) or not isinstance(placement_after, Sharded):
        return False
    if placement_after.rows.chosen is not None:
        return False
    lengths = [
        None if value.whole_shape is None else value.whole_shape[placement_after.axis] for value in (initial, result)
    ]
    return lengths[0] is not None and lengths[0] == lengths[1]


FLOW = {
    **dict.fromkeys(BRANCHES, place_branches),
    **dict.fromkeys(("While", "StatelessWhile"), place_loop),
}
