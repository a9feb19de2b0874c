"""Calls of Keras models: what eager code makes of them under a tape is shared by the ranks (`model_calls`)."""

from __future__ import annotations

import functools
from typing import Any

from matex_tf.gradients import tape_stack
from matex_tf.loops import model_calls, side_effects
from matex_tf.loops.parts import model_parts
from matex_tf.runtime import script_frames
from matex_tf.runtime.hooks import put_function
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import step_weight
from matex_tf.world import world

HOOKS = KerasTable()


def _put_into_base(owner: Any, name: str, make: Any) -> None:
    put_function(next(kind for kind in owner.__mro__ if name in vars(kind)), name, make)


@HOOKS.replace(
    "tensorflow.python.framework.ops", "EagerTensor._numpy", "a step that reads a figure is shared", put=_put_into_base
)
def _wrap_numpy(original: Any) -> Any:
    def read(self):
        side_effects.note_read(self)
        return original(self)

    return read


@HOOKS.replace_in(
    "a model called under a tape is not shared",
    "models.model:Model.__call__",
    "engine.training:Model.__call__",
)
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
