"""The plan of a step: its trace, the placements of its tensors, and the copy that all ranks run together.

There is one way for every kind of step: capture, plan, agree, call.
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
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.sharing import Exchanger
from matex_tf.runtime import notes
from matex_tf.steps import (
    agreement,
    batch_watch,
    events,
    explain,
    failures,
    gradients,
    own_data,
    pieces,
    publishing,
    shared_feeds,
    slices,
    weak_scaling,
    whole_code,
    worth,
)
from matex_tf.steps.batches import Batch, SharedBatches, WholeBatch, find_shared_batches
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.world import world

NO_BATCH = "it takes no batch"
NO_WORK = "it has no work that grows with the rows of its batch"
Compute = Callable[[Mapping[int, Any]], Any]
Execute = Callable[["StepPlan", Compute, Sequence[Any]], Any]
_execute: Execute = lambda plan, compute, given: compute({})  # noqa: E731


def execute_by(execute: Execute) -> None:
    """Let `execute(plan, compute, given)` return the outputs of each call of a step. given: the iterators and datasets
    among the arguments.

    Each call of `compute` computes the outputs for the batch that was taken before the call, with the current ranks.
    `compute` takes replacements for tensors, by their ids.
    """
    global _execute
    _execute = execute


class CopyKind(NamedTuple):
    """The kind of a step's copies: its class, the object that stands for the ranks, and the context of its creation."""

    make: type[Copy] = Copy
    make_exchanger: Callable[..., Exchanger] = RankExchanger
    make_within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


