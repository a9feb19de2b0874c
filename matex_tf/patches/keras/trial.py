"""In a trial of `matex tune`: what Keras' `fit` logs is noted, and what it learns. It also works without ranks."""

from __future__ import annotations

import inspect
import itertools
import math
import weakref
from typing import Any

from matex_tf.monitor import trial_log
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.world import world

HOOKS = KerasTable()

_LOST = "a trial of `matex tune` notes nothing of fit"

_numbers = itertools.count()
_calls: list[int] = []
"""The calls of `fit` that are under way, by their numbers: one within another comes last."""
_data: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""What is known of the data that a model was given last."""


@HOOKS.replace_in(_LOST, "backend.tensorflow.trainer:TensorFlowTrainer.fit", "engine.training:Model.fit", takes="x")
def _wrap_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    def fit(self, *args, **kwargs):
        _data[self] = _describe_data(signature.bind(self, *args, **kwargs).arguments.get("x"))
        _calls.append(next(_numbers))
        try:
            return original(self, *args, **kwargs)
        finally:
            _calls.pop()

    return fit


@HOOKS.replace_in(_LOST, "callbacks.callback_list:CallbackList.on_epoch_end", "callbacks:CallbackList.on_epoch_end")
def _wrap_epoch_end(original: Any) -> Any:
    def on_epoch_end(self, epoch, logs=None):
        model = getattr(self, "model", None)
        if _calls and not _is_passed_over():
            if model in _data:
                trial_log.note_task(**_data.pop(model), **_describe_model(model))
            trial_log.note_epoch(epoch, (self.params or {}).get("epochs"), logs, _calls[-1])
        return original(self, epoch, logs)

    return on_epoch_end


def _is_passed_over() -> bool:
    """Whether the call had ended before the run was started again: an epoch of it only makes what is to be put back."""
    if not world.is_active():
        return False
    from matex_tf.patches.keras import fast_forward

    kept = fast_forward.get_current_state()
    return kept is not None and kept.is_over


def _describe_data(x: Any) -> dict[str, Any]:
    """Rows and columns of what `fit` is given: of the first array in it; nothing where that is not known."""
    rows = None
    if hasattr(x, "element_spec"):  # a tf.data.Dataset, of batches
        import tensorflow as tf

        shape = _list_sizes(tf.nest.flatten(x.element_spec)[0])
        batches = int(x.cardinality())
        if batches >= 0 and shape and shape[0]:
            rows = batches * shape[0]
    else:
        while isinstance(x, (list, tuple, dict)) and len(x):
            x = next(iter(x.values())) if isinstance(x, dict) else x[0]
        shape = _list_sizes(x)
        rows = shape[0] if shape else None
    columns = math.prod(shape[1:]) if shape and None not in shape[1:] else None
    return {"rows": rows, "columns": columns}


def _list_sizes(array: Any) -> list[Any] | None:
    try:
        return [None if size is None else int(size) for size in array.shape]
    except (AttributeError, TypeError, ValueError):
        return None


def _describe_model(model: Any) -> dict[str, Any]:
    outputs = getattr(model, "outputs", None) or [None]
    shape = _list_sizes(outputs[0])
    loss = getattr(model, "loss", None)
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", None)
    return {"classes": shape[-1] if shape else None, "parameters": int(model.count_params()), "loss": name}
