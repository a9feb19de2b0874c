"""The plan of a step: whether ranks share the work of a `tf.function` of the script, and how each call then runs.

The *trace* is TensorFlow's graph of the script's function. The *copy* is a function that the plan makes from the trace:
it computes this rank's rows, and has collectives to join rows or sums of all ranks. `function_calls` captures the trace
and makes the plan. The plan finds the placement of each tensor (`rewrite`): whether a rank has all of it, some rows, or
a term of a sum. Then it builds the copy, and lets the ranks agree that all of them have one. Each call runs the copy on
this rank's slice of the batch: with 2 ranks and 5 rows, rank 0 computes rows 0-2, rank 1 rows 3-4. A step without a
copy is computed whole: `function_calls` lets every rank call the script's function, on the complete batch.

The batch comes in one of three ways:
- It is an argument of the step.
- The trace begins with an op that takes it from an iterator, the `source`. The plan takes the batch before the call, so
  that ranks can compare their batches before they compute.
- Other ops of the trace take batches, as in a loop over a dataset. They stay in the copy, which slices their batches.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from matex_tf import errors, ops
from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.feeds import FeedRefusedError
from matex_tf.rewrite.graph_ops import has_sequence
from matex_tf.rewrite.kept import trace_copy
from matex_tf.rewrite.nodes import USUAL_SIZE
from matex_tf.rewrite.own_batches import OWN, OwnRowsError
from matex_tf.rewrite.pieces import PiecesRefusedError
from matex_tf.rewrite.placement import BATCH, WHOLE, Placement
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Exchanger
from matex_tf.runtime import notes
from matex_tf.steps import agreement, events, failures, gradients, own_data, pieces, report, slices
from matex_tf.steps.batch_watch import BatchWatch
from matex_tf.steps.batches import Batch, SharedBatches, WholeBatch, find_shared_batches
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.steps.shared_feeds import find_handles, list_feeds
from matex_tf.steps.weak_scaling import note_training_call
from matex_tf.steps.whole_code import list_trained
from matex_tf.world import world

NO_BATCH = "it takes no batch of two rows or more"
DEFERRED = "it takes values that are known only when it is called"
NO_WORK = "it has no work that grows with the rows of its batch"
_SLICE_NUMBERS = 4  # first, count, total and contributes (`Slice`)
Compute = Callable[[Mapping[int, Any]], Any]
Execute = Callable[["StepPlan", Compute, Sequence[Any]], Any]
"""The types of `compute` and `execute` in `execute_by`."""
_execute: Execute = lambda plan, compute, iterators: compute({})  # noqa: E731


def execute_by(execute: Execute) -> None:
    """Let `execute(plan, compute, iterators)` return the outputs of each call of a step. iterators: the iterators and
    datasets among the arguments.

    `execute` calls `compute`, more than once if ranks are lost meanwhile: each time it computes the outputs for the
    same batch, with the current ranks. `compute` takes replacements of tensor arguments, by the ids of the replaced
    tensors.
    """
    global _execute
    _execute = execute


class CopyKind(NamedTuple):
    """The kind of a step's copies: its class, the object that stands for the ranks, and the context of its creation.

    `apart.local` lets each rank compute by itself, and `adapt.step_trials` compares inline and overlapped updates.
    """

    make: type[Copy] = Copy
    make_exchanger: Callable[..., Exchanger] = RankExchanger
    make_within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


class StepPlan:
    """How the calls of a traced function are computed.

    The inputs of `graph` come in this order: the tensor arguments; the captured tensors, which the function uses but
    does not get as arguments, such as variables; with a `source`, the components of its batch. `divided` has an entry
    for each of them; `are_own` and `feeds` have entries for arguments and captured tensors only.

    The function:
        traced: the script's trace, a ConcreteFunction.
        place: names the step in messages.
        argument_count: the number of tensor arguments.
        are_own: whether the tensor stands for an iterator or dataset of rows that this rank alone has (`own_data`).
        trained: the weights that a call changes.
    The batch:
        source: the op whose batch is taken before the call, and which the copy lacks; None if there is none.
        graph: the graph that is copied: the trace, without `source`.
        divided: whether the input has the rows that ranks divide.
        feeds: the feed of the iterator or dataset for which the tensor stands, if ranks share its batches: each rank
            prepares its rows only (`shared_feeds`). None for other tensors.
        batches: compares the batches of calls between ranks.
        ratios: the slice ratios of the ranks; None if they are equal for good.
        rows: the number of rows of the last call's batch; 0 if it is unknown.
    The decision:
        why_whole: the reason why every rank computes the calls by the script's function; empty if ranks share them.
            `NO_BATCH`, `NO_WORK`: ranks would gain nothing. `DEFERRED`, or a text on an error: this rank has no copy.
            Also the reason of another rank, since all must have a copy. With `are_own`, no copy is an error.
        program: the placements; None if they could not be found.
        pieces: the optimizer's variables that the copies take in pieces.
        copy_kind: the kind of the copies that calls run.
        _copies: the copies made so far, by the number of ranks, `copy_kind`, `pieces`, and the inputs that they slice.
    """

    def __init__(self, traced: Any, are_rows: Sequence[bool], inputs: Sequence[Any], place: str, rows: int = 0):
        """Plan the calls of `traced`, and tell how they are computed. Collective: all ranks make the same plan.

        are_rows: for each tensor argument, whether it has the rows that ranks divide.
        inputs: the tensor arguments of this call, eager tensors.
        rows: the number of rows of this call; 0 if it is unknown.

        Raises UnsupportedError or MismatchError on every rank if the ranks' own rows cannot be combined, or if the
        traces differ.
        """
        self.traced, self.place, self.rows = traced, place, rows
        self.argument_count = len(are_rows)
        self.trained = list_trained(traced)
        self.pieces = pieces.StepPieces(traced.graph)
        self.program: Program | None = None
        self.copy_kind = CopyKind()
        self._copies: dict[tuple[Any, ...], Any] = {}
        self._find_batch(are_rows, [*inputs, *(outer_tensor for outer_tensor, _ in traced.graph.captures)])
        self.why_whole = self._find_obstacle()
        if self.why_whole in (NO_BATCH, NO_WORK):  # sharing would gain nothing, so ranks do not compare their traces
            if self.trained and agreement.is_watched():  # ranks that train alike must begin with equal weights
                agreement.agree_on_new(traced.graph.variables)
            why = report.explain_no_work(self.program) or self.why_whole
            # A script loses nothing by a batch of one row, such as the last one, if ranks share the others.
            is_usual = not self.trained or (self.why_whole == NO_BATCH and report.is_shared(place))
            report.say_whole(place, why, is_usual)
            return
        if not self.why_whole:
            try:
                self.find_copy()
            except Exception as error:  # an error in any op: the script's own function is always right
                self.why_whole = f"its copy cannot be made ({type(error).__name__}: {error})"
        self._agree()

    def _find_batch(self, are_rows: Sequence[bool], handles: Sequence[Any]) -> None:
        """Find the inputs that have rows, or that give batches. handles: the arguments, then the captured tensors."""
        self.graph = self.traced.graph
        self.are_own = list(map(own_data.is_own, handles))
        self.divided = [has_rows and bool(tensor.shape.rank) for has_rows, tensor in zip(are_rows, self.graph.inputs)]
        self.divided += [False] * (len(handles) - len(are_rows))
        self.source = self._find_source()
        if self.source is not None:
            self.graph = sources.give_batch(self.graph, self.source)
            self.divided += sources.find_components([tensor.shape for tensor in self.source.outputs])
        self.ratios = slices.make_ratios()
        self.batches = BatchWatch(f"a batch of {self.place}")
        self.feeds = list_feeds(handles, self.batches, self.ratios, self.place)

    def _find_source(self) -> Any:
        """The op whose batch is taken before the function is called; None if there is none, or if the batch is an
        argument. Also None if the op takes a rank's own rows: the op stays in the copy, where the ranks tell each other
        how many rows each has.
        """
        if any(self.divided):
            return None
        source = sources.find_source(self.graph)
        return None if source is None or self.are_own[self._find_handle(source)] else source

    def _find_handle(self, source: Any) -> int:
        """The index, among the inputs, of the iterator from which `source` takes."""
        return [id(tensor) for tensor in self.graph.inputs].index(id(source.inputs[0]))

    def _find_obstacle(self) -> str:
        """The reason why ranks cannot share the calls, or would gain nothing; empty if there is none."""
        if getattr(self.traced.graph, "deferred_external_captures", None):
            return DEFERRED
        if not any(self.divided) and not sources.are_in(self.traced.graph):
            return NO_BATCH
        try:
            self.program = self._read(self.divided)
        except OwnRowsError as error:
            return str(error)
        except Exception as error:  # an error in any rule: the script's own function is always right
            return f"its graph cannot be read ({type(error).__name__}: {error})"
        return "" if any(self.are_own) or report.has_shared_work(self.program) else NO_WORK

    def _agree(self) -> None:
        """Let the ranks agree whether they share the calls, and tell the user. Collective."""
        rows = agreement.count_rows(self.graph.inputs, self.divided)
        self.why_whole = agreement.agree_on_trace(self.traced.graph, self.why_whole, self.place, rows)
        events.step_planned(self)
        if self.why_whole and any(self.are_own):
            raise errors.UnsupportedError(own_data.explain_obstacle(self.place, self.why_whole))
        if self.why_whole or self.program is None:
            report.say_whole(self.place, self.why_whole, is_usual=False)
        else:
            report.say_shared(self.place, self.program)

    def _read(self, divided: Sequence[bool]) -> Program:
        """Find the placements. Collective if an op takes a variable whole that ranks hold in pieces.

        An op may refuse a variable in pieces, or the rows that a feed gives. The placements are then found again, with
        the variable whole, or without the feed.
        """
        while True:
            placements = self._place_inputs(divided)
            try:
                return read_program(self.graph, placements, self.source is None, self.rows or USUAL_SIZE)
            except PiecesRefusedError as error:
                self.pieces.refuse(error.refused, self.place)
            except FeedRefusedError as error:
                report.say_whole_batches(self.place, error.why)
                are_refused = [feed is not None and feed.placement.feed is error.feed for feed in self.feeds]
                self.feeds = [None if is_refused else feed for feed, is_refused in zip(self.feeds, are_refused)]

    def _place_inputs(self, divided: Sequence[bool]) -> list[Placement]:
        """The placement of each input of the graph. `WHOLE`: no rows, no iterator or dataset, no variable in pieces."""
        placements = [BATCH if is_divided else WHOLE for is_divided in divided]
        for index, (is_own, feed) in enumerate(zip(self.are_own, self.feeds)):
            if feed is not None:
                placements[index] = feed.placement
            elif is_own:
                placements[index] = OWN
        for index, placement in self.pieces.place().items():
            placements[self.argument_count + index] = placement
        return placements

    def use_copy(self, kind: CopyKind, step_pieces: pieces.StepPieces | None = None) -> None:
        """Run copies of this kind from now on. step_pieces: the form of variables in pieces; None: unchanged."""
        self.copy_kind, self.pieces = kind, step_pieces or self.pieces

    def find_copy(self, divided: Sequence[bool] | None = None) -> Any:
        """The copy for the current number of ranks that slices the inputs `divided`. Made if there is none yet.

        divided: `self.divided`, the default; or all False, for calls in which each rank computes a batch whole.

        The copy is a ConcreteFunction of the arguments of the script's function, and of the batch.
        """
        divided = self.divided if divided is None else divided
        if not self.pieces.is_valid:  # a loss of ranks has changed the pieces, or a variable is whole for good now
            self.pieces, self._copies = pieces.StepPieces(self.traced.graph), {}
            self.program = self._read(self.divided)
        key = world.get_world().size, self.copy_kind, self.pieces, *divided
        if key in self._copies:
            return self._copies[key]
        # The random ops of a further copy begin their sequences of numbers again; the script's ops would go on.
        # (`local` makes a copy of another kind, whose results are statistical.)
        if any(kind == self.copy_kind for _, kind, *_ in self._copies) and has_sequence(self.traced.graph):
            why = "ranks were lost" if divided == self.divided else "each rank computes some batches whole"
            notes.print_note(
                f"{self.place}: {why}, and the random numbers of what it computes then are not those of the script "
                "alone, as those of tf.random.stateless_uniform would be"
            )
        program = self.program
        if program is None or self._copies or list(divided) != self.divided:  # `self.program` is for the first copy
            program = self._read(divided)
        with self.copy_kind.make_within():
            self._copies[key] = self._make_copy(program, divided)
        return self._copies[key]

    def _make_copy(self, program: Program, divided: Sequence[bool]) -> Any:
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
        captured = self.pieces.find_handles(outer_tensor for outer_tensor, _ in self.traced.graph.captures)
        captured = find_handles(captured, self.feeds[self.argument_count :])
        # The inputs of the graph are the arguments, the captured tensors, and the tensors of the batch. The copy
        # captures its `captured` itself, so only the first and the last of the three are `parameters`.
        argument_count, batch_start = self.argument_count, self.argument_count + len(captured)
        parameters = [*self.graph.inputs[:argument_count], *self.graph.inputs[batch_start:]]
        are_rows = [*divided[:argument_count], *divided[batch_start:]]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in parameters]
        is_batch_sliced = self.source is not None and any(divided)
        if is_batch_sliced:  # a slice has fewer rows than the batch that the trace shows
            specs = [
                tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if has_rows else spec
                for spec, has_rows in zip(specs, are_rows)
            ]
            specs += [tf.TensorSpec([], dtype) for dtype in (tf.int64, tf.int64, tf.int64, tf.bool)]
        make_any_slice = slices.make_slice if any(divided) else self.batches.make_slice
        make_slice = functools.partial(make_any_slice, slice_ratios=self.ratios)

        def step(*arguments: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            exchanger = self.copy_kind.make_exchanger(self.place, checked=gradients.are_checked(program))
            make_own_slice = functools.partial(slices.make_own_slice, RankExchanger(self.place))
            copy = self.copy_kind.make(slices.make_empty_slice(), exchanger, make_slice, make_own_slice)
            events.copy_begins(self, copy)
            if is_batch_sliced:
                arguments, numbers = arguments[:-_SLICE_NUMBERS], arguments[-_SLICE_NUMBERS:]
                copy.batch_slice = slices.make_given_slice(*numbers)
            inputs = [*arguments[:argument_count], *map(graph.capture, captured), *arguments[argument_count:]]
            if not is_batch_sliced:
                inputs = sources.take_rows(copy, inputs, list(divided))
            outputs = copy.build(program, inputs)
            events.step_copied()
            return outputs

        return trace_copy(step, specs)

    def find_iterator(self, inputs: Sequence[Any]) -> Any:
        """The tensor that stands for the iterator whose batch is taken before a call with these tensors."""
        return [*inputs, *self.traced.captured_inputs][self._find_handle(self.source)]

    def take_batch(self, handle: Any) -> Batch | None:
        """The next batch of the iterator of this handle, before a call; None at the end of the data."""
        try:
            shared: SharedBatches | None = find_shared_batches(handle)
            if shared is not None:
                return shared.take()
            dtypes, shapes = zip(*((tensor.dtype, tensor.shape) for tensor in self.source.outputs))
            components = tf.raw_ops.IteratorGetNext(iterator=handle, output_types=dtypes, output_shapes=shapes)
            return WholeBatch(components, self.divided[len(self.are_own) :])
        except tf.errors.OutOfRangeError:
            return None

    def call_at_end(self, inputs: Sequence[Any]) -> Any:
        """Call the script's own function at the end of the data, so that it meets the end as without the library."""
        for variable in pieces.find_variables(self.traced.graph).values():
            variable.make_whole()  # the function may read it before the data end
        return self.traced._call_flat(list(inputs), self.traced.captured_inputs)

    def call(self, inputs: Sequence[Any], taken_batch: Batch | None, iterators: Sequence[Any] = ()) -> Any:
        """The results of the script's function for these tensors, computed by all ranks. Collective.

        taken_batch: see `take_batch`; None without a `source`. A call with the same batch can be repeated.
        iterators: the iterators and datasets among the arguments.
        """
        batch = taken_batch
        if batch is None and any(self.divided):
            divided_tensors = [tensor for tensor, is_divided in zip(inputs, self.divided) if is_divided]
            batch = WholeBatch(divided_tensors, [True] * len(divided_tensors))
        # From here on, None means that ops of the copy take the batch.
        self.rows = 0 if batch is None else batch.total
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
                return self._compute(inputs, taken_batch, is_shared, replacements)

        with contextlib.nullcontext() if compared_batch is not None else self.batches.compare_batches(iterators, batch):
            outputs = _execute(self, compute, iterators)
        agreement.note_step()
        if self.trained:
            note_training_call()
            events.step_trained(self)
        events.step_ended(self)
        return self.traced.function_type.pack_output(outputs)

    def _compute(self, inputs: Sequence[Any], taken_batch: Batch | None, is_shared: bool, replacements: Any) -> Any:
        """The outputs of a call: of this rank's slice if `is_shared`, else of its whole batch. Collective."""
        copy = self.find_copy(self.divided if is_shared else [False] * len(self.divided))
        self.pieces.prepare()
        handles = list(inputs)
        if any(self.feeds):  # with the captured tensors, too, since `find_handles` prepares their iterators
            handles = find_handles([*inputs, *self.traced.captured_inputs], self.feeds)[: len(inputs)]
        arguments = [replacements.get(id(tensor), tensor) for tensor in handles]
        if taken_batch is not None and is_shared:
            ratios = None if self.ratios is None else self.ratios.record_rows(taken_batch.total)
            arguments += taken_batch.take_slice(ratios)
        elif taken_batch is not None:
            arguments += taken_batch.take_whole()
        if not is_shared:
            # The copy for a whole batch has no collective. So ranks would not learn that another rank failed to take
            # its batch (`LostBatch`), and never comes to the copy. This collective fails then.
            ops.allreduce(tf.zeros([]), "sum", f"the batch of {self.place}")
        outputs = copy(*arguments)
        events.step_computed(self)
        return outputs
