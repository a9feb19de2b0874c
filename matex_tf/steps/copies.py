"""The copies of a traced function: one for each number of ranks, and for each way in which a call is computed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.feeds import FeedRefusedError
from matex_tf.rewrite.graph_ops import has_sequence
from matex_tf.rewrite.kept import trace_copy
from matex_tf.rewrite.nodes import USUAL_SIZE
from matex_tf.rewrite.pieces import PiecesRefusedError
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Exchanger
from matex_tf.runtime import notes
from matex_tf.steps import events, gradients, slices
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.steps.pieces import StepPieces
from matex_tf.world import world

if TYPE_CHECKING:
    from matex_tf.steps.function_plan import FunctionPlan

_SLICE_NUMBERS = 4  # first, count, total and contributes (`Slice`)


class CopyKind(NamedTuple):
    """The kind of a step's copies: its class, the object that stands for the ranks, and the context of its creation.

    `apart.local` lets each rank compute by itself, and `adapt.step_trials` compares inline and overlapped updates.
    """

    make: type[Copy] = Copy
    make_exchanger: Callable[..., Exchanger] = RankExchanger
    make_within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


class StepCopies:
    """The copies of the step of one plan.

    kind: the kind of the copies that calls run; extras change it.
    pieces: the optimizer's variables that the copies take in pieces; trials of steps change them.
    made: the copies made so far, by the number of ranks, `kind`, `pieces`, and the inputs that they slice.
    """

    def __init__(self, plan: FunctionPlan):
        self._plan, self.kind = plan, CopyKind()
        self.pieces = StepPieces(plan.traced.graph)
        self.made: dict[tuple[Any, ...], Any] = {}

    def read_graph(self, divided: Sequence[bool]) -> Program:
        """Find the placements. Collective if an op takes a variable whole that ranks hold in pieces.

        An op may refuse a variable in pieces, or the rows that a feed gives. The placements are then found again, with
        the variable whole, or without the feed.
        """
        inputs = self._plan.inputs
        while True:
            placements = inputs.place(divided, self.pieces.place())
            try:
                return read_program(inputs.graph, placements, inputs.source is None, inputs.rows or USUAL_SIZE)
            except PiecesRefusedError as error:
                self.pieces.refuse(error.refused, self._plan.place)
            except FeedRefusedError as error:
                inputs.refuse_feed(error)

    def find(self, divided: Sequence[bool] | None = None) -> Any:
        """The copy for the current number of ranks that slices the inputs `divided`. Made if there is none yet.

        divided: `StepInputs.divided`, the default; or all False, for calls in which each rank computes a batch whole.

        The copy is a ConcreteFunction of the arguments of the script's function, and of the batch.
        """
        plan, all_divided = self._plan, self._plan.inputs.divided
        divided = all_divided if divided is None else divided
        if not self.pieces.is_valid:  # a loss of ranks has changed the pieces, or a variable is whole for good now
            self.pieces, self.made = StepPieces(plan.traced.graph), {}
            plan.program = self.read_graph(all_divided)
        key = world.get_world().size, self.kind, self.pieces, *divided
        if key in self.made:
            return self.made[key]
        # The random ops of a further copy begin their sequences of numbers again; the script's ops would go on.
        # (`local` makes a copy of another kind, whose results are statistical.)
        if any(kind == self.kind for _, kind, *_ in self.made) and has_sequence(plan.traced.graph):
            why = "ranks were lost" if divided == all_divided else "each rank computes some batches whole"
            notes.print_note(
                f"{plan.place}: {why}, and the random numbers of what it computes then are not those of the script "
                "alone, as those of tf.random.stateless_uniform would be"
            )
        program = plan.program
        if program is None or self.made or list(divided) != all_divided:  # `plan.program` is for the first copy
            program = self.read_graph(divided)
        with self.kind.make_within():
            self.made[key] = self._make(program, divided)
        return self.made[key]

    def _make(self, program: Program, divided: Sequence[bool]) -> Any:
        """Build a copy. Its parameters: the arguments; the tensors of a batch that was taken before the call; and, if
        these tensors have this rank's rows only, first, count, total and contributes (`slices.make_given_slice`).

        Where the copy gets its slice from depends on the batch:
        - taken before the call: the batch is sliced already, and these four parameters are the slice.
        - an argument: `slices.make_slice` finds the slice from the number of its rows, and `take_rows` cuts it.
        - taken whole by an op of the copy: `BatchWatch.make_slice` also checks the batch, and lets ranks compare it.
        - taken by an op from an iterator that ranks share: the feed (`shared_feeds`) has the slice.
        - taken by an op as a rank's own rows: `slices.make_own_slice` exchanges the ranks' numbers of rows.
        Until the batch is there, the slice is empty (`make_empty_slice`). It stays so for a batch computed whole.
        """
        plan, inputs = self._plan, self._plan.inputs
        captured = inputs.list_captured(self.pieces.find_handles(tensor for tensor, _ in plan.traced.graph.captures))
        # The inputs of the graph are the arguments, the captured tensors, and the tensors of the batch. The copy
        # captures its `captured` itself, so only the first and the last of the three are `parameters`.
        argument_count, batch_start = inputs.argument_count, inputs.argument_count + len(captured)
        parameters = [*inputs.graph.inputs[:argument_count], *inputs.graph.inputs[batch_start:]]
        are_rows = [*divided[:argument_count], *divided[batch_start:]]
        is_batch_sliced = inputs.source is not None and any(divided)

        def make_spec(tensor: Any, has_rows: bool) -> Any:  # a slice has fewer rows than the batch that the trace shows
            shape = [None, *tensor.shape[1:]] if has_rows and is_batch_sliced else tensor.shape
            return tf.TensorSpec(shape, tensor.dtype)

        specs = list(map(make_spec, parameters, are_rows))
        if is_batch_sliced:
            specs += [tf.TensorSpec([], dtype) for dtype in (tf.int64, tf.int64, tf.int64, tf.bool)]
        make_any_slice = slices.make_slice if any(divided) else plan.batches.make_slice
        make_slice = functools.partial(make_any_slice, slice_ratios=inputs.ratios)

        def step(*arguments: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            exchanger = self.kind.make_exchanger(plan.place, checked=gradients.are_checked(program))
            make_own_slice = functools.partial(slices.make_own_slice, RankExchanger(plan.place))
            copy = self.kind.make(slices.make_empty_slice(), exchanger, make_slice, make_own_slice)
            events.copy_begins(plan, copy)
            if is_batch_sliced:
                arguments, numbers = arguments[:-_SLICE_NUMBERS], arguments[-_SLICE_NUMBERS:]
                copy.batch_slice = slices.make_given_slice(*numbers)
            tensors = [*arguments[:argument_count], *map(graph.capture, captured), *arguments[argument_count:]]
            if not is_batch_sliced:
                tensors = sources.take_rows(copy, tensors, list(divided))
            outputs = copy.build(program, tensors)
            events.step_copied()
            return outputs

        return trace_copy(step, specs)
