"""The training step of a model for `async`, rewritten to add to variables that the ranks share (`additive`).

With `async`, ranks train different batches at the same time on the same weights. An assignment `w = w - 0.1 * g` would
undo the updates that other ranks made since w was read. So the step is copied, and its copy adds `-0.1 * g` to w.
`async_fit` makes a `SharedStep` of the plan of Keras' train function (a plan has the traced graph of a step). `turns`
calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.apart import additive
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.steps.batches import Batch
from matex_tf.steps.function_plan import FunctionPlan
from matex_tf.steps.variables import find_name, find_tf_variable

_TYPES = ("float32", "float64", "int32", "int64")  # dtypes of variables that the ops for shared memory can change


class SharedStep:
    """The copy of a planned step. It uses the variables of the model, and creates none."""

    shared: list[Any]
    """The TensorFlow variables that the step changes in shared memory: weights, and variables of the optimizer."""
    sums: list[Any]
    """The variables of metrics that the step changes. Each rank adds the values of its own batches to its own
    variables; at the end of an epoch the ranks add up what each has added."""
    counters: list[tuple[Any, Any]]
    """(variable, amount) pairs: each step changes the variable by this constant amount. An example is the state of a
    random generator. So the number of a batch determines the value of the variable."""
    own: list[Any]
    """Variables of which each rank has its own values: the other variables that the step changes, and scalars of the
    optimizer that it does not change, such as a learning rate that the script sets."""
    parts: list[int]
    """For each addition of the step, in the order in which they were created, the index of its variable among the
    variables that may be shared. The lists of all ranks have to be equal: the store counts how much of each addition a
    rank has made, so that another rank can make the rest if the rank is lost."""
    why_not: str
    """The reason why ranks cannot share the step; "" if they can."""

    def __init__(self, plan: FunctionPlan, model: Any):
        self.plan = plan
        self.shared, self.counters, self.parts = [], [], []
        self._function: Any = None
        # The variables of the model in three groups: of metrics; sharable, which are the other weights and the
        # optimizer's variables; and private, the rest. `states` are the weights that no optimizer changes.
        metrics = _find_inner(model.metrics_variables)
        metric_ids = set(map(id, metrics))
        weights = [variable for variable in _find_inner(model.weights) if id(variable) not in metric_ids]
        trained_ids = set(map(id, _find_inner(model.trainable_variables)))
        optimizer_variables = _find_inner(model.optimizer.variables)
        sharable = list({id(variable): variable for variable in [*weights, *optimizer_variables]}.values())
        sharable_ids = set(map(id, sharable))
        private = [variable for variable in _find_inner(model.variables) if id(variable) not in sharable_ids]
        states = [variable for variable in weights if id(variable) not in trained_ids]  # such as moving averages
        try:
            self.why_not = self._copy(additive.Additions(sharable, states), sharable, metrics, private)
        except Exception as error:  # the copy of an op may raise any error; the ranks then use allreduce
            self.why_not = f"its copy cannot be made ({type(error).__name__}: {error})"
        self.sums, changed_private = self._list_changed(metrics), self._list_changed(private)
        if self._function is not None:
            self.counters = additive.find_amounts(self._function.graph, changed_private)
        counter_variables = [variable for variable, _ in self.counters]
        # Weights are not a rank's own, and a variable of another list is not listed again.
        not_own_ids = set(map(id, [*weights, *self.shared, *self.sums, *counter_variables]))
        scalars = [variable for variable in optimizer_variables if variable.shape.rank == 0]
        self.own = [variable for variable in [*scalars, *changed_private] if id(variable) not in not_own_ids]

    def _copy(
        self, additions: additive.Additions, sharable: Sequence[Any], metrics: Sequence[Any], private: Sequence[Any]
    ) -> str:
        """Trace the copy. Returns the reason why ranks cannot share it; "" if they can."""
        inputs, obstacle = self.plan.inputs, ""  # `step` finds the obstacle while it is traced
        if inputs.source is None or inputs.argument_count != 1:
            return "it does not take its batch as the steps of Keras do"
        program = additive.read_step(inputs.graph)
        # The inputs of the plan's graph are, in this order: the one argument, the captured tensors, and the batch.
        captured = [outer for outer, _ in inputs.traced.graph.captures]
        argument, *other_inputs = inputs.graph.inputs
        batch_components = other_inputs[len(captured) :]

        def step(iterator: Any, *batch: Any) -> list[Any]:
            nonlocal obstacle
            graph = tf.compat.v1.get_default_graph()
            outputs = additions.copy_step(program, [iterator, *map(graph.capture, captured), *batch])
            obstacle = additions.why_not or additive.find_obstacle(graph, sharable, metrics, private)
            self.shared = additive.list_written(graph, sharable)
            return outputs

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (argument, *batch_components)]
        self._function = trace_own(step, input_signature=specs)
        self.parts = additions.parts
        unsupported_variable = next((variable for variable in self.shared if variable.dtype.name not in _TYPES), None)
        if unsupported_variable is not None:
            return f"'{find_name(unsupported_variable)}' has dtype {unsupported_variable.dtype.name}"
        return obstacle

    def _list_changed(self, variables: Sequence[Any]) -> list[Any]:
        """The `variables` that the copy changes; none if there is no copy."""
        return additive.list_written(self._function.graph, variables) if self._function is not None else []

    def take_batch(self, iterator: Any) -> Batch | None:
        """The next batch of an iterator; None at its end."""
        return self.plan.inputs.take_batch(iterator._iterator_resource)

    def call(self, iterator: Any, batch: Sequence[Any]) -> Any:
        """Run the copy on a batch. Returns the results in the structure in which the script's step returns them."""
        results = self._function(iterator._iterator_resource, *batch)
        return self.plan.traced.function_type.pack_output(results)


def _find_inner(variables: Sequence[Any]) -> list[Any]:
    return list(map(find_tf_variable, variables))
