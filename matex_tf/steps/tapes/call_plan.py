"""The plan of a call whose gradients a tape may request: a forward step, and a backward step.

Example: `y = model(x)` under a tape, with 32 rows on 2 ranks. The forward step of rank 0 computes rows 0-15 of `y`. It
returns all rows of `y`, and the residuals: tensors that the gradients need, such as activations of rows 0-15. When the
tape requests gradients, the backward step takes the gradient of `y` for all rows, and the residuals of this rank. It
returns gradients summed over the ranks. `calls` selects the plan of a call by its trace (the graph of its ops).

For the tape, a shared call is one op: from the inputs to all results. In `features, prediction = model(x)`, the tape
does not know that the prediction is computed from the features. Its gradient of `prediction` with respect to `features`
would be None, while the script's own call gives numbers. So a plan notes which results are computed from which
(`computed_from`, `find_computed`), and `first_calls.compute_gradients` raises an error for such a gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf import errors, settings, tags
from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.kept import trace_copy
from matex_tf.rewrite.placement import BATCH, WHOLE, Sharded
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.subgraphs import Subgraph, reach
from matex_tf.runtime import notes
from matex_tf.steps import events, failures, gradients, slices
from matex_tf.steps.batches import WholeBatch
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.steps.plan import StepPlan

SECOND_ORDER = "a tape records the computation of its gradients, or a jacobian computes them"
"""Gradients that the backward step cannot give: it records nothing, and runs in eager code only."""
BETWEEN_RESULTS = "a tape computes the gradient of one of its results through another one"
"""Gradients that the backward step cannot give: on the tape, results of one call do not depend on one another."""
_COMPUTED_FROM = "the results of the same call that were computed from this one, and the plan of the call"
"""The tag of a result of a shared call with such results; the text says what the tag holds."""


class _Backward(NamedTuple):
    """The computation of the gradients of a forward graph.

    part: its inputs are the gradients of outputs of the forward graph, then the residuals. Its outputs are the flat
        tensors of the computed gradients that are not None.
    output_ids: the ids of these outputs of the forward graph: the outputs of types that have gradients.
    residuals: the tensors of the forward graph that this part takes.
    structure: the gradients as computed, one for each followed input: tensors, IndexedSlices or None.
    """

    part: Subgraph
    output_ids: set[int]
    residuals: list[Any]
    structure: Any


class CallPlan(StepPlan):
    """How calls of a traced function are computed while tapes record: by a forward step and a backward step.

    `call` runs the forward step, and records the call on the tapes. The backward step runs when a tape asks for
    gradients.

    are_followed: for each input, whether gradients may be requested for it.
    rows: the number of rows of a call.
    call_name: names the call in messages to the user.
    links_results: the script's own call would record on the tape how its results are computed from one another. A
        model's call does, a call of a `tf.function` does not: it is one op for the tape without ranks, too.
    are_rows: for each input, whether it has the rows that ranks divide.
    output_count: the number of the call's outputs. TensorFlow may add residuals to the outputs of the graph later.
    differentiable: the indices of the outputs whose gradients the backward step takes.
    computed_from: for each of these outputs, the positions in `differentiable` of the outputs that are computed from
        it; [] without `links_results`.
    value_inputs: the indices of the inputs that are no variables; a call passes these to the forward step.
    forward, backward: the steps, ConcreteFunctions.
    """

    lone_reasons = ()  # ranks meet in any case: each has found by itself that it needs this plan

    def __init__(
        self, graph: Any, are_rows: Sequence[bool], are_followed: Sequence[bool], call_name: str, rows: int,
        links_results: bool = True,
    ):  # fmt: skip
        """Plan the calls. Collective: all ranks make the same plan.

        The number of rows is in the place, so that errors show numbers that differ.
        """
        super().__init__(graph, f"{call_name} with {rows} rows")
        self.call_name, self.rows, self.links_results = call_name, rows, links_results
        self.are_rows = [has_rows and bool(tensor.shape.rank) for has_rows, tensor in zip(are_rows, graph.inputs)]
        self.are_followed = list(are_followed)
        self.decide()

    def list_divided(self) -> list[Any]:
        return list(itertools.compress(self.graph.inputs, self.are_rows))

    def read_graph(self) -> Program:
        self._backward = _trace_backward(self.graph, list(itertools.compress(self.graph.inputs, self.are_followed)))
        self.output_count = len(self.graph.outputs)
        outputs = [*self.graph.outputs, *self._backward.residuals]
        part = Subgraph(self.graph, self.graph.inputs, outputs, self.graph.control_outputs)
        return read_program(part, [BATCH if has_rows else WHOLE for has_rows in self.are_rows])

    def make_copy(self) -> None:
        assert self.program is not None
        self._build_forward(self.program)
        self._build_backward(self.program, self._backward)

    def explain(self) -> None:
        if self.why_whole:  # `whole_code` tells the reason with the step to which the call belongs
            return
        events.unmeasured(self.call_name)
        if settings.get_settings().explain:
            notes.print_note(f"in eager code {self.call_name} is sharded: each rank computes its slice of every batch")

    def _build_forward(self, program: Program) -> None:
        """Build the step from the inputs, without variables, to whole outputs and residuals."""
        inputs, count = self.graph.inputs, self.output_count
        self.value_inputs = [index for index, tensor in enumerate(inputs) if tensor.dtype != tf.resource]
        outer_tensors = {id(inner_tensor): outer_tensor for outer_tensor, inner_tensor in self.graph.captures}
        # Outputs become whole on every rank. Residuals stay as each rank has them: only its backward step takes them.
        program.gives[count:] = [residual.placement for residual in program.outputs[count:]]

        def forward_step(*arguments: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            tensors = [
                graph.capture(outer_tensors[id(input_tensor)]) if input_tensor.dtype == tf.resource else None
                for input_tensor in inputs
            ]
            for index, argument in zip(self.value_inputs, arguments):
                tensors[index] = argument
            # The empty slice stands there until `take_rows` sets the slice of the batch among the tensors.
            copy = Copy(slices.make_empty_slice(), RankExchanger(self.place), slices.make_slice)
            return copy.build(program, sources.take_rows(copy, tensors, self.are_rows))

        self.forward = trace_copy(forward_step, _list_specs([inputs[index] for index in self.value_inputs]))

    def _build_backward(self, program: Program, backward: _Backward) -> None:
        """Build the step from the number of rows, whole gradients of outputs, and residuals to whole gradients.

        The number of rows is an input, because it determines this rank's slice, and the batch is no input of this step.
        """
        self.differentiable = [
            index for index, output in enumerate(self.graph.outputs) if id(output) in backward.output_ids
        ]
        results = [self.graph.outputs[index] for index in self.differentiable]
        self.computed_from = _find_computed(results) if self.links_results else []
        # Each rank slices the gradient of an output as the forward step had sliced the output. If a mask had selected
        # the rows of the output (`rows.chosen`), the backward step does not know which rows a rank had. The gradient of
        # such an output stays whole, as does the gradient of an output that was whole on each rank.
        output_placements = [program.outputs[index].placement for index in self.differentiable]
        gradient_placements = [
            placement if isinstance(placement, Sharded) and placement.rows.chosen is None else WHOLE
            for placement in output_placements
        ]
        gradient_count, residuals = len(gradient_placements), program.outputs[self.output_count :]
        backward_program = read_program(
            backward.part,
            [*gradient_placements, *(residual.placement for residual in residuals)],
            takes_batches=False,
            # The values of inputs that are known when the step is built: none of gradients, some of residuals.
            constants=[None] * gradient_count + [residual.constant for residual in residuals],
        )

        def backward_step(total_rows: Any, *arguments: Any) -> Any:
            exchanger = RankExchanger(f"the gradients of {self.place}", checked=gradients.are_checked(backward_program))
            copy = Copy(slices.make_slice_of_rows(total_rows), exchanger)
            upstream_gradients = [
                copy.slice_rows(gradient, placement) if isinstance(placement, Sharded) else gradient
                for gradient, placement in zip(arguments, gradient_placements)
            ]
            return copy.build(backward_program, [*upstream_gradients, *arguments[gradient_count:]])

        specs = _list_specs([*backward.part.inputs[:gradient_count], *self.forward.outputs[self.output_count :]])
        self.backward = trace_copy(backward_step, [tf.TensorSpec([], tf.int64), *specs])

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of the graph for these inputs, recorded on the tapes. Collective."""
        from tensorflow.python.eager import record

        # The forward step now. The tapes do not record its ops, but the call as one op (`record_operation`).
        batch, followed = (list(itertools.compress(inputs, flags)) for flags in (self.are_rows, self.are_followed))
        variables = self.graph.variables
        with (
            record.stop_recording(),
            self.batches.compare_batches((), WholeBatch(batch, [True] * len(batch))),
            failures.fail_together(self.place, variables),
        ):
            self.require_ranks()
            results = list(self.forward(*(inputs[index] for index in self.value_inputs)))
        outputs, residuals = results[: self.output_count], results[self.output_count :]

        # The backward step when a tape calls `compute_gradients`. Here `differentiable` has the outputs themselves.
        differentiable = [outputs[index] for index in self.differentiable]

        def compute_gradients(*upstream_gradients: Any) -> list[Any]:
            if record.could_possibly_record() or not tf.executing_eagerly():
                self.refuse_gradients(SECOND_ORDER)
            self.require_ranks()  # the residuals of a lost rank are gone
            gradients_of_outputs = [
                tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient)
                for output, gradient in zip(differentiable, upstream_gradients)
            ]
            with failures.fail_together(self.place, variables):
                computed = self.backward(tf.constant(self.rows, tf.int64), *gradients_of_outputs, *residuals)
            return list(pack_tensors(self._backward.structure, computed))

        record.record_operation("SharedCall", differentiable, followed, compute_gradients)
        # Tag each result from which other results are computed, for `find_computed`.
        for result, positions in zip(differentiable, self.computed_from):
            if positions:
                tags.set_tag(result, _COMPUTED_FROM, ([differentiable[index] for index in positions], self))
        return outputs

    def refuse_gradients(self, why: str) -> None:
        """Raises UnsupportedError for gradients that the backward step cannot give."""
        raise errors.UnsupportedError(
            f"{self.place}: {why}. Its first call did not show this, so ranks share its calls. Set MATEX_EAGER=whole, "
            "with which every rank computes whole batches in eager code, or put the step into a tf.function"
        )


