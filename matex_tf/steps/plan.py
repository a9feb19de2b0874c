"""The plan of a step: its trace, the placements of its tensors, and the copy that all ranks run together.

One way for every style of step: capture, plan, agree, call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matex_tf.rewrite import sources
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.nodes import USUAL_SIZE
from matex_tf.rewrite.own_batches import OwnRowsError
from matex_tf.rewrite.placement import BATCH, OWN, WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.runtime import notes
from matex_tf.steps import (
    agreement,
    batch_watch,
    draws,
    events,
    failures,
    own_data,
    shares,
    weak_scaling,
    whole_code,
    worth,
)
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.world import world

NO_BATCH = "it takes no batch"
NO_WORK = "it has no work that grows with the rows of its batch"
Compute = Callable[[Mapping[int, Any]], Any]
Execute = Callable[["StepPlan", Compute, Sequence[Any]], Any]
_execute: Execute = lambda plan, compute, given: compute({})  # noqa: E731


def execute_by(execute: Execute) -> None:
    """Have `execute(plan, compute, given)` give the outputs of each call of a step, of which `given` are the iterators
    and datasets among the arguments.

    Each time that it calls `compute` the step computes the outputs, of the batch that was taken before the call, with
    the ranks that there are. It takes other tensors in place of those whose ids `compute` is given.
    """
    global _execute
    _execute = execute


class StepPlan:
    """How calls of a traced function are computed.

    own: the script's trace, a ConcreteFunction.
    why_whole: why every rank computes the calls whole; empty where ranks share them.
    program: the placements; None where they could not be found.
    trained: the weights that a call changes.
    rows: how many the batch of the last call had; 0 where that is not known.
    parts: which part of a batch each rank has; None where these are equal for good.
    """

    def __init__(self, own: Any, are_rows: Sequence[bool], are_own: Sequence[bool], place: str, rows: int = 0):
        """Plan the calls of `own`. Collective: all ranks come to the same plan.

        Args:
            are_rows: of each tensor that the function takes, whether it has the rows that ranks divide.
            are_own: of each, whether it stands for an iterator or a dataset of each rank's own rows.
            place: names the step in messages.
            rows: how many there are in this call; 0 where that is not known.
        """
        self.own, self.place, self.rows = own, place, rows
        graph = own.graph
        self.given = len(are_rows)  # tensors; the rest of what the graph takes it has captured
        captured = [one for one, _ in graph.captures]
        self.are_own = [*are_own, *(own_data.is_own(one) for one in captured)]
        self.divided = [one and sources.has_open_rows(tensor.shape) for one, tensor in zip(are_rows, graph.inputs)]
        self.divided += [False] * len(captured)
        self.graph = graph
        self.source = self._find_source()
        if self.source is not None:
            self.graph = sources.GivenBatch(graph, self.source)
            self.divided += [sources.has_open_rows(tensor.shape) for tensor in self.source.outputs]
        self.program: Program | None = None
        self._copies: dict[tuple[int, ...], Any] = {}
        self.parts = shares.make_parts()
        self.trained = whole_code.list_trained(own)
        self.batches = batch_watch.BatchWatch(f"a batch of {place}")
        self.why_whole = self._find_obstacle()
        if self.why_whole in (NO_BATCH, NO_WORK):
            if self.trained and agreement.is_watched():
                agreement.agree_on_new(graph.variables)
            return  # else, what a script's rank does by itself is its own affair
        if not self.why_whole:
            try:
                self._find_copy(self.divided)
            except Exception as error:  # of any op: the script's own function is always right
                self.why_whole = f"its copy cannot be made ({type(error).__name__}: {error})"
        self.why_whole = agreement.agree_on_trace(graph, self.why_whole, place)
        if self.why_whole and any(self.are_own):
            raise world.RankError(own_data.explain_obstacle(place, self.why_whole))

    def _find_source(self) -> Any:
        """The op whose batch is taken before the function is called; None where there is none, or no need of it.

        Ranks with rows of their own take them in the graph, where they tell one another how many.
        """
        if any(self.divided):
            return None
        source = sources.find_source(self.graph)
        return None if source is None or self.are_own[self._find_handle(source)] else source

    def _find_handle(self, source: Any) -> int:
        """The place among the inputs of the iterator from which `source` takes."""
        return [id(one) for one in self.graph.inputs].index(id(source.inputs[0]))

    def _find_obstacle(self) -> str:
        if getattr(self.own.graph, "deferred_external_captures", None):
            return "it takes values that are known only when it is called"
        if not any(self.divided) and not sources.are_in(self.own.graph):
            return NO_BATCH
        try:
            self.program = self._read(self.divided)
        except OwnRowsError as error:
            return str(error)
        except Exception as error:  # of any rule: the script's own function is always right
            return f"its graph cannot be read ({type(error).__name__}: {error})"
        if not any(self.are_own) and not worth.has_shared_work(self.program):
            return NO_WORK
        return ""

    def _read(self, divided: Sequence[bool]) -> Program:
        placements = [BATCH if one else WHOLE for one in divided]
        placements[: len(self.are_own)] = [OWN if is_own else one for one, is_own in zip(placements, self.are_own)]
        return read_program(self.graph, placements, takes_batches=self.source is None, rows=self.rows or USUAL_SIZE)

    def _find_copy(self, divided: list[bool]) -> Any:
        """The copy that divides these inputs, for as many ranks as there are."""
        key = world.get_world().size, *divided
        if key not in self._copies:
            if self._copies and draws.has_sequence(self.own.graph):
                uneven = "the components of some batches have different numbers of rows"
                why = "ranks were lost" if divided == self.divided else uneven
                notes.print_note(
                    f"{self.place}: {why}, and the random numbers of what it computes then are not those of the script "
                    "alone, as those of tf.random.stateless_uniform would be"
                )
            program = self._read(divided) if self._copies or self.program is None else self.program
            self._copies[key] = self._make_copy(program, divided)
        return self._copies[key]

    def _make_copy(self, program: Program, divided: list[bool]) -> Any:
        """The copy, as a ConcreteFunction of the number of rows, of what the script's takes, and of the batch."""
        import tensorflow as tf

        outer = [one for one, _ in self.own.graph.captures]
        end = self.given + len(outer)
        taken = [*self.graph.inputs[: self.given], *self.graph.inputs[end:]]
        specs = [tf.TensorSpec([], tf.float64), *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in taken)]
        make_share = functools.partial(shares.make_share if any(divided) else self.batches.make_share, parts=self.parts)

        def step(rows: Any, *given: Any) -> Any:
            here = tf.compat.v1.get_default_graph()
            exchanger = RankExchanger(self.place, rows if any(divided) else None)
            make_own_share = functools.partial(shares.make_own_share, exchanger)
            copy = Copy(shares.make_no_share(), exchanger, make_share, make_own_share)
            inputs = [*given[: self.given], *map(here.capture, outer), *given[self.given :]]
            inputs = sources.take_rows(copy, inputs, divided)
            return copy.build(program, inputs, [WHOLE] * len(program.outputs))

        return tf.function(step, autograph=False, input_signature=specs).get_concrete_function()

    def take_batch(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The batch of a call with these tensors, as far as it is taken before the call; None at the end of data."""
        import tensorflow as tf

        if self.source is None:
            return []
        handle = [*inputs, *self.own.captured_inputs][self._find_handle(self.source)]
        dtypes, shapes = zip(*((tensor.dtype, tensor.shape) for tensor in self.source.outputs))
        try:
            return list(tf.raw_ops.IteratorGetNext(iterator=handle, output_types=dtypes, output_shapes=shapes))
        except tf.errors.OutOfRangeError:
            return None

    def call(self, inputs: Sequence[Any], batch: Sequence[Any] | None, sources: Sequence[Any] = ()) -> Any:
        """What the script's function gives for these tensors, by all ranks. Collective, but at the end of data.

        Args:
            batch: see `take_batch`. A call with the same batch can be made again.
            sources: the iterators and datasets among the arguments.
        """
        import tensorflow as tf

        if batch is None:
            return self.own._call_flat(list(inputs), self.own.captured_inputs)
        given = [*inputs, *batch]
        flags = [*self.divided[: self.given], *self.divided[len(self.are_own) :]]
        rows = [tensor for tensor, one in zip(given, flags) if one]
        counts = {tensor.shape[0] for tensor in rows}
        self.rows = max(counts, default=0)
        events.step_begins(self)
        divided = self.divided if len(counts) < 2 else [False] * len(self.divided)
        count = tf.constant(float(self.rows), tf.float64)

        def compute(instead: Mapping[int, Any]) -> Any:
            with failures.fail_together(self.place, self.own.graph.variables):
                return self._find_copy(divided)(count, *(instead.get(id(one), one) for one in given))

        with self.batches.compare_batches(sources, rows):
            outputs = _execute(self, compute, sources)
        agreement.note_step()
        if self.trained:
            weak_scaling.note_training_call()
        events.step_ended(self)
        return self.own.function_type.pack_output(outputs)
