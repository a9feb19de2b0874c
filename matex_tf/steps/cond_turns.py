"""Collectives of the script in branches of `tf.compat.v1` graphs.

Each collective has a turn, its number in the sequence, and waits until all earlier turns are complete. In a branch that
is not taken a collective does not run, and later ones would wait forever. So an op in the other branch completes its
turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.lazy import tf


def pass_turns(graph: Any, collectives: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """Adds an op that completes the turns of `collectives` in branches that are not taken.

    Returns a list of the op, empty if no collective is in a branch; and the collectives in loops, which have no turn.
    """
    passes, within_loops = [], set()
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
                    # Branch 0 runs if `pred` is false.
                    other = taken.output_true if context.branch == 0 else taken.output_false
                    passes.append(ops.pass_turn(other, op.get_attr("turn")))
        together = [tf.group(*passes)] if passes else []
    if finalized:
        graph.finalize()
    return together, within_loops


def _iterate_contexts(op: Any) -> Iterator[Any]:
    """The branches and loops around `op`, the innermost first."""
    context = op._get_control_flow_context()
    while context is not None:
        yield context
        context = context.outer_context


@contextlib.contextmanager
def _enter_context(graph: Any, context: Any) -> Iterator[None]:
    """Create ops within this branch or loop, `context`; None: outside of all branches and loops."""
    before = graph._get_control_flow_context()
    graph._set_control_flow_context(context)
    try:
        yield
    finally:
        graph._set_control_flow_context(before)
