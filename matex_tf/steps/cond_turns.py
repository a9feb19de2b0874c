"""The order of the script's own collectives in a run of a `tf.compat.v1` graph.

TensorFlow runs the independent ops of such a graph in any order. So each collective has a turn, a number, and waits
until all earlier turns of the run are complete (`sequence/v1_order.h`). In a branch that is not taken a collective does
not run, and later ones would wait forever. So an op in the other branch completes its turn.

A branch is a context of ops in the graph (the control flow of TensorFlow 1), or a function that an op calls.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.lazy import tf
from matex_tf.rewrite.compiled import CALLS
from matex_tf.rewrite.graph_ops import list_functions
from matex_tf.steps import session_graphs

_CONDS = "If", "StatelessIf"


def order_collectives(graph: Any, needed: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Finds the collectives of a run, and adds an op that completes the turns in branches that are not taken.

    A collective has no turn here if it may run any number of times: in a loop, in a branch within a called function, in
    a `tf.switch_case`, or in a function that several ops call. Nothing orders it among the other collectives.

    needed: the ops of the run in the order of their creation.
    Returns a list of the added op, empty if no collective is in a branch; and the turns in the order in which they are
    to run. Both are empty if there is only one turn, which needs no order.
    """
    collectives = [(op, *collective) for op in needed for collective in _list_collectives(graph, op)]
    # Leave out collectives in loops. Also leave out a collective in a function that several ops call: its turn, a
    # single number, would be complete after the first call.
    callers = collections.Counter(turn for _, turn, _, _ in collectives)
    ordered_collectives = [
        (op, turn, branch)
        for op, turn, branch, always_runs in collectives
        if always_runs
        and callers[turn] == 1
        and not any(enclosing_context.IsWhileContext() for enclosing_context in _iterate_contexts(op))
    ]
    if len(ordered_collectives) < 2:
        return [], []
    pass_ops = []  # the ops that complete turns of branches that are not taken
    with session_graphs.add_to(graph):
        for op, turn, branch in ordered_collectives:
            # The predicate of each branch around the collective, its value in the branch, and where it is computed.
            branches = [
                (branch_context.pred, branch_context.branch == 1, branch_context.outer_context)
                for branch_context in _iterate_contexts(op)
            ]
            if branch is not None:
                branches.append((op.inputs[0], branch, op._get_control_flow_context()))
            for predicate, branch_value, context in branches:
                if context is not None:  # create the ops in the branch around this one
                    context.Enter()
                # `Switch` gives one of its two outputs, by the value of the predicate. The op that completes the turn
                # takes the output of the other branch, so it runs only if the other branch is taken.
                outputs = tf.raw_ops.Switch(data=predicate, pred=predicate)
                pass_ops.append(ops.pass_turn(outputs.output_false if branch_value else outputs.output_true, turn))
                if context is not None:
                    context.Exit()
        group_ops = [tf.group(*pass_ops)] if pass_ops else []
    return group_ops, [turn for _, turn, _ in ordered_collectives]


def _list_collectives(graph: Any, op: Any) -> list[tuple[int, bool | None, bool]]:
    """(turn, branch, always_runs) of each of an op's collectives, also in its functions; once for each way to it.

    branch: the value of the op's predicate with which the collective runs; None: it runs with any.
    always_runs: each run of the op with that value runs the collective; no branch or loop within a function has it.
    """
    if op.type in ops.OP_TYPES:
        return [(op.get_attr("turn"), None, True)]
    branches: dict[str, bool | None] = {}  # by the attribute of the op that names the function
    if op.type in CALLS:
        branches = {"f": None}
    elif op.type in _CONDS and op.inputs[0].dtype.is_bool:
        branches = {"then_branch": True, "else_branch": False}
    branch_by_function = {op.node_def.attr[name].func.name: branch for name, branch in branches.items()}
    return [
        (turn, branch_by_function.get(name), always_runs)
        for name in list_functions(op.node_def)
        for turn, always_runs in _walk_function(graph, name, name in branch_by_function)
    ]


def _walk_function(graph: Any, name: str, always_runs: bool) -> Iterator[tuple[int, bool]]:
    """(turn, always_runs) of each collective of a function, also in functions that it calls."""
    definition = getattr(graph._get_function(name), "cached_definition", None)
    for node in definition.node_def if definition is not None else ():
        if node.op in ops.OP_TYPES:
            yield node.attr["turn"].i, always_runs
        for called in list_functions(node):
            yield from _walk_function(graph, called, always_runs and node.op in CALLS)


def _iterate_contexts(op: Any) -> Iterator[Any]:
    """The branches and loops around `op`, the innermost first."""
    context = op._get_control_flow_context()
    while context is not None:
        yield context
        context = context.outer_context
