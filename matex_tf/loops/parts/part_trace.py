"""A Keras model traced for a part of its rows, and the proof that parts make up the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matex_tf.analysis import declarations, dry_trace, graph_ops, interpreter, verdict
from matex_tf.analysis.placement import ROWS, SHARDED
from matex_tf.gradients import tape_stack
from matex_tf.loops import open_shapes, row_independence, sharded_call, side_effects, step_arguments, traces
from matex_tf.loops.parts import draws

EFFECT = "it does more than to compute its outputs from its rows ({})"
REPLICATED = "a sparse gradient of it has indices that are not the rows' own"
_READS = {
    "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "Assert", "StatefulPartitionedCall", "If", "While", "Case",
    "LookupTableFindV2",
}  # fmt: skip
"""Stateful ops that leave nothing behind, and those that call functions, whose ops are looked at, too."""


@dataclass
class PartTrace:
    """A trace for a part: called with its number and rows, it gives the tensors of `outputs`."""

    function: Any
    made: Any
    """What the model gives, in the trace's own tensors."""
    outputs: list[Any]
    variables: list[Any]
    kinds: list[list[str]]
    """Of each floating output the kinds of its gradients: "dense", "sparse", or "" where a variable has none."""

    @property
    def targets(self) -> list[int]:
        """The places of the outputs that have gradients."""
        return [index for index, one in enumerate(self.outputs) if one.dtype.is_floating]


def cut_rows(whole: Any, start: Any, stop: Any) -> Any:
    """The rows of `whole` that are a part, whose number no trace knows."""
    piece = whole[start:stop]
    piece.set_shape([None, *whole.shape.as_list()[1:]])
    declarations.declare_placement(piece, ROWS)
    return piece


def trace_part(original: Callable[..., Any], model: Any, arguments: step_arguments.Arguments) -> PartTrace | str:
    """The trace of a call of `model`, made in the graph being built; or why its rows cannot be computed in parts."""
    import tensorflow as tf

    around = tf.compat.v1.get_default_graph()
    specs = [
        step_arguments.make_open_spec(leaf)
        for leaf, is_rows in zip(arguments.leaves, arguments.are_rows)
        if is_rows
    ]  # fmt: skip
    found: dict[str, Any] = {"why": ""}

    def look(number: Any, *rows: Any) -> Any:
        supply = iter(rows)
        args, kwargs = arguments.replace_rows(lambda leaf: next(supply))
        with draws.draw_in_part(number, around) as found["drawn"], tf.GradientTape(persistent=True) as tape:
            made = original(model, *args, **kwargs)
        found["made"] = made
        found["why"] = (
            row_independence.find_output_obstacle(tf.nest.flatten(made))
            or _find_rowless(made)
            or _find_added_losses(model)
        )
        if found["why"]:
            return []
        found["outputs"] = outputs = list({id(one): one for one in _select_kept(made)}.values())
        found["variables"] = watched = list(tape.watched_variables())
        with tape_stack.keep_plain():
            found["kinds"] = [
                [_find_kind(one) for one in tape.gradient([target], watched)] if watched else []
                for target in outputs
                if target.dtype.is_floating
            ]
        return outputs

    looking = tf.function(look, autograph=False)
    placements = [None, *([ROWS] * len(specs))]
    with dry_trace.suppress_effects(), traces.enter_frame(looking, placements, is_border=False):
        try:
            with open_shapes.watch_rows(arguments.rows > 0):
                function = looking.get_concrete_function(tf.TensorSpec([], tf.int64), *specs)
        except Exception:  # of the script's code, any: where it is a fault, its own call raises it, too
            return traces.NAMED
    why = found["why"] or _find_obstacle(function.graph, found["drawn"])
    if why:
        return str(why)
    return PartTrace(function, found["made"], found["outputs"], found["variables"], found["kinds"])


def _select_kept(made: Any) -> list[Any]:
    """The tensors that are handed on: in place of what is made of logits, these alone."""
    import tensorflow as tf

    anew = {id(part) for part in tf.nest.flatten(made) if sharded_call.find_logits(part) is not part}
    return [one for one in sharded_call.list_tensors(made) if id(one) not in anew]


def _find_kind(gradient: Any) -> str:
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        is_same = interpreter.find_placement(gradient.indices).is_same
        return REPLICATED if is_same else "sparse"
    return "" if gradient is None else "dense"


def _find_rowless(made: Any) -> str:
    """Why an output is not made row by row."""
    import tensorflow as tf

    found = interpreter.make_interpreter(tf.compat.v1.get_default_graph())
    for tensor in sharded_call.list_tensors(made):
        placement = found.find_placement(tensor)
        if placement.kind != SHARDED or not placement.can_be_whole or placement.power:
            return str(verdict.find_reason(placement) if placement.why else f"what it returns is {placement.kind}")
    return ""


def _find_added_losses(model: Any) -> str:
    import tensorflow as tf

    before = set(tf.compat.v1.get_default_graph().get_operations())
    losses = [loss for loss in model.losses if not hasattr(loss, "numpy")]
    return row_independence.ADDS if any(loss.op in before for loss in losses) else ""


def _find_obstacle(graph: Any, drawn: list[Any]) -> Any:
    """Why what was traced cannot be called in parts, or once more; empty if it can."""
    from tensorflow.python.framework import op_def_registry

    for kind in sorted(graph_ops.list_op_types(graph)):
        definition = op_def_registry.get(kind)
        if kind not in _READS and (definition is None or definition.is_stateful) and kind != "Placeholder":
            return EFFECT.format(kind)
    own = {id(one) for one in drawn}
    for outside, _ in graph.captures:
        if outside.dtype.name != "resource" and not hasattr(outside, "numpy") and id(outside) not in own:
            return side_effects.USES
    return verdict.find_failure(graph) or ""
