"""Branches of `tf.compat.v1` graphs: a collective in one that is not taken never runs, and others wait for its turn.

What is not taken is dead at run time: each collective in a branch has an op in the other that takes its turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.lazy import tf


def is_within(op: Any) -> bool:
    """Whether `op` is in a branch or a loop of its graph."""
    return op._get_control_flow_context() is not None


def pass_turns(graph: Any, collectives: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """What to run beside `collectives`: an op, or none, that has their turns taken where their branches are not.

    Also those of them that are within a loop, which have no turn.
    """
    made, within_loops = [], set()
    finalized = graph.finalized
    graph._unsafe_unfinalize()
    with graph.as_default(), tf.control_dependencies(None):
        for op in collectives:
            contexts = list(_iterate_contexts(op))
            if any(context.IsWhileContext() for context in contexts):
                within_loops.add(op)
                continue
            for context in contexts:
                with _enter_context(graph, context.outer_context):
                    taken = tf.raw_ops.Switch(data=context.pred, pred=context.pred)
                    other = taken.output_true if context.branch == 0 else taken.output_false
                    made.append(ops.pass_turn(other, op.get_attr("turn")))
        every = [tf.group(*made)] if made else []
    if finalized:
        graph.finalize()
    return every, within_loops


def _iterate_contexts(op: Any) -> Iterator[Any]:
    """The branches and loops that `op` is in, the innermost first."""
    context = op._get_control_flow_context()
    while context is not None:
        yield context
        context = context.outer_context


@contextlib.contextmanager
def _enter_context(graph: Any, context: Any) -> Iterator[None]:
    before = graph._get_control_flow_context()
    graph._set_control_flow_context(context)
    try:
        yield
    finally:
        graph._set_control_flow_context(before)