def _find_computed(results: Sequence[Any]) -> list[list[int]]:
    """For each of `results`, tensors of one graph, the indices of the other results that are computed from it.

    Example: for `features`, `prediction = dense(features)`, it is [[1], []]. Of results that are the same tensor, the
    later ones count as computed from the earlier ones.
    """

    def find_source(tensor: Any) -> Any:
        """The tensor of which this one is an alias: a function may return an alias, and compute with the tensor."""
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        return tensor

    sources = list(map(find_source, results))
    # maker_ids: for each result, the ids of all ops that compute it. taker_ids: of the ops that take it as an input.
    # Result B is computed from result A if an op that takes A is among the ops that compute B.
    maker_ids = [
        {id(op) for op in reach([source.op], lambda op: [tensor.op for tensor in op.inputs])} for source in sources
    ]
    taker_ids = [{id(user) for user in source.consumers()} for source in sources]

    def is_computed_from(other_index: int, own_index: int) -> bool:
        if sources[other_index] is sources[own_index]:
            return other_index > own_index
        return not taker_ids[own_index].isdisjoint(maker_ids[other_index])

    indices = range(len(results))
    return [
        [other_index for other_index in indices if is_computed_from(other_index, own_index)] for own_index in indices
    ]


def find_computed(sources: Sequence[Any]) -> list[tuple[list[Any], CallPlan]]:
    """(results, plan) for each of `sources` that is a result of a shared call from which others are computed.

    `results` are these other results of the same call, `plan` is the plan of the call.
    """
    tags_of_sources = (tags.get_tag(source, _COMPUTED_FROM) for source in sources)
    return [results_and_plan for results_and_plan in tags_of_sources if results_and_plan is not None]


