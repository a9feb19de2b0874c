"""Makes each call of a step an attempt in elastic runs: if a rank is lost, the others undo and repeat it (`elastic`).

After a loss, the survivors restore the values that the step's variables had before the call (`Undo`), return iterators
to their position (`replay`), and repeat the call. The repetition needs no data of the lost rank. Before a call, every
rank has the complete batch and all variables; the pieces of variables that ranks divide have copies on other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import ops, tags
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.resilience import elastic, replay
from matex_tf.rewrite import graph_ops, sources
from matex_tf.steps import batches, events, function_plan, pieces, whole_code
from matex_tf.world import membership

_UNDO = "how a call of the step is undone"


def attempt_steps() -> None:
    """Make each call of a step an attempt, if the run is elastic."""
    if elastic.is_on():
        function_plan.execute = _attempt_step
        events.step_computed.add_listener(_meet_ranks)


def _meet_ranks(step: function_plan.FunctionPlan) -> None:
    """A last collective of each call, in which all ranks raise the error of a rank that failed after the others."""
    ops.allreduce(tf.zeros([]), "sum", f"the end of {step.place}")


def _attempt_step(step: function_plan.FunctionPlan, compute: function_plan.Compute, arguments: Sequence[Any]) -> Any:
    """Return the result of `compute`, called in an attempt. `arguments`: iterators and datasets (`execute`)."""
    undo: Undo = tags.get_or_make_tag(step, _UNDO, lambda: Undo(step))
    iterators: list[Any] = []
    if undo.takes:
        iterators = [argument for argument in arguments if hasattr(argument, "_iterator_resource")]  # not a dataset
        # If ranks share the batches of an iterator, a step may also take from the iterator over this rank's rows.
        shared_batches = map(batches.find_shared_batches, iterators)
        iterators += [shared.iterator for shared in shared_batches if hasattr(shared, "iterator")]
    replays = list(map(replay.find_replay, iterators))
    for replayed_iterator in replays:
        replayed_iterator.keep()
    step.copies.pieces.prepare()  # after this, variables in pieces are saved as pieces
    undo.save()

    def go_back() -> None:
        undo.restore()
        for replayed_iterator in replays:
            replayed_iterator.go_back()

    # `compute` gets the handle of each replay, by the id of the original handle that it replaces.
    def work() -> Any:
        return compute({id(replayed_iterator.source): replayed_iterator.handle for replayed_iterator in replays})

    return elastic.attempt_work(step.place, work, go_back)


class Undo:
    """The values of a step's variables before a call.

    Saving them copies nothing, because TensorFlow writes changed values to new memory.

    takes: whether the step takes batches inside its function, for example in a loop.
    """

    def __init__(self, step: function_plan.FunctionPlan):
        graph = step.traced.graph
        inner_ops = [op for op in graph.get_operations() if op is not step.inputs.source]
        self.takes = _have_op(inner_ops, (*sources.SOURCES, "IteratorGetNextAsOptional"))
        self._place = step.place
        self._obstacle = _find_obstacle(step, inner_ops)
        self._changed = whole_code.list_changed(step.traced)  # the variables that a call may change
        self._variables: list[Any] = []
        self._values: list[Any] = []  # of `_variables`, before the call
        self._read: Any = list  # returns the present values of `_variables`

    def save(self) -> None:
        """Save the values. Called before each call of the step."""
        variables = pieces.list_stored(self._changed)
        if list(map(id, variables)) != list(map(id, self._variables)):
            self._variables = variables
            self._read = trace_own(lambda: [variable.read_value() for variable in variables])
        self._values = self._read()

    def restore(self) -> None:
        """Restore the saved values.

        Raises:
            LostRankError: the call changes more than variables that can be restored.
        """
        if self._obstacle:
            raise membership.make_loss_error(f"{self._place} {self._obstacle}")
        for variable, value in zip(self._variables, self._values):
            variable.assign(value)


def _have_op(operations: Sequence[Any], types: Sequence[str]) -> bool:
    return any(graph_ops.has_op(op, types) for op in operations)


def _find_obstacle(step: function_plan.FunctionPlan, inner_ops: Sequence[Any]) -> str:
    """Why a call cannot be undone; "" if it can.

    Args:
        inner_ops: the ops of the graph, except for the source op, whose batch is taken before the call.
    """
    from tensorflow.python.ops import handle_data_util

    graph = step.traced.graph
    if _have_op(inner_ops, ("MakeIterator", "ReduceDataset", "DatasetToSingleElement")):
        return "iterates over a dataset inside its function, whose batches cannot be replayed"
    inner_handles = {id(outer): id(inner) for outer, inner in graph.captures}
    # The ids in the graph of handles of resources that can be restored: variables that the function refers to, ...
    restorable = {inner_handles.get(id(variable.handle)) for variable in graph.variables}
    # ... iterators that are arguments, which are replayed (only handles of variables have shape data), ...
    for handle in graph.inputs[: step.inputs.argument_count]:
        if not handle_data_util.get_resource_handle_data(handle).is_set:
            restorable.add(id(handle))
    # ... and the iterator of the source op, if no other op uses it.
    if step.inputs.source is not None:
        source_iterator = step.inputs.source.inputs[0]
        if not any(source_iterator is tensor for op in inner_ops for tensor in op.inputs):
            restorable.add(id(source_iterator))
    if any(id(handle) not in restorable for handle in whole_code.list_written(graph)):
        return (
            "changes state that cannot be restored: a variable passed as an argument, an iterator not passed as one, "
            "a table, or a file of summaries"
        )
    return ""
