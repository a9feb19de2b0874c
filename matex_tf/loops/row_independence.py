"""Whether a model computes each row of its outputs from the same row of its inputs: proved of a trace for any rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.analysis import declarations, dry_trace, graph_ops, interpreter, verdict
from matex_tf.analysis.placement import SHARDED
from matex_tf.gradients import tape_stack
from matex_tf.loops import open_shapes, sharded_call, step_arguments, traces

RETURNS = "it returns what ranks cannot gather: {}"
ADDS = "it adds losses (add_loss, activity regularizers)"
OF_ANOTHER = "one of its outputs is made of another, whose gradients ranks could not tell apart"


def prove_model(
    function: Any, losses: Callable[[], list[Any]], arguments: step_arguments.Arguments
) -> tuple[str, frozenset[int]]:
    """Why a call with such arguments cannot be sharded, empty if it can; and the ids of the variables whose sparse
    gradients have the same indices on all ranks.

    Args:
        function: a `tf.function` of the model, which is not called but traced once more.
        losses: gives the losses that the model has after a call.
    """
    import tensorflow as tf

    replicated: set[int] = set()

    def look(*args: Any, **kwargs: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        inputs = [leaf for leaf in tf.nest.flatten((args, kwargs)) if isinstance(leaf, tf.Tensor)]
        with tf.GradientTape() as tape:
            tape.watch([leaf for leaf in inputs if leaf.dtype.is_floating])
            made = function.python_function(*args, **kwargs)
        why = find_output_obstacle(tf.nest.flatten(made))
        if why:
            verdict.note_failure(graph, verdict.Reason(why))
            return
        outputs = sharded_call.list_tensors(made)
        found = interpreter.make_interpreter(graph)
        for tensor in outputs:
            placement = found.find_placement(tensor)
            if placement.kind != SHARDED or not placement.can_be_whole:
                reason = verdict.find_reason(placement) if placement.why else None
                verdict.note_failure(graph, reason or verdict.Reason(f"what it returns is {placement.kind}", tensor.op))
        before = set(graph.get_operations())
        if any(loss.op in before for loss in losses() if not hasattr(loss, "numpy")):
            verdict.note_failure(graph, verdict.Reason(ADDS))
        watched = list(tape.watched_variables())
        targets = [tensor for tensor in outputs if tensor.dtype.is_floating]
        with tape_stack.keep_plain():
            of = tape.gradient(targets, [*watched, *inputs]) if targets else []
        for variable, gradient in zip(watched, of):
            if isinstance(gradient, tf.IndexedSlices) and found.find_placement(gradient.indices).is_same:
                replicated.add(id(variable))

    looking = tf.function(look, autograph=False)
    with (
        dry_trace.suppress_effects(),
        traces.enter_frame(looking, step_arguments.list_placements(arguments), is_border=False),
    ):
        try:
            args, kwargs = arguments.replace_rows(step_arguments.make_open_spec)
            with open_shapes.watch_rows(arguments.rows > 0):
                graph = looking.get_concrete_function(*args, **kwargs).graph
        except Exception:  # of the script's code, any
            return traces.NAMED, frozenset()
    if not declarations.has_declared(graph):
        return "its trace is not known as that of the model", frozenset()
    return str(verdict.find_obstacle(graph, []) or ""), frozenset(replicated)


def find_output_obstacle(flat: Sequence[Any]) -> str:
    """Why what a model returns cannot be put together of the ranks' rows, by its kinds alone."""
    import tensorflow as tf

    for part in flat:
        if not isinstance(part, tf.Tensor):
            return RETURNS.format("something that is no tensor")
        if part.dtype.is_complex or part.dtype == tf.string:
            return RETURNS.format(f"a tensor of {part.dtype.name}")
    floating = [part for part in flat if part.dtype.is_floating]
    for part in floating:
        behind = set(graph_ops.list_ancestors([part]))
        if any(other is not part and other.op in behind for other in floating):
            return OF_ANOTHER
    return ""
