"""`MATEX_STRATEGY=local:H`: in `fit` each rank trains H steps by itself, then all ranks average their weights.

`LocalSteps` listens to the events of steps and of `fit`. A step runs as a copy of its graph, which its plan makes;
usually the copy exchanges gradients with other ranks. In `fit`, `LocalSteps` lets the plan of a training step use a
local copy, in which the rank uses only its own rows (`own_rows`). Before all ranks use the model together, at the end
of an epoch, for validation, or to save it, they average all variables that local steps use. Ranks average variables in
the order of `_sort`, which is the same on all ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.apart import choice, keras_fit, own_rows
from matex_tf.apart.epoch_metrics import EpochMetrics
from matex_tf.apart.own_rows import is_divisible
from matex_tf.lazy import tf
from matex_tf.resilience import elastic
from matex_tf.runtime import notes, objects
from matex_tf.steps import agreement, events
from matex_tf.steps.copies import CopyKind
from matex_tf.steps.variables import find_birth, find_name, find_tf_variable, read_value
from matex_tf.world import world


def read_period() -> int:
    """H, the number of steps between two averages."""
    return settings.get_strategy_number(settings.get_settings().strategy, 1)


class LocalSteps:
    """Listens to training steps after `start_listening`, and switches the steps of `fit` to local training."""

    def __init__(self) -> None:
        self._plans: weakref.WeakSet[Any] = weakref.WeakSet()  # plans that use local copies
        self._obstacles: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        """For each plan, the reason why its steps cannot run locally; "" if they can."""
        # The variables of local steps since the last average of all variables, by id:
        self._trained: dict[int, Any] = {}  # the trained weights
        self._used: dict[int, Any] = {}  # all variables
        self._steps = 0  # since the last average of weights
        self._may_differ = False  # local steps have run since the last average of all variables
        self._epoch_metrics: weakref.WeakKeyDictionary[Any, EpochMetrics] = weakref.WeakKeyDictionary()
        """Of all ranks, for the logs of callbacks, by the models that have trained locally in the present epoch."""

    def start_listening(self) -> None:
        events.training_begins.add_listener(self._begin_training)
        events.step_begins.add_listener(self._begin_step)
        events.step_ended.add_listener(self._end_step)
        events.step_trained.add_listener(self._note_trained)
        events.ranks_meet.add_listener(self._average_all)
        events.epoch_logs_made.add_listener(self._update_logs)

    def _begin_training(self, model: Any, callbacks: Any) -> None:
        why = _find_obstacle(model)
        if why:
            choice.report_fallback("local", f"fit on '{model.name}'", why)
        self._epoch_metrics.pop(model, None)

    def _begin_step(self, plan: Any) -> None:
        """Choose the copy of a step: local if `fit` trains with it and its graph allows it, else the usual one.

        Collective if ranks compute the step together, and their variables may differ.
        """
        model = keras_fit.fitted.get()
        is_training = model is not None and choice.is_chosen("local") and bool(plan.trained)  # weights
        is_local = is_training and not _find_obstacle(model) and self._can_run_locally(plan)
        if not is_local:
            self._average_all(plan.place)
        if is_local and plan not in self._plans:
            plan.copies.kind = CopyKind(own_rows.OwnCopy, own_rows.OwnExchanger)
            self._plans.add(plan)
            _report_averaging()
        elif not is_local and plan in self._plans:  # such as a step of `fit` that the script calls in its own loop, too
            plan.copies.kind = CopyKind()
            self._plans.remove(plan)
        if is_local:
            self._may_differ = True
            self._epoch_metrics.setdefault(model, EpochMetrics())
            agreement.expect_differences(True)  # compare no weights between ranks until the next average

    def _note_trained(self, plan: Any) -> None:
        """Report a step outside of `fit`, or a replicated one (`plan.why_whole`): ranks train it together."""
        if keras_fit.fitted.get() is None:
            choice.report_fallback("local", choice.name_step(plan), choice.ONLY_FIT)
        elif plan is not None and plan.why_whole:
            choice.report_fallback("local", plan.place, plan.why_whole)

    def _can_run_locally(self, plan: Any) -> bool:
        if plan not in self._obstacles:
            why = own_rows.find_obstacle(plan.program)
            self._obstacles[plan] = why
            if why:
                choice.report_fallback("local", f"fit on '{keras_fit.fitted.get().name}'", why)
        return not self._obstacles[plan]

    def _end_step(self, plan: Any) -> None:
        """Record the variables of a local step. Every H steps, average the weights: collective.

        After another training step, which may follow local ones, read the metrics again.
        """
        if plan in self._plans:
            self._used |= {id(variable): variable for variable in map(find_tf_variable, plan.traced.graph.variables)}
            self._trained |= {id(variable): variable for variable in map(find_tf_variable, plan.trained)}
            self._steps += 1
            if self._steps == read_period():
                self._average_trained()
        elif plan.trained and (model := keras_fit.fitted.get()) in self._epoch_metrics:
            self._epoch_metrics[model].read_metrics(model)

    def _average_all(self, _doing: str) -> None:
        """Average all variables of local steps. Collective if there were local steps since the last time.

        Variables other than weights, such as moments and moving averages, are averaged only here, if they differ.
        """
        if not self._may_differ:
            return
        self._may_differ = False
        if self._steps:
            self._average_trained()
        others = [variable for variable_id, variable in self._used.items() if variable_id not in self._trained]
        others = _sort(variable for variable in others if variable.dtype.name != "string")
        digests = [ops.hash_content(read_value(variable)) for variable in others]
        digests_by_rank = objects.allgather(digests, "the variables of ranks that trained by themselves")
        _average([variable for variable, hashes in zip(others, zip(*digests_by_rank)) if len(set(hashes)) > 1])
        self._trained, self._used = {}, {}
        agreement.expect_differences(False)
        for model, epoch_metrics in self._epoch_metrics.items():
            epoch_metrics.read_metrics(model)

    def _update_logs(self, model: Any, logs: dict[str, Any]) -> None:
        epoch_metrics = self._epoch_metrics.pop(model, None)
        if epoch_metrics is not None:
            epoch_metrics.update_logs(logs, lambda values: sum(values) / len(values))

    def _average_trained(self) -> None:
        self._steps = 0
        _average(_sort(self._trained.values()))


def _find_obstacle(model: Any) -> str:
    """The reason why ranks cannot train by themselves in a call of `fit`; "" if none is known yet."""
    if elastic.is_on():
        return "with MATEX_ELASTIC all ranks need equal weights in each step"
    if hasattr(getattr(model, "optimizer", None), "inner_optimizer"):
        return (
            "its optimizer skips steps with overflowing gradients, and all ranks must skip the same steps "
            "(LossScaleOptimizer)"
        )
    return choice.find_obstacle(model)


def _report_averaging() -> None:
    steps = "each step" if read_period() == 1 else f"{read_period()} steps"
    notes.print_note(
        f"local: {world.get_world().size} ranks, each on its slices of batches by itself; after {steps} the "
        "average of their weights; results are statistical, not those of the script alone (docs/strategies.md)"
    )


def _sort(variables: Iterable[Any]) -> list[Any]:
    """Sort by name, and by the order of creation within a name.

    The order of creation alone may differ between ranks: an optimizer creates its moments in the order of the weights
    that a `train_step` of the script lists, which may come from a set (`steps.variables.find_differing`).
    """
    return sorted(variables, key=lambda variable: (find_name(variable), find_birth(variable)))


def _average(variables: Sequence[Any]) -> None:
    """Set TensorFlow variables to their averages over the ranks. Collective."""
    rank_count = world.get_world().size
    float_variables = [variable for variable in variables if is_divisible(variable.dtype)]
    if float_variables:
        names, numbers = list(map(find_name, float_variables)), list(map(_read_numbers, float_variables))
        # One op sums all of them, as it sums gradients.
        sums = ops.reduce_gradients(numbers, names, ops.make_weight(1), "the average of variables", is_update=False)
        for variable, total in zip(float_variables, sums):
            average = tf.cast(total / rank_count, variable.dtype.real_dtype)
            variable.assign(tf.bitcast(average, variable.dtype))
    for variable in variables:
        if not is_divisible(variable.dtype):  # an integer variable has no fractions
            number = tf.cast(variable.read_value(), tf.int64)
            total = ops.allreduce(number, "sum", f"the average of '{find_name(variable)}'")
            variable.assign(tf.cast(total // rank_count, variable.dtype))


def _read_numbers(variable: Any) -> Any:
    """The value of a floating-point variable in real numbers, two for each complex one; half precision as float32, as
    the sum over the ranks may be too large for it.
    """
    numbers = tf.bitcast(variable.read_value(), variable.dtype.real_dtype)
    return tf.cast(numbers, tf.float32) if numbers.dtype.size == 2 else numbers
