"""Updates in eager code, which every rank computes whole: gradients of tapes, and optimizers of Keras 3 and 2."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from matex_tf.gradients import reduction
from matex_tf.runtime.replace import patch_when_imported, replace_function
from matex_tf.steps import agreement, whole_code


def install() -> None:
    from tensorflow.python.eager import backprop

    replace_function(backprop.GradientTape, "gradient", _wrap_gradient)
    patch_when_imported("keras.src.optimizers.base_optimizer", _patch_keras3)
    for package in ("keras", "tf_keras"):
        patch_when_imported(f"{package}.src.optimizers.optimizer", _patch_keras2)
        patch_when_imported(f"{package}.src.optimizers.legacy.optimizer_v2", _patch_keras2_legacy)


def _patch_keras3(module: Any) -> None:
    replace_function(module.BaseOptimizer, "apply", _wrap_update(_list_applied))


def _patch_keras2(module: Any) -> None:
    if hasattr(module, "_BaseOptimizer"):  # Keras 3 has a module of this name, too
        replace_function(module.Optimizer, "apply_gradients", _wrap_update(_list_paired))


def _patch_keras2_legacy(module: Any) -> None:
    replace_function(module.OptimizerV2, "apply_gradients", _wrap_update(_list_paired))


def _wrap_gradient(original: Any) -> Any:
    def gradient(self, target, sources, *args, **kwargs):
        import tensorflow as tf

        result = original(self, target, sources, *args, **kwargs)
        if tf.executing_eagerly() and agreement.is_watched():
            trained = [one for one in tf.nest.flatten(sources) if hasattr(reduction.find_tf_variable(one), "assign")]
            if trained:
                return whole_code.take_gradients(self, result, trained)
        return result

    return gradient


def _wrap_update(list_updated: Callable[[Any, list[Any], Any], Iterable[Any]]) -> Any:
    """`list_updated`: the variables of an update, of the optimizer and its first two arguments."""

    def make(original: Any) -> Any:
        signature = inspect.signature(original)
        _, first, second, *_ = signature.parameters

        def apply(self, *args, **kwargs):
            import tensorflow as tf

            if not tf.executing_eagerly() or not agreement.is_watched():
                return original(self, *args, **kwargs)
            given = signature.bind(self, *args, **kwargs)
            given.arguments[first] = items = list(given.arguments[first])  # an iterator gives them once
            updated = list(list_updated(self, items, given.arguments.get(second)))
            result = original(*given.args, **given.kwargs)
            own = getattr(self, "variables", [])
            agreement.agree_on_new([*updated, *(own() if callable(own) else own)])
            return result

        return apply

    return make


def _list_applied(optimizer: Any, gradients: list[Any], trainable_variables: Any) -> Iterable[Any]:
    return optimizer._trainable_variables if trainable_variables is None else trainable_variables


def _list_paired(optimizer: Any, pairs: list[Any], _: Any) -> Iterable[Any]:
    return (variable for _, variable in pairs)
