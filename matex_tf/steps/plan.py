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
from matex_tf.rewrite.placement import BATCH, OWN, WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.steps import agreement, batch_watch, events, explain, own_data, shares, weak_scaling, whole_code, worth
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.world import world

NO_BATCH = "it takes no batch"
NO_WORK = "it has no work that grows with the rows of its batch"


class StepPlan:
    """How calls of a traced function are computed.

    own: the script's trace, a ConcreteFunction.
    step: the copy, a ConcreteFunction of the number of the call and of the tensors that the script's takes. None: every
        rank computes the calls by the script's function.
    trained: the weights that a call changes.
    """

    def __init__(self, own: Any, are_rows: Sequence[bool], are_own: Sequence[bool], place: str, rows: int = 0):
        """Plan the calls of `own`, and say how they are computed. Collective: all ranks come to the same plan.

        Args:
            are_rows: of each tensor that the function takes, whether it has the rows that ranks divide.
            are_own: of each, whether it stands for an iterator or a dataset of each rank's own rows.
            place: names the step in messages.
            rows: how many there are in this call; 0 where that is not known.

        Raises:
            RankError: on every rank, where each has its own rows and they cannot be put together, or traces differ.
        """
        self.own, self.place = own, place
        self.are_rows = [one and bool(tensor.shape.rank) for one, tensor in zip(are_rows, own.graph.inputs)]
        self.step: Any = None
        self.calls = 0
        self.trained = whole_code.list_trained(own)
        self.batches = batch_watch.BatchWatch(f"a batch of {place}")
        owned = [*are_own, *(own_data.is_own(one) for one, _ in own.graph.captures)]
        program, why_whole = self._read(owned, rows)
        if why_whole in (NO_BATCH, NO_WORK):
            if self.trained and agreement.is_watched():
                agreement.agree_on_new(own.graph.variables)  # else, what a rank does by itself is its own affair
            explain.say_whole(place, why_whole, is_usual=not self.trained)
            return
        step = None
        if program is not None:
            try:
                step = self._build(program)
            except Exception as error:  # of any op: the script's own function is always right
                why_whole = f"its copy cannot be made ({type(error).__name__}: {error})"
        why_whole = agreement.agree_on_trace(own.graph, why_whole, place)
        if program is not None and not why_whole:
            self.step = step
            explain.say_shared(place, program)
        elif any(owned):
            raise world.RankError(own_data.explain_obstacle(place, why_whole))
        else:
            explain.say_whole(place, why_whole, is_usual=False)

    def _read(self, are_own: Sequence[bool], rows: int) -> tuple[Program | None, str]:
        """The placements, or why ranks cannot share the calls. `are_own`: of each input of the graph."""
        graph = self.own.graph
        if getattr(graph, "deferred_external_captures", None):
            return None, "it takes values that are known only when it is called"
        if not any(self.are_rows) and not sources.are_in(graph):
            return None, NO_BATCH
        captures = len(graph.inputs) - len(self.are_rows)
        placements = [BATCH if one else WHOLE for one in self.are_rows] + [WHOLE] * captures
        placements = [OWN if is_own else one for one, is_own in zip(placements, are_own, strict=True)]
        try:
            program = read_program(graph, placements, rows=rows or USUAL_SIZE)
        except OwnRowsError as error:
            return None, str(error)
        except Exception as error:  # of any rule: the script's own function is always right
            return None, f"its graph cannot be read ({type(error).__name__}: {error})"
        return (program, "") if any(are_own) or worth.has_shared_work(program) else (None, NO_WORK)

    def _build(self, program: Program) -> Any:
        """The copy, as a ConcreteFunction of the tensors that the script's takes."""
        import tensorflow as tf

        graph, are_rows = self.own.graph, self.are_rows
        specs = [tf.TensorSpec([], tf.float64)]
        specs += [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in graph.inputs[: len(are_rows)]]
        outer = [one for one, _ in graph.captures]

        def step(number: Any, *given: Any) -> Any:
            here = tf.compat.v1.get_default_graph()
            exchanger = RankExchanger(self.place, number)
            make_own_share = functools.partial(shares.make_own_share, exchanger)
            copy = Copy(shares.make_no_share(), exchanger, self.batches.make_share, make_own_share)
            inputs = sources.take_rows(copy, list(given), are_rows)
            inputs += [here.capture(one) for one in outer]
            return copy.build(program, inputs, [WHOLE] * len(program.outputs))

        return tf.function(step, autograph=False, input_signature=specs).get_concrete_function()

    def call(self, inputs: Sequence[Any], sources: Sequence[Any] = ()) -> Any:
        """What the script's function gives for these tensors, computed by all ranks. Collective.

        sources: the iterators and datasets among the arguments.
        """
        import tensorflow as tf

        self.calls += 1
        events.step_begins(self)
        with self.batches.compare_batches(sources):
            outputs = self.step(tf.constant(float(self.calls), tf.float64), *inputs)
        agreement.note_step()
        if self.trained:
            weak_scaling.note_training_call()
        events.step_ended(self)
        return self.own.function_type.pack_output(outputs)
