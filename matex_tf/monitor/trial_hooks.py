"""Hooks in a trial of `matex tune`, with or without ranks: record the logs of `fit` and a description of the task.

The description is the size of the data and of the model, by which `matex tune` finds similar searches (`trial_log`).
"""

from __future__ import annotations

import inspect
import itertools
import math
from dataclasses import dataclass
from typing import Any

from matex_tf.monitor import trial_log
from matex_tf.runtime.keras_table import KerasTable

HOOKS = KerasTable()

_IF_HOOK_MISSING = "a trial of `matex tune` logs nothing of fit"

_numbers = itertools.count()


@dataclass
class _Call:
    """A running call of `fit`: its number, and the description of its data until that is recorded."""

    number: int
    data: dict[str, Any] | None


_calls: list[_Call] = []
"""The running calls; a nested call comes last."""


@HOOKS.replace_in(_IF_HOOK_MISSING, "models.model:Model.fit", "engine.training:Model.fit", takes="x")
def _wrap_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        data = signature.bind(self, *args, **kwargs).arguments.get("x")
        _calls.append(_Call(next(_numbers), _describe_data(data)))
        try:
            return original(self, *args, **kwargs)
        finally:
            _calls.pop()

    return fit


@HOOKS.replace_in(
    _IF_HOOK_MISSING, "callbacks.callback_list:CallbackList.on_epoch_end", "callbacks:CallbackList.on_epoch_end"
)
def _wrap_epoch_end(original: Any) -> Any:
    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> Any:
        if _calls:
            call = _calls[-1]
            if call.data is not None:  # the first epoch, after which the model is built in any case
                trial_log.note_task(**call.data, **_describe_model(self.model))
                call.data = None
            trial_log.note_epoch(epoch, (self.params or {}).get("epochs"), logs, call.number)
        return original(self, epoch, logs)

    return on_epoch_end


def _describe_data(data: Any) -> dict[str, Any]:
    """The rows and columns of `fit`'s data, from its first array; each None if unknown."""
    rows = None
    if hasattr(data, "element_spec"):  # a tf.data.Dataset of batches
        import tensorflow as tf

        shape = _list_sizes(tf.nest.flatten(data.element_spec)[0])
        batch_count = int(data.cardinality())
        if batch_count >= 0 and shape and shape[0]:
            rows = batch_count * shape[0]
    else:
        while isinstance(data, (list, tuple, dict)) and len(data):
            data = next(iter(data.values())) if isinstance(data, dict) else data[0]
        shape = _list_sizes(data)
        rows = shape[0] if shape else None
    columns = math.prod(shape[1:]) if shape and None not in shape[1:] else None
    return {"rows": rows, "columns": columns}


def _list_sizes(array: Any) -> list[Any] | None:
    """The shape of `array`, with None for an unknown size; None without a shape."""
    try:
        return [None if size is None else int(size) for size in array.shape]
    except (AttributeError, TypeError, ValueError):
        return None


def _describe_model(model: Any) -> dict[str, Any]:
    outputs = getattr(model, "outputs", None) or [None]
    shape = _list_sizes(outputs[0])
    loss = getattr(model, "loss", None)
    loss_name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", None)
    return {"classes": shape[-1] if shape else None, "parameters": int(model.count_params()), "loss": loss_name}
