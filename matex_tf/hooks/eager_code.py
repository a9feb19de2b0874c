"""Updates in eager code, which every rank computes whole: gradients of tapes, and optimizers of Keras 3 and 2."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from matex_tf.lazy import tf
from matex_tf.runtime.hooks import Table
from matex_tf.steps import agreement, events, gradients, whole_code
from matex_tf.steps.variables import find_tf_variable

HOOKS = Table()
_IF_HOOK_MISSING = "ranks that begin with other values of weights stay apart in eager code"
_KERAS_2 = {"until": "3", "early": True}


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape.gradient", _IF_HOOK_MISSING)
def _wrap_gradient(original: Any) -> Any:
    def gradient(self, target, sources, *args, **kwargs):
        result = original(self, target, sources, *args, **kwargs)
        if not tf.executing_eagerly():
            gradients.note_gradients(result, sources)
        elif agreement.is_watched():
            trained = [leaf for leaf in tf.nest.flatten(sources) if hasattr(find_tf_variable(leaf), "assign")]
            if trained:
                return whole_code.take_gradients(self, result, trained)
        return result

    return gradient


def _wrap_update(list_updated: Callable[[Any, list[Any], Any], Iterable[Any]]) -> Any:
    """A hook for a method of optimizers, after which all ranks have the same values of new variables.

    list_updated: returns the variables of an update, from the optimizer and its first two arguments.
    """

    def make(original: Any) -> Any:
        signature = inspect.signature(original)
        _, first, second, *_ = signature.parameters

        def apply(self, *args, **kwargs):
            if not tf.executing_eagerly() or not agreement.is_watched():
                return original(self, *args, **kwargs)
            call = signature.bind(self, *args, **kwargs)
            call.arguments[first] = items = list(call.arguments[first])  # an iterator can be read only once
            updated = list(list_updated(self, items, call.arguments.get(second)))
            events.updates_eagerly(self)
            result = original(*call.args, **call.kwargs)
            slots = getattr(self, "variables", [])
            agreement.agree_on_new([*updated, *(slots() if callable(slots) else slots)])
            return result

        return apply

    return make


def _list_applied(optimizer: Any, gradients: list[Any], trainable_variables: Any) -> Iterable[Any]:
    return optimizer._trainable_variables if trainable_variables is None else trainable_variables


def _list_paired(optimizer: Any, pairs: list[Any], _: Any) -> Iterable[Any]:
    return (variable for _, variable in pairs)


HOOKS.replace("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", _IF_HOOK_MISSING, since="3", early=True)(
    _wrap_update(_list_applied)
)
for _module, _name in (("optimizers.optimizer", "Optimizer"), ("optimizers.legacy.optimizer_v2", "OptimizerV2")):
    HOOKS.replace(
        f"keras.src.{_module} tf_keras.src.{_module}", f"{_name}.apply_gradients", _IF_HOOK_MISSING, **_KERAS_2
    )(_wrap_update(_list_paired))
