"""The plan of a traced function, and its calls: the steps of Keras, of a script's loop, and of loops in a tf.function.

Each call runs a copy on this rank's slice of the batch: with 2 ranks and 5 rows, rank 0 computes rows 0-2, rank 1 rows
3-4.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matex_tf import ops
from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.programs import Program
from matex_tf.steps import agreement, events, failures, pieces, report
from matex_tf.steps.batches import Batch
from matex_tf.steps.copies import StepCopies
from matex_tf.steps.inputs import StepInputs
from matex_tf.steps.plan import NO_BATCH, StepPlan
from matex_tf.steps.weak_scaling import note_training_call
from matex_tf.steps.whole_code import list_trained

Compute = Callable[[Mapping[int, Any]], Any]
execute: Callable[[Any, Compute, Sequence[Any]], Any] = lambda plan, compute, iterators: compute({})  # noqa: E731
"""Returns the outputs of each call of a step. iterators: the iterators and datasets among the arguments.

Elastic runs set a function that calls `compute` again if ranks are lost meanwhile: each time it computes the outputs
for the same batch, with the current ranks. `compute` takes replacements of tensor arguments, by the ids of the replaced
tensors.
"""


class FunctionPlan(StepPlan):
    """How the calls of a traced function are computed.

    traced: the script's trace, a ConcreteFunction.
    trained: the weights that a call changes.
    """

    def __init__(self, traced: Any, are_rows: Sequence[bool], arguments: Sequence[Any], place: str, rows: int = 0):
        """Plan the calls of `traced`. Collective (`decide`). The other parameters: see `StepInputs`."""
        super().__init__(traced.graph, place)
        self.traced, self.trained = traced, list_trained(traced)
        self.copies = StepCopies(self)
        self.inputs = StepInputs(traced, are_rows, arguments, rows, place, self.batches)
        self.has_own_rows = any(self.inputs.are_own)
        self.decide()

    def list_divided(self) -> list[Any]:
        return list(itertools.compress(self.inputs.graph.inputs, self.inputs.divided))

    def has_batch(self) -> bool:
        return super().has_batch() or sources.are_in(self.graph)  # ops of the copies may take the batch

    def read_graph(self) -> Program:
        return self.copies.read_graph(self.inputs.divided)

    def make_copy(self) -> None:
        self.copies.find()

    def leave_whole(self, why: str) -> None:
        if self.trained and agreement.is_watched():  # ranks that train alike must begin with equal weights
            agreement.agree_on_new(self.traced.graph.variables)
        # A script loses nothing by a batch of one row, such as the last one, if ranks share the others.
        is_usual = not self.trained or (self.why_whole == NO_BATCH and report.is_shared(self.place))
        report.say_whole(self.place, why, is_usual)

    def explain(self) -> None:
        events.step_planned(self)
        super().explain()

    def call(self, arguments: Sequence[Any], taken_batch: Batch | None, iterators: Sequence[Any] = ()) -> Any:
        """The results of the script's function for these tensors, computed by all ranks. Collective.

        taken_batch: see `StepInputs.take_batch`; None without a `source`. A call with the same batch can be repeated.
        iterators: the iterators and datasets among the arguments.
        """
        batch = self.inputs.get_batch(arguments) if taken_batch is None else taken_batch
        # From here on, None means that ops of the copy take the batch.
        self.inputs.rows = 0 if batch is None else batch.total
        events.step_begins(self)
        # Ranks may give different rows to a step that trains nothing, such as a prediction. So such a step compares
        # every batch, before the call, and each rank computes its own batch whole if they differ. A step that trains
        # compares few batches (`compare_batches`), and different numbers of rows are an error. A batch whose components
        # have different numbers of rows (not `is_even`) has no slice, so each rank computes it whole, too.
        is_shared = batch is None or batch.is_even
        compared_batch = None if self.trained else batch
        if compared_batch is not None:
            # Collective: all ranks call it, whether their batches are even or not.
            is_shared = self.batches.is_same(compared_batch) and is_shared

        def compute(replacements: Mapping[int, Any]) -> Any:
            with failures.fail_together(self.place, self.traced.graph.variables, self.traced.graph):
                return self._compute(arguments, taken_batch, is_shared, replacements)

        with contextlib.nullcontext() if compared_batch is not None else self.batches.compare_batches(iterators, batch):
            outputs = execute(self, compute, iterators)
        agreement.note_step()
        if self.trained:
            note_training_call()
            events.step_trained(self)
        events.step_ended(self)
        return self.traced.function_type.pack_output(outputs)

    def _compute(self, arguments: Sequence[Any], taken_batch: Batch | None, is_shared: bool, replacements: Any) -> Any:
        """The outputs of a call: of this rank's slice if `is_shared`, else of its whole batch. Collective."""
        inputs = self.inputs
        copy = self.copies.find(inputs.divided if is_shared else [False] * len(inputs.divided))
        self.copies.pieces.prepare()
        tensors = [replacements.get(id(tensor), tensor) for tensor in inputs.list_arguments(arguments)]
        if taken_batch is not None and is_shared:
            ratios = None if inputs.ratios is None else inputs.ratios.record_rows(taken_batch.total)
            tensors += taken_batch.take_slice(ratios)
        elif taken_batch is not None:
            tensors += taken_batch.take_whole()
        if not is_shared:
            # The copy for a whole batch has no collective. So ranks would not learn that another rank failed to take
            # its batch (`LostBatch`), and never comes to the copy. This collective fails then.
            ops.allreduce(tf.zeros([]), "sum", f"the batch of {self.place}")
        outputs = copy(*tensors)
        events.step_computed(self)
        return outputs

    def call_at_end(self, arguments: Sequence[Any]) -> Any:
        """Call the script's own function at the end of the data, so that it meets the end as without the library."""
        for variable in pieces.find_variables(self.traced.graph).values():
            variable.make_whole()  # the function may read it before the data end
        return self.traced._call_flat(list(arguments), self.traced.captured_inputs)
