"""The training step of a model for `async`, rewritten to add to variables that the ranks share (`additive`).

With `async`, ranks train different batches at the same time on the same weights. `async_fit` makes a `SharedStep` of
the plan of Keras' train function (a plan has the traced graph of a step); `turns` calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.apart import additive
from matex_tf.own_functions import trace_own
from matex_tf.steps.plan import StepPlan
from matex_tf.steps.variables import find_name, find_tf_variable

_TYPES = ("float32", "float64", "int32", "int64")  # dtypes of variables that the ops for shared memory can change


class SharedStep:
    """The copy of a planned step. It creates no variables."""

    shared: list[Any]
    """The TensorFlow variables in shared memory, weights and the optimizer's, to which the step adds."""
    sums: list[Any]
    """Variables of metrics; each rank counts its own changes."""
    counters: list[tuple[Any, Any]]
    """(variable, amount) pairs: each step changes the variable by this constant amount, as states of random numbers."""
    own: list[Any]
    """The other variables that the step changes, and scalars of the optimizer such as the learning rate. Each rank has
    its own values of them."""
    parts: list[int]
    """For each addition, the index of its variable. With it the store repairs the step of a lost rank."""
    why_not: str
    """The reason why ranks cannot share the step; "" if they can."""

    def __init__(self, plan: StepPlan, model: Any):
        self.plan = plan
        self.shared, self.counters, self.parts = [], [], []
        self._function: Any = None
        # The variables of the model: of metrics, sharable (weights and the optimizer's), and private (the rest).
        metrics = _find_inner(model.metrics_variables)
        metric_ids = set(map(id, metrics))
        weights = [variable for variable in _find_inner(model.weights) if id(variable) not in metric_ids]
        trained = set(map(id, _find_inner(model.trainable_variables)))
        optimizer = _find_inner(model.optimizer.variables)
        sharable = list({id(variable): variable for variable in [*weights, *optimizer]}.values())
        sharable_ids = set(map(id, sharable))
        private = [variable for variable in _find_inner(model.variables) if id(variable) not in sharable_ids]
        states = [variable for variable in weights if id(variable) not in trained]  # such as moving averages
        try:
            self.why_not = self._copy(additive.Additions(sharable, states), sharable, metrics, private)
        except Exception as error:  # of any op; the ranks then use allreduce
            self.why_not = f"its copy cannot be made ({type(error).__name__}: {error})"
        # The metrics' variables, and the private variables, that the copy changes.
        self.sums, changed = self._list_changed(metrics), self._list_changed(private)
        if self._function is not None:
            self.counters = additive.find_amounts(self._function.graph, changed)
        counted = [variable for variable, _ in self.counters]
        not_own = set(map(id, [*weights, *self.shared, *self.sums, *counted]))
        scalars = [variable for variable in optimizer if variable.shape.rank == 0]
        self.own = [variable for variable in [*scalars, *changed] if id(variable) not in not_own]

    def _copy(
        self, additions: additive.Additions, sharable: Sequence[Any], metrics: Sequence[Any], private: Sequence[Any]
    ) -> str:
        """Trace the copy. Returns the reason why ranks cannot share it; "" if they can."""
        import tensorflow as tf

        plan, why_not = self.plan, ""
        if plan.source is None or plan.argument_count != 1:
            return "it does not take its batch as the steps of Keras do"
        program = additive.read_step(plan.graph)
        # The inputs of the plan's graph are, in this order: the one argument, the captured tensors, and the batch.
        captured = [outer for outer, _ in plan.traced.graph.captures]
        argument, *others = plan.graph.inputs

        def step(iterator: Any, *batch: Any) -> list[Any]:
            nonlocal why_not
            graph = tf.compat.v1.get_default_graph()
            inputs = [iterator, *map(graph.capture, captured), *batch]
            outputs = additions.copy_step(program, inputs)
            why_not = additions.why_not or additive.find_obstacle(graph, sharable, metrics, private)
            self.shared = additive.list_written(graph, sharable)
            return outputs

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (argument, *others[len(captured) :])]
        self._function = trace_own(step, input_signature=specs)
        self.parts = additions.parts
        unsupported = next((variable for variable in self.shared if variable.dtype.name not in _TYPES), None)
        if unsupported is not None:
            return f"'{find_name(unsupported)}' has dtype {unsupported.dtype.name}"
        return why_not

    def _list_changed(self, variables: Sequence[Any]) -> list[Any]:
        """The `variables` that the copy changes; none if there is no copy."""
        return additive.list_written(self._function.graph, variables) if self._function is not None else []

    def take_batch(self, iterator: Any) -> list[Any] | None:
        """The next batch of an iterator; None at its end."""
        batch = self.plan.take_batch(iterator._iterator_resource)
        return None if batch is None else batch.take_whole()

    def call(self, iterator: Any, batch: Sequence[Any]) -> Any:
        """Run the step on a batch and return its results; its changes are additions."""
        return self.plan.traced.function_type.pack_output(self._function(iterator._iterator_resource, *batch))


def _find_inner(variables: Sequence[Any]) -> list[Any]:
    return list(map(find_tf_variable, variables))
