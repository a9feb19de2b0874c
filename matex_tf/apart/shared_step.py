"""The training step of a model, rewritten to add to variables that the ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.apart import additive
from matex_tf.steps.plan import StepPlan
from matex_tf.steps.variables import find_name, find_tf_variable

_TYPES = ("float32", "float64", "int32", "int64")


class SharedStep:
    """The copy of a planned step whose variables exist.

    shared: the TensorFlow variables to which it adds.
    sums: variables of metrics; each rank counts its own changes.
    counters: variables that each step changes by a constant amount, with that amount, such as states of random numbers.
    told: other variables that each rank has for itself: those that the step changes, and scalars such as the learning
    rate.
    parts: for each addition, the index of its variable, by which losses of ranks are repaired.
    why_not: the reason why ranks cannot share it; "" if they can.
    """

    def __init__(self, plan: StepPlan, model: Any):
        self.plan = plan
        self.shared: list[Any] = []
        self.counters: list[tuple[Any, Any]] = []
        self.told: list[Any] = []
        self.parts: list[int] = []
        self._run: Any = None
        self.sums = _find_inner(model.metrics_variables)
        counted = set(map(id, self.sums))
        weights = [one for one in _find_inner(model.weights) if id(one) not in counted]
        trained = set(map(id, _find_inner(model.trainable_variables)))
        optimizer = _find_inner(model.optimizer.variables)
        known = list({id(one): one for one in [*weights, *optimizer]}.values())
        private = [one for one in _find_inner(model.variables) if all(one is not other for other in known)]
        states = [one for one in weights if id(one) not in trained]
        try:
            self.why_not = self._copy(additive.Additions(known, states), known, private)
        except Exception as error:  # of any op; the ranks then use allreduce
            self.why_not = f"its copy cannot be made ({type(error).__name__}: {error})"
        self.sums, changed = self._list_changed(self.sums), self._list_changed(private)
        if self._run is not None:
            self.counters = additive.find_amounts(self._run.graph, changed)
        apart = {id(one) for one in (*weights, *self.shared, *self.sums, *(one for one, _ in self.counters))}
        scalars = [one for one in optimizer if one.shape.rank == 0]
        self.told = [one for one in [*scalars, *changed] if id(one) not in apart]

    def _copy(self, additions: additive.Additions, known: Sequence[Any], private: Sequence[Any]) -> str:
        import tensorflow as tf

        plan, why = self.plan, [""]
        if plan.source is None or plan.given != 1:
            return "it does not take its batch as the steps of Keras do"
        program = additive.read_step(plan.graph)
        outer = [one for one, _ in plan.traced.graph.captures]
        taken = [*plan.graph.inputs[: plan.given], *plan.graph.inputs[plan.given + len(outer) :]]

        def step(*given: Any) -> list[Any]:
            here = tf.compat.v1.get_default_graph()
            inputs = [*given[: plan.given], *map(here.capture, outer), *given[plan.given :]]
            outputs = additions.copy_step(program, inputs)
            why[0] = additions.why_not or additive.find_obstacle(here, known, self.sums, private)
            self.shared = additive.list_written(here, known)
            return outputs

        specs = [tf.TensorSpec(one.shape, one.dtype) for one in taken]
        self._run = tf.function(step, autograph=False, input_signature=specs).get_concrete_function()
        self.parts = additions.parts
        other = next((one for one in self.shared if one.dtype.name not in _TYPES), None)
        if other is not None:
            return f"'{find_name(other)}' has dtype {other.dtype.name}"
        return why[0]

    def _list_changed(self, variables: Sequence[Any]) -> list[Any]:
        return additive.list_written(self._run.graph, variables) if self._run is not None else []

    def take_batch(self, iterator: Any) -> list[Any] | None:
        """The next batch of an iterator; None at its end."""
        batch = self.plan.take_batch(iterator._iterator_resource)
        return None if batch is None else batch.take_whole()

    def call(self, iterator: Any, batch: Sequence[Any]) -> Any:
        """Run the step on a batch and return its results; its changes are additions."""
        return self.plan.traced.function_type.pack_output(self._run(iterator._iterator_resource, *batch))


def _find_inner(variables: Sequence[Any]) -> list[Any]:
    return list(map(find_tf_variable, variables))
