"""Training steps in eager code: gradients of tapes, optimizers of Keras 3 and 2, and calls of models.

Every rank computes such a step whole, except for calls of Keras models, which ranks can share. The first hooks keep the
ranks' weights equal, after each gradient and update. The next hooks observe what happens in the first call of a model
(`first_calls`): reads of tensors, random numbers, and the tapes that record. This decides whether ranks can share its
calls. The last hook shares them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from matex_tf.lazy import tf
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps import agreement, events, gradients, whole_code
from matex_tf.steps.tapes import calls, first_calls
from matex_tf.steps.variables import find_tf_variable

HOOKS = KerasTable()
_BACKPROP = "tensorflow.python.eager.backprop"
_IF_HOOK_MISSING = "ranks that begin with other values of weights stay apart in eager code"
_IF_WATCH_MISSING = "a call of a model that a tape records is shared, whatever its first call shows"


@HOOKS.replace(_BACKPROP, "GradientTape.gradient", _IF_HOOK_MISSING)
def _wrap_gradient(original: Any) -> Any:
    none = tf.UnconnectedGradients.NONE

    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=none):
        def compute(sources, unconnected):
            return original(self, target, sources, output_gradients, unconnected)

        result = first_calls.compute_gradients(compute, sources, unconnected_gradients)
        if not tf.executing_eagerly():
            gradients.note_gradients(result, sources)
        elif agreement.is_watched():
            trained_variables = [
                source for source in tf.nest.flatten(sources) if hasattr(find_tf_variable(source), "assign")
            ]
            if trained_variables:  # if ranks began with different weights, all get rank 0's weights and gradients now
                return whole_code.finish_gradients(self, result, trained_variables)
        return result

    return gradient


def _wrap_update(list_updated: Callable[[Any, list[Any], Any], Iterable[Any]]) -> Any:
    """A hook for a method of optimizers that updates variables. It gives all ranks the same values of new variables.

    list_updated: returns the variables of an update, from the optimizer and the first two arguments of the method.
    """

    def wrap_method(original: Any) -> Any:
        signature = inspect.signature(original)
        _, first_name, second_name, *_ = signature.parameters

        def apply(self, *args, **kwargs):
            if not tf.executing_eagerly() or not agreement.is_watched():
                return original(self, *args, **kwargs)
            call = signature.bind(self, *args, **kwargs)
            for name in (first_name, second_name):  # an argument may be an iterator, which can be read only once
                if isinstance(call.arguments.get(name), Iterator):
                    call.arguments[name] = list(call.arguments[name])
            updated_variables = list(list_updated(self, call.arguments[first_name], call.arguments.get(second_name)))
            events.updates_eagerly(self)  # an event: the optimizer is about to update
            result = original(*call.args, **call.kwargs)
            slots = getattr(self, "variables", [])
            agreement.agree_on_new([*updated_variables, *(slots() if callable(slots) else slots)])
            return result

        return apply

    return wrap_method


# Keras 3: apply(gradients, trainable_variables=None). Keras 2: apply_gradients(pairs of gradient and variable, ...).
HOOKS.replace_in(_IF_HOOK_MISSING, "optimizers.base_optimizer:BaseOptimizer.apply")(
    _wrap_update(lambda optimizer, _, variables: optimizer._trainable_variables if variables is None else variables)
)
for _class in ("optimizers.optimizer:Optimizer", "optimizers.legacy.optimizer_v2:OptimizerV2"):
    HOOKS.replace_in(_IF_HOOK_MISSING, keras2=f"{_class}.apply_gradients")(
        _wrap_update(lambda optimizer, pairs, _: [variable for _, variable in pairs])
    )


@HOOKS.replace("tensorflow.python.framework.ops", "_EagerTensorBase._numpy", _IF_WATCH_MISSING)
def _wrap_numpy(original: Any) -> Any:
    def read(self):
        first_calls.note_read(self)
        return original(self)

    return read


@HOOKS.replace("tensorflow.python.framework.random_seed", "get_seed", _IF_WATCH_MISSING)
def _wrap_seed(original: Any) -> Any:
    """Count draws: functions such as `tf.random.normal`, which have no variable for their state, ask here for seeds."""

    def get_seed(op_seed):
        first_calls.observed.draws += 1
        return original(op_seed)

    return get_seed


@HOOKS.replace(_BACKPROP, "GradientTape._push_tape", _IF_WATCH_MISSING)
def _wrap_push(original: Any) -> Any:
    def _push_tape(self):
        original(self)
        first_calls.observed.note_tape(self)

    return _push_tape


@HOOKS.replace_in("no call of a model is shared", "models.model:Model.__call__", "engine.training:Model.__call__")
def _wrap_call(original: Any) -> Any:
    from tensorflow.python.eager import record

    def __call__(self, *args, **kwargs):
        if not tf.executing_eagerly() or not record.could_possibly_record() or not first_calls.may_be_shared():
            return original(self, *args, **kwargs)
        return calls.call_model(original, self, args, kwargs)

    return __call__
