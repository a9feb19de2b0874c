"""Calls of Keras models in eager code while tapes record, and observations of their first calls."""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
from matex_tf.runtime.hooks import put_function
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps.tapes import calls, first_calls

HOOKS = KerasTable()
_IF_HOOK_MISSING = "a call of a model that a tape records is shared, whatever its first call shows"


def _put_into_base(owner: Any, name: str, make: Any) -> None:
    put_function(next(kind for kind in owner.__mro__ if name in vars(kind)), name, make)


@HOOKS.replace("tensorflow.python.framework.ops", "EagerTensor._numpy", _IF_HOOK_MISSING, put=_put_into_base)
def _wrap_numpy(original: Any) -> Any:
    def read(self):
        first_calls.note_read(self)
        return original(self)

    return read


@HOOKS.replace("tensorflow.python.framework.random_seed", "get_seed", _IF_HOOK_MISSING)
def _wrap_seed(original: Any) -> Any:
    def get_seed(op_seed):
        first_calls.note_draw()
        return original(op_seed)

    return get_seed


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape._push_tape", _IF_HOOK_MISSING)
def _wrap_push(original: Any) -> Any:
    def _push_tape(self):
        original(self)
        first_calls.get_tapes().append(self)

    return _push_tape


@HOOKS.replace("tensorflow.python.eager.backprop", "GradientTape._pop_tape", _IF_HOOK_MISSING)
def _wrap_pop(original: Any) -> Any:
    def _pop_tape(self):
        original(self)
        first_calls.get_tapes()[:] = [tape for tape in first_calls.get_tapes() if tape is not self]

    return _pop_tape


@HOOKS.replace_in("no call of a model is shared", "models.model:Model.__call__", "engine.training:Model.__call__")
def _wrap_call(original: Any) -> Any:
    from tensorflow.python.eager import record

    def __call__(self, *args, **kwargs):
        if not tf.executing_eagerly() or not record.could_possibly_record() or not first_calls.may_be_shared():
            return original(self, *args, **kwargs)
        return calls.call_model(original, self, args, kwargs)

    return __call__
