"""`tf.GradientTape.gradient`: in a loop of the script's own, gradients are reduced here, where they are born.

So whatever the script does with them before the optimizer, such as clipping, it does with those of the global batch.
Gradients with respect to tensors that are not variables are left alone, and so are all while an outer tape records.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from matex_tf import births, replay
from matex_tf.patches import replace

_active = threading.local()

# Gradients that TensorFlow takes for its own purposes are parts of a larger one.
_INTERNAL = (
    "tensorflow.python.eager.",
    "tensorflow.python.ops.",
    "tensorflow.python.training.",
    "tensorflow.python.keras.",
)
# Keras' own training step hands its gradients to the optimizer, which reduces them once for each real update.
_KERAS = ("keras.", "tf_keras.")
_JACOBIAN = (
    "gradients of weights are taken of many values at once (tape.jacobian), so every rank computes whole batches: "
    "right, but not faster"
)


def install() -> None:
    from tensorflow.python.eager import backprop

    replace(backprop.GradientTape, "_push_tape", _push)
    replace(backprop.GradientTape, "_pop_tape", _pop)
    replace(backprop.GradientTape, "gradient", _gradient)
    replace(backprop.GradientTape, "jacobian", _jacobian)


def _stack() -> list:
    if not hasattr(_active, "stack"):
        _active.stack = []
    return _active.stack


def recording() -> bool:
    """Whether a tape records in this thread."""
    return bool(_stack())


def _push(original: Any) -> Any:
    def _push_tape(self):
        original(self)
        _stack().append(self)

    return _push_tape


def _pop(original: Any) -> Any:
    def _pop_tape(self):
        original(self)
        _stack()[:] = [tape for tape in _stack() if tape is not self]

    return _pop_tape


def _jacobian(original: Any) -> Any:
    """One gradient for each row, of weights: what becomes of them (clipped, squared, solved for) need not add up."""

    def jacobian(self, target, sources, *args, **kwargs):
        result = original(self, target, sources, *args, **kwargs)
        births.not_of_slices(sources, _JACOBIAN)
        return result

    return jacobian


def _gradient(original: Any) -> Any:
    def gradient(self, target, sources, *args, **kwargs):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        recorder = replay.current()
        if recorder is not None and not caller.startswith(_INTERNAL):
            recorder.note_target(target)
        outermost = not getattr(_active, "going_back", False)
        _active.going_back = True
        try:
            with replay.paused():
                result = original(self, target, sources, *args, **kwargs)
        finally:
            _active.going_back = not outermost
        if caller.startswith(_INTERNAL) or not outermost:
            # A part of a larger gradient, as in the gradient function of a `tf.custom_gradient`.
            return result
        if any(tape is not self for tape in _stack()):
            births.leave_to_optimizer(sources)
            return result
        return births.reduce_structure(result, sources, target, owed=caller.startswith(_KERAS))

    return gradient
