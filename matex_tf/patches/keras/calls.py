"""Calls of Keras models: what eager code makes of them under a tape is shared by the ranks (`model_calls`)."""

from __future__ import annotations

import functools
from typing import Any

from matex_tf.gradients import tape_stack
from matex_tf.loops import model_calls, model_watch
from matex_tf.loops.parts import model_parts
from matex_tf.runtime import script_frames
from matex_tf.runtime.replace import replace, when_imported
from matex_tf.sharding import step_weight
from matex_tf.world import world


def install() -> None:
    when_imported("tensorflow.python.framework.ops", _tensors)
    when_imported("keras.src.models.model", _keras)
    for package in ("keras", "tf_keras"):
        when_imported(f"{package}.src.engine.training", _keras)


def _tensors(module: Any) -> None:
    base = next(kind for kind in module.EagerTensor.__mro__ if "_numpy" in vars(kind))
    replace(base, "_numpy", _numpy)


def _numpy(original: Any) -> Any:
    def read(self):
        model_watch.note_read(self)
        return original(self)

    return read


def _keras(module: Any) -> None:
    replace(module.Model, "__call__", _call)


def _call(original: Any) -> Any:
    of_script = functools.partial(script_frames.pass_on, original)

    def __call__(self, *args, **kwargs):
        tapes = tape_stack.here() if world.is_active() and not step_weight.is_alone() else []
        if not tapes:
            return of_script(self, *args, **kwargs)
        return model_calls.call_model(_in_parts, self, tapes, args, kwargs)

    def _in_parts(self, *args, **kwargs):
        return model_parts.call_in_parts(of_script, self, tape_stack.here(), args, kwargs)

    return __call__
