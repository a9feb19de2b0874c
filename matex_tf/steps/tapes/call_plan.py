"""The plan of a call whose gradients a tape may request: a forward step, and a backward step from its residuals.

Both take and return whole tensors. The residuals stay on the ranks in their placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf import errors
from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.kept import trace_copy
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.subgraphs import Subgraph
from matex_tf.runtime import excepthook
from matex_tf.steps import agreement, batch_watch, failures, gradients, plan, slices, worth
from matex_tf.steps.batches import WholeBatch
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.world import world

AGAIN = "gradients are taken through it while a tape records, or of many values at once"


class _Backward(NamedTuple):
    """The gradients of a graph.

    graph: its inputs are the gradients of outputs, then residuals of the forward graph.
    of: the ids of those outputs.
    residuals: the tensors of the forward graph.
    outputs: the components of the gradients, without those that are None.
    effects: ops that run although no gradient needs them.
    pack: packs such tensors as gradients.
    """

    graph: Any
    of: set[int]
    residuals: list[Any]
    outputs: list[Any]
    effects: list[Any]
    pack: Any


class CallPlan:
    """How calls of a traced function are computed while tapes record.

    graph: the trace, a FuncGraph. Gradients can be requested for the inputs that `are_followed`.
    why_whole: the reason why every rank computes the calls whole; empty if ranks share them.
    """

    def __init__(self, graph: Any, are_rows: Sequence[bool], are_followed: Sequence[bool], place: str):
        """Plan the calls. Collective: all ranks make the same plan.

        Args:
            are_rows: for each input, whether it has the rows that ranks divide.
            place: names the call in messages.
        """
        self.graph, self.place, self.ranks = graph, place, world.get_world().size
        self.are_rows = [one and bool(tensor.shape.rank) for one, tensor in zip(are_rows, graph.inputs)]
        self.followed = [tensor for tensor, one in zip(graph.inputs, are_followed) if one]
        self.batches = batch_watch.BatchWatch(f"a batch of {place}")
        self.why_whole = self._find_obstacle() or self._make_steps()
        self.why_whole = agreement.agree_on_trace(
            graph, self.why_whole, place, agreement.count_rows(graph.inputs, self.are_rows)
        )

    def _find_obstacle(self) -> str:
        if getattr(self.graph, "deferred_external_captures", None):
            return "it takes values that are known only when it is called"
        if not any(self.are_rows):
            return plan.NO_BATCH
        return ""

    def _make_steps(self) -> str:
        """Build both steps. Returns the reason if they cannot be built."""
        try:
            backward = _trace_backward(self.graph, self.followed)
            placements = [BATCH if one else WHOLE for one in self.are_rows]
            outputs = list(self.graph.outputs)
            part = Subgraph(self.graph, self.graph.inputs, [*outputs, *backward.residuals], self.graph.control_outputs)
            program = read_program(part, placements)
            if not worth.has_shared_work(program):
                return plan.NO_WORK
            self._build(program, backward)
        except Exception as error:  # an error in any op: the script's own call is always right
            return f"its copy cannot be made ({type(error).__name__}: {error})"
        return ""

    def _build(self, program: Program, backward: _Backward) -> None:
        graph = self.graph
        self.count = count = len(graph.outputs)  # TensorFlow may add residuals to them
        results, residuals = program.outputs[:count], program.outputs[count:]
        kept = [value.placement for value in residuals]
        self.upstream = [index for index, tensor in enumerate(graph.outputs) if id(tensor) in backward.of]
        sliced = [results[index].placement for index in self.upstream]
        sliced = [one if one.is_sharded and one.rows.chosen is None else WHOLE for one in sliced]
        constants = [None] * len(sliced) + [value.constant for value in residuals]
        back = read_program(
            Subgraph(backward.graph, backward.graph.inputs, backward.outputs, backward.effects),
            [*sliced, *kept],
            takes_batches=False,
            constants=constants,
        )
        is_variable = [tensor.dtype == tf.resource for tensor in graph.inputs]
        held = {id(inner): outer for outer, inner in graph.captures}
        self.taken = [index for index, one in enumerate(is_variable) if not one]

        def forward_step(*given: Any) -> Any:
            here = tf.compat.v1.get_default_graph()
            rest = iter(given)
            tensors = [
                here.capture(held[id(tensor)]) if one else next(rest) for tensor, one in zip(graph.inputs, is_variable)
            ]
            copy = Copy(slices.make_empty_slice(), RankExchanger(self.place), slices.make_slice)
            inputs = sources.take_rows(copy, tensors, self.are_rows)
            return copy.build(program, inputs, [WHOLE] * count + kept)

        def backward_step(total: Any, *given: Any) -> Any:
            place, checked = f"the gradients of {self.place}", gradients.are_checked(back)
            copy = Copy(slices.make_slice_of_rows(total), RankExchanger(place, checked=checked))
            upstream = [tensor if one == WHOLE else copy.slice_rows(tensor, one) for tensor, one in zip(given, sliced)]
            return copy.build(back, [*upstream, *given[len(sliced) :]], [WHOLE] * len(back.outputs))

        def specify(tensors: Sequence[Any]) -> list[Any]:
            return [tf.TensorSpec(one.shape, one.dtype) for one in tensors]

        inputs = [graph.inputs[index] for index in self.taken]
        self.forward = trace_copy(forward_step, specify(inputs))
        local = specify(self.forward.outputs[count:])
        signature = [tf.TensorSpec([], tf.int64), *specify(backward.graph.inputs[: len(sliced)]), *local]
        self.backward = trace_copy(backward_step, signature)
        self.pack = backward.pack

    def call(self, given: Sequence[Any], rows: int, followed: Sequence[Any]) -> list[Any]:
        """The outputs of the graph for the inputs `given`, recorded on the tapes. Collective.

        followed: the tensors of `given` whose gradients may be requested.
        """
        from tensorflow.python.eager import record

        count = self.count
        batch = [tensor for tensor, one in zip(given, self.are_rows) if one]
        used = self.graph.variables
        with (
            record.stop_recording(),
            self.batches.compare_batches((), WholeBatch(batch, [True] * len(batch))),
            failures.fail_together(self.place, used),
        ):
            self._require_ranks()
            made = list(self.forward(*(given[index] for index in self.taken)))
        outputs, residuals = made[:count], made[count:]

        def compute_gradients(*upstream: Any) -> list[Any]:
            if record.could_possibly_record() or not tf.executing_eagerly():
                raise errors.UnsupportedError(
                    f"{self.place}: {AGAIN}, which its first call did not show, so that ranks share its calls. Set "
                    "MATEX_EAGER=whole, with which every rank computes whole batches in eager code, or put the step "
                    "into a tf.function"
                )
            self._require_ranks()
            whole = [
                tf.zeros_like(outputs[index]) if one is None else tf.convert_to_tensor(one)
                for index, one in zip(self.upstream, upstream)
            ]
            with failures.fail_together(self.place, used):
                found = list(self.backward(tf.constant(rows, tf.int64), *whole, *residuals))
            return self.pack(found)

        record.record_operation(
            "SharedCall", [outputs[index] for index in self.upstream], list(followed), compute_gradients
        )
        return outputs

    def _require_ranks(self) -> None:
        """Check the ranks: the steps are built for them, and the residuals of a lost rank are gone."""
        if self.ranks != world.get_world().size:
            excepthook.refuse_after_loss(self.place)


def _list_variables(graph: Any, tensors: Sequence[Any]) -> list[Any]:
    """The variables that inputs of a graph stand for, or the other objects."""
    outer = {id(inner): one for one, inner in graph.captures}
    variables = {id(one.handle): one for one in graph.variables}
    found = [outer.get(id(tensor), tensor) for tensor in tensors]
    return [variables.get(id(one), one) for one in found]


def _trace_backward(graph: Any, followed: Sequence[Any]) -> _Backward:
    """The gradients of a graph's outputs with respect to `followed`, inputs of it."""
    from tensorflow.python.eager import backprop_util
    from tensorflow.python.eager.graph_only_ops import graph_placeholder
    from tensorflow.python.framework import func_graph
    from tensorflow.python.ops import gradients_util

    outputs = [tensor for tensor in graph.outputs if backprop_util.IsTrainable(tensor)]
    with graph.as_default():
        backward = func_graph.FuncGraph("gradients")
    with backward.as_default():
        upstream = [graph_placeholder(tensor.dtype, tensor.shape) for tensor in outputs]
        found = gradients_util._GradientsHelper(
            outputs, list(followed), grad_ys=upstream, src_graph=graph, unconnected_gradients="none"
        )
        gradients.note_gradients(found, _list_variables(graph, followed))
        flat = tf.nest.flatten(found, expand_composites=True)
        made = [backward.capture(one) for one in flat if one is not None]
    for outer, _ in backward.captures:
        if not tf.is_symbolic_tensor(outer) or outer.graph is not graph:
            raise NotImplementedError("its gradients take a tensor that it does not take")
    backward.inputs = [*upstream, *(inner for _, inner in backward.captures)]

    def pack(values: Sequence[Any]) -> Any:
        rest = iter(values)
        filled = [None if one is None else next(rest) for one in flat]
        return tf.nest.pack_sequence_as(found, filled, expand_composites=True)

    effects = [op for op in backward.get_operations() if op.op_def is not None and op.op_def.is_stateful]
    residuals = [outer for outer, _ in backward.captures]
    return _Backward(backward, {id(one) for one in outputs}, residuals, made, effects, pack)
