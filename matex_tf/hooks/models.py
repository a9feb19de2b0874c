"""Calls of Keras models in eager code while tapes record, and what is seen of the first of them."""

from __future__ import annotations

from typing import Any

from matex_tf.runtime.replace import patch_when_imported, replace_function
from matex_tf.steps import agreement
from matex_tf.steps.tapes import calls, first_calls


def install() -> None:
    from tensorflow.python.eager import backprop
    from tensorflow.python.framework import ops, random_seed

    replace_function(random_seed, "get_seed", _wrap_seed)
    base = next(kind for kind in ops.EagerTensor.__mro__ if "_numpy" in vars(kind))
    replace_function(base, "_numpy", _wrap_numpy)
    replace_function(backprop.GradientTape, "_push_tape", _wrap_push)
    replace_function(backprop.GradientTape, "_pop_tape", _wrap_pop)
    patch_when_imported("keras.src.models.model", _patch_keras)
    for package in ("keras", "tf_keras"):
        patch_when_imported(f"{package}.src.engine.training", _patch_keras)


def _patch_keras(module: Any) -> None:
    if hasattr(module, "Model"):
        replace_function(module.Model, "__call__", _wrap_call)


def _wrap_numpy(original: Any) -> Any:
    def read(self):
        first_calls.note_read(self)
        return original(self)

    return read


def _wrap_seed(original: Any) -> Any:
    def get_seed(op_seed):
        first_calls.note_draw()
        return original(op_seed)

    return get_seed


def _wrap_push(original: Any) -> Any:
    def _push_tape(self):
        original(self)
        first_calls.get_tapes().append(self)

    return _push_tape


def _wrap_pop(original: Any) -> Any:
    def _pop_tape(self):
        original(self)
        first_calls.get_tapes()[:] = [tape for tape in first_calls.get_tapes() if tape is not self]

    return _pop_tape


def _wrap_call(original: Any) -> Any:
    from tensorflow.python.eager import record

    def __call__(self, *args, **kwargs):
        import tensorflow as tf

        if not tf.executing_eagerly() or not record.could_possibly_record() or not agreement.is_sharing_eager_calls():
            return original(self, *args, **kwargs)
        return calls.call_model(original, self, args, kwargs)

    return __call__
