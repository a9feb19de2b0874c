"""A program that ran under a tape as a graph for any number of rows: are its gradients the sum of the ranks'?

The ops are made again of placeholders, and the graph is proved as the trace of a `tf.function` is (`analysis`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.analysis import dry_trace, interpreter, verdict
from matex_tf.analysis.placement import REPLICATED, ROWS
from matex_tf.gradients import recombine, reduction, row_mixing, tape_stack
from matex_tf.loops import traces
from matex_tf.loops.recorded.program import BOTH, Program, Source
from matex_tf.loops.tape_gradients import declare_gradient
from matex_tf.runtime import script_frames

NO_ROWS = "what is differentiated depends on no rows"
NO_WORK = "most of its work is done with whole batches"


def trace_program(program: Program, rows: int, meets: bool = False) -> tuple[Any, str]:
    """A function of this rank's rows of the leaves that gives whole gradients, and why there is none.

    meets: whether values are made whole in it where rows meet.
    """
    import tensorflow as tf

    open_leaves = [place for place in range(len(program.leaves)) if not program.is_fixed(place, rows)]
    specs, placements = [], []
    for place in open_leaves:
        leaf, is_of = program.leaves[place], program.is_of(place, rows)
        shape = leaf.shape.as_list()
        specs.append(tf.TensorSpec([None, *shape[1:]] if is_of else shape, leaf.dtype))
        placements.append(ROWS if is_of else None)

    def look(*given: Any) -> list[Any]:
        supply = iter(given)
        leaves = [
            next(supply) if place in open_leaves else tf.constant(leaf.numpy(), leaf.dtype)
            for place, leaf in enumerate(program.leaves)
        ]
        row_mixing.watch_graph(tf.compat.v1.get_default_graph())
        return _compute_gradients(program, leaves)

    looking = tf.function(look, autograph=False)
    frame = traces.enter_frame(looking, placements, is_border=False)
    with dry_trace.suppress_effects(), frame, tape_stack.keep_plain(), row_mixing.resolve_mixing(meets):
        try:
            function = looking.get_concrete_function(*specs)
        except (TypeError, ValueError, LookupError, tf.errors.OpError) as error:
            # An op that names the number of rows has no shape for any number of them.
            return None, f"it cannot be traced for an open number of rows ({str(error).splitlines()[0]})"
    return function, str(verdict.find_failure(function.graph) or "")


def _compute_gradients(program: Program, leaves: list[Any]) -> list[Any]:
    """In the graph being built: the whole gradients of the sources, as far as they are proved."""
    import tensorflow as tf
    from tensorflow.python.ops import gradients_impl

    graph = tf.compat.v1.get_default_graph()
    made, operations = _replay_ops(program, leaves)

    def at(place: Any) -> Any:
        return leaves[place[1]] if place[0] < 0 else made[place[0]][place[1]]

    targets = [at(place) for place in program.targets]
    found = interpreter.make_interpreter(graph)
    if all(found.find_placement(one).kind == REPLICATED for op in operations for one in op.outputs):
        verdict.note_failure(graph, verdict.Reason(NO_ROWS))
        return []
    without = row_mixing.explain_no_gain(graph)
    if without is not None or not row_mixing.has_gain(operations, found):
        verdict.note_failure(graph, without or verdict.Reason(NO_WORK))
    chosen, factors, why = recombine.seed_targets(targets, [None] * len(targets))
    if why is not None:
        verdict.note_failure(graph, verdict.find_reason(why))
    if verdict.find_failure(graph) is not None:
        return []
    asked = sorted({leaf for source in program.sources for leaf in source.leaves})
    seeds = None if all(one is None for one in factors) else factors
    slopes = dict(zip(asked, gradients_impl.gradients(chosen, [leaves[leaf] for leaf in asked], seeds)))
    parts = [_find_part(graph, source, slopes, leaves, at) for source in program.sources]
    of_variables = [index for index, source in enumerate(program.sources) if source.variable is not None]
    reduced, _ = reduction.reduce_gradients(
        [parts[index] for index in of_variables],
        [program.sources[index].variable for index in of_variables],
        place="tape.gradient",
    )
    for index, one in zip(of_variables, reduced):
        parts[index] = one
    others = [index for index, one in enumerate(parts) if index not in of_variables and one is not None]
    open_ones = [
        found.find_placement(parts[index]) for index in others if not found.find_placement(parts[index]).can_be_whole
    ]
    if open_ones:
        verdict.note_failure(graph, verdict.find_reason(open_ones[0]))
    if verdict.find_failure(graph) is not None:
        return []
    for index, one in zip(others, recombine.make_whole([parts[index] for index in others], "tape.gradient")):
        parts[index] = one
    return parts


def _replay_ops(program: Program, leaves: list[Any]) -> tuple[list[list[Any]], list[Any]]:
    """What the ops of the program make of `leaves`, and those ops."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_library, op_def_registry

    graph = tf.compat.v1.get_default_graph()
    made: list[list[Any]] = []
    operations = []
    for op, inputs in zip(program.ops, program.inputs):
        definition = op_def_registry.get(op.kind)
        given = program.list_attributes(op)
        attributes = {
            one.name: op_def_library.value_to_attr_value(given[one.name], one.type, one.name)
            for one in definition.attr
            if given.get(one.name) is not None
        }
        values = [leaves[index] if at < 0 else made[at][index] for at, index in inputs]
        again = script_frames.call_as_script(
            graph.create_op, op.kind, values, list(op.dtypes), attrs=attributes, op_def=definition
        )
        operations.append(again)
        made.append([_stop_gradient(one, op.followed) for one in again.outputs])
    return made, operations


def _stop_gradient(tensor: Any, followed: bool) -> Any:
    import tensorflow as tf

    return tensor if followed or not (tensor.dtype.is_floating or tensor.dtype.is_complex) else tf.stop_gradient(tensor)


def _find_part(graph: Any, source: Source, slopes: dict[int, Any], leaves: list[Any], at: Callable[..., Any]) -> Any:
    """This rank's part of a gradient; None where there is none."""
    import tensorflow as tf

    if source.leaf is not None:
        declare_gradient(slopes[source.leaf], leaves[source.leaf], None)
        return slopes[source.leaf]
    for gather in source.gathers:
        slope, indices = slopes[gather.leaf], at(gather.indices)
        if slope is None:
            return None
        declare_gradient(slope, leaves[gather.leaf], None)
        variable = reduction.find_tf_variable(source.variable)
        sizes = variable.shape.as_list()
        return tf.IndexedSlices(tf.reshape(slope, [-1, *sizes[1:]]), tf.reshape(indices, [-1]), tf.constant(sizes))
    given = [slopes[read] for read in source.reads if slopes[read] is not None]
    if not given:
        return None
    if len(given) > 1 and any(isinstance(one, tf.IndexedSlices) for one in given):
        verdict.note_failure(graph, verdict.Reason(BOTH))
    for one in given:
        declare_gradient(one, source.variable, None)
    total = given[0] if len(given) == 1 else tf.add_n([tf.convert_to_tensor(one) for one in given])
    declare_gradient(total, source.variable, None)
    return total
