"""Branches and loops. Each body is copied for the placements of its inputs; all ranks take the same
branch and turns.
"""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.functions import find_callee
from matex_tf.rewrite.nodes import Decision, Node, NoRuleError
from matex_tf.rewrite.placement import (
    LIST,
    PARTIAL,
    PIECE,
    REPLICATED,
    SHARDED,
    SIZES,
    WHOLE,
    Placement,
    join,
    list_of,
)
from matex_tf.rewrite.rules.sizes import mark_taker

MOST_TURNS = 12
"""The most times that the body of a loop is read until its output placements equal its input placements."""


def needs_exchange(placement: Placement, need: Placement | None) -> bool:
    """Whether a collective is needed to bring a tensor from one placement to another. None: it stays as it is."""
    if placement.kind == REPLICATED or need is None:
        return False
    if placement.kind == PARTIAL:
        return need.kind != PARTIAL
    if placement.kind in (SHARDED, PIECE):
        return not placement.has_layout(need)
    if placement.kind == SIZES:
        return any(size.rows is not None and size.rows.chosen is not None for size in placement.sizes)
    return placement.kind == LIST and is_other_list(placement, need) and needs_exchange(placement.item or WHOLE, WHOLE)


def is_other_list(placement: Placement, need: Placement) -> bool:
    """Whether the items of a list must change their placement."""
    wanted = (need.item or WHOLE) if need.kind == LIST else WHOLE
    return placement.item not in (None, wanted) and not (placement.item or WHOLE).is_replicated


def strip_placement(placement: Placement) -> Placement:
    """Remove the parts of a placement that hold within one turn or branch only."""
    if placement.kind == LIST and placement.item is not None:
        return list_of(strip_placement(placement.item), placement.dtype)
    return placement._replace(numbers=None, zero=False)


def strip_slice(placement: Placement) -> Placement:
    """Remove from the placement of an output all that depends on the slice of a batch which the body took by itself."""
    one = strip_placement(placement)
    if one.feed is not None:
        return one
    if one.kind == LIST and (one.item is None or one.item.is_replicated):
        return one
    return WHOLE


def place_branches(reader: Any, node: Node) -> Decision:
    """`tf.cond` and `tf.switch_case`: an output whose placement differs between branches becomes
    whole in each of them.
    """
    names = (
        [one.name for one in node.op.node_def.attr["branches"].list.func]
        if node.type in ("Case", "StatelessCase")
        else [node.read_attribute(name).name for name in ("then_branch", "else_branch")]
    )
    given = node.inputs[1:]
    node.bodies = [
        reader.read(find_callee(node.op, name, list(node.op.inputs)[1:]), [one.placement for one in given],
                    (*node.key, index), [one.constant for one in given])
        for index, name in enumerate(names)
    ]  # fmt: skip
    gives = []
    for index in range(len(node.op.outputs)):
        found = [body.outputs[index].placement for body in node.bodies]
        one = strip_placement(found[0])
        for other in found[1:]:
            one = join(one, strip_placement(other))
        leaves = one.is_sharded and one.rows.chosen is not None
        gives.append(strip_slice(one) if any(body.takes_batch for body in node.bodies) else WHOLE if leaves else one)
        if any(needs_exchange(placement, gives[-1]) and placement.kind == LIST and placement.dtype is None
               for placement in map(strip_placement, found)):  # fmt: skip
            raise NoRuleError  # residuals of different branches cannot be combined
    for body in node.bodies:
        body.gives = gives

    def emit(copy: Any, index: Any, *arguments: Any) -> list[Any]:
        def run(body: Any) -> Any:
            made = copy.build(body, arguments, body.gives)
            return made or [tf.constant(0)]

        if len(names) == 2 and node.type not in ("Case", "StatelessCase"):
            made = tf.cond(tf.cast(index, tf.bool), lambda: run(node.bodies[0]), lambda: run(node.bodies[1]))
        else:
            made = tf.switch_case(index, [lambda body=body: run(body) for body in node.bodies])
        return list(made) if isinstance(made, (list, tuple)) else [made]

    return Decision([WHOLE, *[None] * len(given)], gives, mark_taker(emit))


def place_loop(reader: Any, node: Node) -> Decision:
    """`tf.while_loop`: finds placements of the loop variables that a turn preserves."""
    cond_name, body_name = (node.read_attribute(name).name for name in ("cond", "body"))
    body_graph = find_callee(node.op, body_name)
    inputs = node.inputs
    kept = [
        index < len(body_graph.outputs) and body_graph.outputs[index] is tensor
        for index, tensor in enumerate(body_graph.inputs)
    ]
    constants = [value.constant if is_kept else None for value, is_kept in zip(inputs, kept)]
    # A loop variable that begins as zeros may be a partial sum, such as a gradient that each turn adds to.
    carried = [
        value.placement if is_kept else strip_placement(value.placement)._replace(zero=value.placement.zero)
        for value, is_kept in zip(inputs, kept)
    ]
    carried = [WHOLE if one.is_piece or (one.is_sharded and one.rows.chosen is not None and not is_kept) else one
               for one, is_kept in zip(carried, kept)]  # fmt: skip
    settled: set[int] = set()
    for _ in range(MOST_TURNS):
        body = reader.read_turn(body_graph, carried, (*node.key, "body"), constants)
        strip = strip_slice if body.takes_batch else strip_placement
        given = [strip(made.placement) for made in body.outputs]
        after = [
            given[index] if not is_kept and index not in settled and _can_slice(value, one, made, given[index]) else one
            for index, (value, one, made, is_kept) in enumerate(zip(inputs, carried, body.outputs, kept))
        ]
        if after == carried:
            after = [
                one if is_kept or index in settled else join(one, given[index])
                for index, (one, is_kept) in enumerate(zip(carried, kept))
            ]
        if after == carried:
            break
        settled |= {
            index for index, (one, other) in enumerate(zip(carried, after)) if other == WHOLE and not one.is_replicated
        }
        carried = after
    else:
        raise NoRuleError
    condition = reader.read(find_callee(node.op, cond_name), carried, (*node.key, "cond"), constants)
    condition.gives, body.gives = [WHOLE], carried
    node.bodies = [condition, body]
    turns = node.read_attribute("parallel_iterations", 10)

    def emit(copy: Any, *arguments: Any) -> list[Any]:
        made = tf.while_loop(
            lambda *held: copy.build(condition, held, condition.gives)[0],
            lambda *held: copy.build(body, held, body.gives),
            list(arguments),
            shape_invariants=[tf.TensorShape(value.shape) for value in body.inputs],
            parallel_iterations=turns,
        )
        return list(made)

    needs = [None if one == value.placement else one for one, value in zip(carried, inputs)]
    return Decision(needs, carried, mark_taker(emit))


def _can_slice(first: Any, one: Placement, made: Any, after: Placement) -> bool:
    """Whether the loop can carry slices of `first`, a replicated loop variable whose length is the number of rows.

    one: its placement before a turn. made: its value after a turn. after: the placement of `made`.
    """
    if not one.is_replicated or not after.is_sharded or after.rows.chosen is not None:
        return False
    lengths = [None if one.whole_shape is None else one.whole_shape[after.axis] for one in (first, made)]
    return lengths[0] is not None and lengths[0] == lengths[1]


FLOW = {
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), place_branches),
    **dict.fromkeys(("While", "StatelessWhile"), place_loop),
}