def _list_specs(tensors: Sequence[Any]) -> list[Any]:
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def _trace_backward(graph: Any, followed: Sequence[Any]) -> _Backward:
    """The gradients of a graph's outputs with respect to `followed`, some of its inputs, as a graph of its own."""
    from tensorflow.python.eager import backprop_util
    from tensorflow.python.eager.graph_only_ops import graph_placeholder
    from tensorflow.python.framework import func_graph
    from tensorflow.python.ops import gradients_util

    # Trace the gradients. The tensors that they take from `graph` become captured tensors: the residuals.
    outputs = [tensor for tensor in graph.outputs if backprop_util.IsTrainable(tensor)]
    with graph.as_default():
        backward = func_graph.FuncGraph("gradients")
    with backward.as_default():
        upstream_gradients = [graph_placeholder(tensor.dtype, tensor.shape) for tensor in outputs]
        computed_gradients = gradients_util._GradientsHelper(
            outputs, list(followed), grad_ys=upstream_gradients, src_graph=graph
        )
        # Label the gradients of variables, and capture the results (None: an input without a gradient).
        outer_tensors = {id(inner_tensor): outer_tensor for outer_tensor, inner_tensor in graph.captures}
        variables = {id(variable.handle): variable for variable in graph.variables}
        gradients.note_gradients(
            computed_gradients,
            [variables.get(id(outer_tensors.get(id(followed_input)))) for followed_input in followed],
        )
        tensors = tf.nest.flatten(computed_gradients, expand_composites=True)
        captured_gradients = [backward.capture(tensor) for tensor in tensors if tensor is not None]
    for outer_tensor, _ in backward.captures:
        if not tf.is_symbolic_tensor(outer_tensor) or outer_tensor.graph is not graph:
            raise NotImplementedError("its gradients need a tensor that is no input of it")
    inputs = [*upstream_gradients, *(inner_tensor for _, inner_tensor in backward.captures)]
    # Ops with effects run although no gradient needs them.
    effects = [op for op in backward.get_operations() if op.op_def is not None and op.op_def.is_stateful]
    residuals = [outer_tensor for outer_tensor, _ in backward.captures]
    part = Subgraph(backward, inputs, captured_gradients, effects)
    return _Backward(part, {id(tensor) for tensor in outputs}, residuals, computed_gradients)


def pack_tensors(structure: Any, tensors: Sequence[Any]) -> Any:
    """A structure with `tensors`, as many as it has, in place of its own tensors, in order. None stays."""
    remaining = iter(tensors)
    leaves = tf.nest.flatten(structure, expand_composites=True)
    filled = [None if leaf is None else next(remaining) for leaf in leaves]
    assert next(remaining, None) is None
    return tf.nest.pack_sequence_as(structure, filled, expand_composites=True)
