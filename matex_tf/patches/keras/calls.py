"""Calls of Keras models: what eager code makes of them under a tape is shared by the ranks (`model_calls`)."""

from __future__ import annotations

import functools
from typing import Any

from matex_tf.gradients import tape_stack
from matex_tf.loops import model_calls, side_effects
from matex_tf.loops.parts import model_parts
from matex_tf.runtime import script_frames
from matex_tf.runtime.replace import patch_when_imported, replace_function
from matex_tf.sharding import step_weight
from matex_tf.world import world


def install() -> None:
    patch_when_imported("tensorflow.python.framework.ops", _patch_tensors)
    patch_when_imported("keras.src.models.model", _patch_keras)
    for package in ("keras", "tf_keras"):
        patch_when_imported(f"{package}.src.engine.training", _patch_keras)


def _patch_tensors(module: Any) -> None:
    base = next(kind for kind in module.EagerTensor.__mro__ if "_numpy" in vars(kind))
    replace_function(base, "_numpy", _wrap_numpy)


def _wrap_numpy(original: Any) -> Any:
    def read(self):
        side_effects.note_read(self)
        return original(self)

    return read


def _patch_keras(module: Any) -> None:
    replace_function(module.Model, "__call__", _wrap_call)


def _wrap_call(original: Any) -> Any:
    of_script = functools.partial(script_frames.call_as_caller, original)

    def __call__(self, *args, **kwargs):
        tapes = tape_stack.list_tapes_here() if world.is_active() and not step_weight.is_alone() else []
        if not tapes:
            return of_script(self, *args, **kwargs)
        return model_calls.call_model(_in_parts, self, tapes, args, kwargs)

    def _in_parts(self, *args, **kwargs):
        return model_parts.call_in_parts(of_script, self, tape_stack.list_tapes_here(), args, kwargs)

    return __call__
