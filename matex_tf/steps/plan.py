"""The plan of a step: its trace, the placements of its tensors, and the copy that all ranks run together.

One way for every style of step: capture, plan, agree, call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from matex_tf.rewrite import sources
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.nodes import USUAL_SIZE
from matex_tf.rewrite.own_batches import OwnRowsError
from matex_tf.rewrite.pieces import PiecesRefusedError
from matex_tf.rewrite.placement import BATCH, OWN, WHOLE, Placement
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.steps import agreement, batch_watch, events, own_data, pieces, shares, weak_scaling, whole_code, worth
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.world import world

NO_BATCH = "it takes no batch"
NO_WORK = "it has no work that grows with the rows of its batch"


class StepPlan:
    """How calls of a traced function are computed.

    own: the script's trace, a ConcreteFunction.
    why_whole: why every rank computes the calls whole; empty where ranks share them.
    program: the placements; None where they could not be found.
    trained: the weights that a call changes.
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
        self.are_rows = [one and sources.has_open_rows(tensor.shape) for one, tensor in zip(are_rows, own.graph.inputs)]
        self.pieces = pieces.Holding(own.graph)
        captured = [one for one, _ in own.graph.captures]
        self.are_own = [*are_own, *(own_data.is_own(one) for one in captured)]
        self.program: Program | None = None
        self.step: Any = None
        self.calls = 0
        self.trained = whole_code.list_trained(own)
        self.batches = batch_watch.BatchWatch(f"a batch of {place}")
        self.why_whole = self._find_obstacle()
        if self.why_whole in (NO_BATCH, NO_WORK):
            if self.trained and agreement.is_watched():
                agreement.agree_on_new(own.graph.variables)
            return  # else, what a script's rank does by itself is its own affair
        if not self.why_whole:
            try:
                self.step = self._build()
            except Exception as error:  # of any op: the script's own function is always right
                self.why_whole = f"its copy cannot be made ({type(error).__name__}: {error})"
        self.why_whole = agreement.agree_on_trace(own.graph, self.why_whole, place)
        if self.why_whole and any(self.are_own):
            raise world.RankError(own_data.explain_obstacle(place, self.why_whole))
        events.step_planned(self)

    def _find_obstacle(self) -> str:
        graph = self.own.graph
        if getattr(graph, "deferred_external_captures", None):
            return "it takes values that are known only when it is called"
        if not any(self.are_rows) and not sources.are_in(graph):
            return NO_BATCH
        captures = len(graph.inputs) - len(self.are_rows)
        placements = [BATCH if one else WHOLE for one in self.are_rows] + [WHOLE] * captures
        placements = [OWN if is_own else one for one, is_own in zip(placements, self.are_own, strict=True)]
        try:
            self.program = self._read_program(placements)
        except OwnRowsError as error:
            return str(error)
        except Exception as error:  # of any rule: the script's own function is always right
            return f"its graph cannot be read ({type(error).__name__}: {error})"
        if not any(self.are_own) and not worth.has_shared_work(self.program):
            return NO_WORK
        return ""

    def _read_program(self, placements: list[Placement]) -> Program:
        """Its placements. Collective where an op takes a variable whole that ranks hold in pieces."""
        while True:
            held = zip(placements[len(self.are_rows) :], self.pieces.place())
            given = placements[: len(self.are_rows)] + [one if mine is None else mine for one, mine in held]
            try:
                return read_program(self.own.graph, given, rows=self.rows or USUAL_SIZE)
            except PiecesRefusedError as error:
                self.pieces.refuse(error.refused, self.place)

    def _build(self) -> Any:
        """The copy, as a ConcreteFunction of the tensors that the script's takes."""
        import tensorflow as tf

        if not self.pieces.holds:  # they are cut for other ranks
            self.pieces = pieces.Holding(self.own.graph)
            self._find_obstacle()
        program = self.program
        assert program is not None
        graph, are_rows = self.own.graph, self.are_rows
        specs = [tf.TensorSpec([], tf.float64)]
        specs += [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in graph.inputs[: len(are_rows)]]
        outer = self.pieces.find_handles(one for one, _ in graph.captures)

        def step(number: Any, *given: Any) -> Any:
            here = tf.compat.v1.get_default_graph()
            exchanger = RankExchanger(self.place, number)
            make_own_share = functools.partial(shares.make_own_share, exchanger)
            copy = Copy(shares.make_no_share(), exchanger, self.batches.make_share, make_own_share)
            inputs = sources.take_rows(copy, list(given), are_rows)
            inputs += [here.capture(one) for one in outer]
            outputs = copy.build(program, inputs, [WHOLE] * len(program.outputs))
            events.step_copied()
            return outputs

        return tf.function(step, autograph=False, input_signature=specs).get_concrete_function()

    def call(self, inputs: Sequence[Any], sources: Sequence[Any] = ()) -> Any:
        """What the script's function gives for these tensors, computed by all ranks. Collective.

        sources: the iterators and datasets among the arguments.
        """
        import tensorflow as tf

        self.calls += 1
        events.step_begins(self)
        with self.batches.compare_batches(sources):
            self.pieces.take_apart()
            outputs = self.step(tf.constant(float(self.calls), tf.float64), *inputs)
            events.step_computed(self)
        agreement.note_step()
        if self.trained:
            weak_scaling.note_training_call()
        events.step_ended(self)
        return self.own.function_type.pack_output(outputs)