class StepPlan:
    """How the calls of a traced function are computed.

    traced: the script's trace, a ConcreteFunction.
    why_whole: the reason why every rank computes the calls by the script's function; empty if ranks share them.
    program: the placements; None if they could not be found.
    trained: the weights that a call changes.
    rows: the number of rows of the last call's batch; 0 if it is unknown.
    parts: the slice ratios of the ranks; None if they are equal for good.
    copy_kind: the kind of the copies that calls run.
    """

    def __init__(self, traced: Any, are_rows: Sequence[bool], inputs: Sequence[Any], place: str, rows: int = 0):
        """Plan the calls of `own`, and tell how they are computed. Collective: all ranks make the same plan.

        Args:
            are_rows: for each tensor argument, whether it has the rows that ranks divide.
            inputs: the tensor arguments of this call, eager tensors.
            place: names the step in messages.
            rows: the number of rows of this call; 0 if it is unknown.

        Raises:
            UnsupportedError, MismatchError: on every rank, if the ranks' own rows cannot be combined, or if the traces
                differ.
        """
        self.traced, self.place, self.rows = traced, place, rows
        graph = traced.graph
        self.given = len(are_rows)  # tensor arguments; the other inputs of the graph are captured
        self.pieces = pieces.Holding(graph)
        captured = [one for one, _ in graph.captures]
        handles = [*inputs, *captured]
        self.are_own = list(map(own_data.is_own, handles))
        self.divided = [one and bool(tensor.shape.rank) for one, tensor in zip(are_rows, graph.inputs)]
        self.divided += [False] * len(captured)
        self.graph = graph
        self.source = self._find_source()
        if self.source is not None:
            self.graph = sources.give_batch(graph, self.source)
            self.divided += sources.find_components([tensor.shape for tensor in self.source.outputs])
        self.program: Program | None = None
        self.copy_kind = CopyKind()
        self._copies: dict[tuple[Any, ...], Any] = {}
        self.parts = slices.make_ratios()
        self.trained = whole_code.list_trained(traced)
        self.batches = batch_watch.BatchWatch(f"a batch of {place}")
        self.feeds = shared_feeds.list_feeds(handles, self.batches, self.parts, place)
        self.why_whole = self._find_obstacle()
        if self.why_whole in (NO_BATCH, NO_WORK):
            if self.trained and agreement.is_watched():
                agreement.agree_on_new(graph.variables)  # otherwise it is the rank's own work
            explain.say_whole(place, self.why_whole, is_usual=not self.trained)
            return
        if not self.why_whole:
            try:
                self.find_copy()
            except Exception as error:  # an error in any op: the script's own function is always right
                self.why_whole = f"its copy cannot be made ({type(error).__name__}: {error})"
        self.why_whole = agreement.agree_on_trace(
            graph, self.why_whole, place, agreement.count_rows(self.graph.inputs, self.divided)
        )
        events.step_planned(self)
        if self.why_whole and any(self.are_own):
            raise errors.UnsupportedError(own_data.explain_obstacle(place, self.why_whole))
        if self.why_whole:
            publishing.leave()
        if self.why_whole or self.program is None:
            explain.say_whole(place, self.why_whole, is_usual=False)
        else:
            explain.say_shared(place, self.program)

    def _find_source(self) -> Any:
        """The op whose batch is taken before the function is called; None if there is none, or no need.

        Ranks with rows of their own take them in the graph, where they exchange their numbers of rows.
        """
        if any(self.divided):
            return None
        source = sources.find_source(self.graph)
        return None if source is None or self.are_own[self._find_handle(source)] else source

    def _find_handle(self, source: Any) -> int:
        """The index, among the inputs, of the iterator from which `source` takes."""
        return [id(one) for one in self.graph.inputs].index(id(source.inputs[0]))

    def _find_obstacle(self) -> str:
        if getattr(self.traced.graph, "deferred_external_captures", None):
            return "it takes values that are known only when it is called"
        if not any(self.divided) and not sources.are_in(self.traced.graph):
            return NO_BATCH
        try:
            self.program = self._read(self.divided)
        except OwnRowsError as error:
            return str(error)
        except Exception as error:  # an error in any rule: the script's own function is always right
            return f"its graph cannot be read ({type(error).__name__}: {error})"
        if not any(self.are_own) and not worth.has_shared_work(self.program):
            return NO_WORK
        return ""

    def _read(self, divided: Sequence[bool]) -> Program:
        """Find the placements. Collective if an op takes a variable whole that ranks hold in pieces."""
        placements = [BATCH if one else WHOLE for one in divided]
        placements[: len(self.are_own)] = [OWN if is_own else one for one, is_own in zip(placements, self.are_own)]
        while True:
            for at, feed in enumerate(self.feeds):
                placements[at] = placements[at] if feed is None else feed.placement
            held = self.pieces.place()
            end = self.given + len(held)
            placements[self.given : end] = [
                one if mine is None else mine for one, mine in zip(placements[self.given : end], held)
            ]
            try:
                takes_batches = self.source is None
                return read_program(self.graph, placements, takes_batches, self.rows or USUAL_SIZE)
            except PiecesRefusedError as error:
                self.pieces.refuse(error.refused, self.place)
                placements[self.given : end] = [WHOLE] * len(held)
            except FeedRefusedError as error:
                explain.say_whole_batches(self.place, error.why)
                placements[: len(self.feeds)] = [
                    WHOLE if feed is not None and feed.placement.feed is error.feed else one
                    for one, feed in zip(placements, self.feeds)
                ]
                self.feeds = [
                    None if feed is None or feed.placement.feed is error.feed else feed for feed in self.feeds
                ]

    def use_copy(self, kind: CopyKind, held: pieces.Holding | None = None) -> None:
        """Run copies of this kind from now on; if `held` is given, with variables in pieces as it says."""
        self.copy_kind, self.pieces = kind, held or self.pieces

    def find_copy(self, divided: Sequence[bool] | None = None) -> Any:
        """The copy that slices these inputs, by default all that have rows, for the current number of ranks.

        It is a ConcreteFunction of the arguments of the script's function, and of the batch.
        """
        divided = self.divided if divided is None else divided
        if not self.pieces.holds:  # they are cut for another number of ranks
            self.pieces, self._copies = pieces.Holding(self.traced.graph), {}
            self.program = self._read(self.divided)
        key = world.get_world().size, self.copy_kind, self.pieces, *divided
        if key not in self._copies:
            if self._copies and has_sequence(self.traced.graph):
                why = "ranks were lost" if divided == self.divided else "each rank computes some batches whole"
                notes.print_note(
                    f"{self.place}: {why}, and the random numbers of what it computes then are not those of the script "
                    "alone, as those of tf.random.stateless_uniform would be"
                )
            is_read = not self._copies and list(divided) == self.divided
            program = self.program if is_read and self.program is not None else self._read(divided)
            with self.copy_kind.make_within():
                self._copies[key] = self._make_copy(program, divided)
        return self._copies[key]

    def _make_copy(self, program: Program, divided: Sequence[bool]) -> Any:
        outer = self.pieces.find_handles(one for one, _ in self.traced.graph.captures)
        outer = self._find_handles(outer, self.feeds[self.given :])
        end = self.given + len(outer)
        taken = [*self.graph.inputs[: self.given], *self.graph.inputs[end:]]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in taken]
        takes_own = self.source is not None and any(divided)
        if takes_own:
            specs = [
                tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if one else spec
                for spec, one in zip(specs, [*divided[: self.given], *divided[end:]])
            ]
            specs += [tf.TensorSpec([], tf.int64)] * 3 + [tf.TensorSpec([], tf.bool)]
        make_slice = functools.partial(slices.make_slice if any(divided) else self.batches.make_slice, parts=self.parts)

        def step(*given: Any) -> Any:
            here = tf.compat.v1.get_default_graph()
            exchanger = self.copy_kind.make_exchanger(self.place, checked=gradients.are_checked(program))
            make_own_slice = functools.partial(slices.make_own_slice, RankExchanger(self.place))
            copy = self.copy_kind.make(slices.make_empty_slice(), exchanger, make_slice, make_own_slice)
            events.copy_begins(self, copy)
            if takes_own:
                given, copy.batch_slice = given[:-4], slices.make_given_slice(*given[-4:])
            inputs = [*given[: self.given], *map(here.capture, outer), *given[self.given :]]
            inputs = inputs if takes_own else sources.take_rows(copy, inputs, list(divided))
            outputs = copy.build(program, inputs, [WHOLE] * len(program.outputs))
            events.step_copied()
            return outputs

        return trace_copy(step, specs)

    def _find_handles(self, handles: Sequence[Any], feeds: Sequence[Any]) -> list[Any]:
        """The tensors that a copy takes for tensors that stand for iterators and datasets with these feeds."""
        return [one if feed is None else feed.find_handle(one) for one, feed in zip(handles, feeds)]

    def find_iterator(self, inputs: Sequence[Any]) -> Any:
        """The tensor that stands for the iterator whose batch is taken before a call with these tensors."""
        return [*inputs, *self.traced.captured_inputs][self._find_handle(self.source)]

    def take_batch(self, handle: Any) -> Batch | None:
        """The next batch of the iterator of this handle, before a call; None at the end of the data."""
        try:
            found: SharedBatches | None = find_shared_batches(handle)
            if found is not None:
                return found.take()
            dtypes, shapes = zip(*((tensor.dtype, tensor.shape) for tensor in self.source.outputs))
            taken = tf.raw_ops.IteratorGetNext(iterator=handle, output_types=dtypes, output_shapes=shapes)
            return WholeBatch(taken, self.divided[len(self.are_own) :])
        except tf.errors.OutOfRangeError:
            return None

    def call_at_end(self, inputs: Sequence[Any]) -> Any:
        """The behavior of the script's function at the end of the data."""
        for one in pieces.find_variables(self.traced.graph):  # the script's function may read it before the data end
            if one is not None:
                one.make_whole()
        return self.traced._call_flat(list(inputs), self.traced.captured_inputs)

    def call(self, inputs: Sequence[Any], taken: Batch | None, given: Sequence[Any] = ()) -> Any:
        """The results of the script's function for these tensors, computed by all ranks. Collective.

        Args:
            taken: see `take_batch`; None without a `source`. A call with the same batch can be repeated.
            given: the iterators and datasets among the arguments.
        """
        rows = [tensor for tensor, one in zip(inputs, self.divided) if one]
        batch = WholeBatch(rows, [True] * len(rows)) if taken is None and rows else taken
        self.rows = 0 if batch is None else batch.total
        events.step_begins(self)
        compares_each = batch is not None and not self.trained  # ranks with other rows compute their own
        is_same = batch is None or not compares_each or self.batches.is_same(batch)
        is_shared = batch is None or (batch.is_even and is_same)
        divided = self.divided if is_shared else [False] * len(self.divided)

        def compute(instead: Mapping[int, Any]) -> Any:
            with failures.fail_together(self.place, self.traced.graph.variables, self.traced.graph):
                copy = self.find_copy(divided)
                publishing.settle()
                self.pieces.prepare()
                handles = list(inputs)
                if any(self.feeds):  # prepare captured iterators for this call, too
                    handles = self._find_handles([*inputs, *self.traced.captured_inputs], self.feeds)[: len(inputs)]
                tensors = [instead.get(id(one), one) for one in handles]
                rows = [] if taken is None else self._take_rows(taken, is_shared)
                if not is_shared:  # here ranks that compute by themselves learn of a rank that failed to take its batch
                    ops.allreduce(tf.zeros([]), "sum", f"the batch of {self.place}")
                outputs = copy(*tensors, *rows)
                events.step_computed(self)
                return outputs

        with contextlib.nullcontext() if compares_each else self.batches.compare_batches(given, batch):
            outputs = _execute(self, compute, given)
        agreement.note_step()
        if self.trained:
            weak_scaling.note_training_call()
            events.step_trained(self)
        events.step_ended(self)
        return self.traced.function_type.pack_output(outputs)

    def _take_rows(self, batch: Batch, is_shared: bool) -> list[Any]:
        """The tensors of a batch that the copy takes: this rank's slice, or all rows."""
        if not is_shared:
            return batch.take_whole()
        return batch.take_slice(None if self.parts is None else self.parts.deal(batch.total))
