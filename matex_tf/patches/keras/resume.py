"""Keras `fit` in a run that was started again: calls that had ended are passed over, one goes on where it was.

`fast_forward` brings the data to where they were by going through them as training did, without the training.
"""

from __future__ import annotations

import csv
import inspect
import os
from typing import Any

from matex_tf.io import atomic
from matex_tf.patches.keras import fast_forward
from matex_tf.resilience import fit_state
from matex_tf.sharding import iteration

HOOKS = fast_forward.HOOKS
_LOST = fast_forward.LOST


# The call


def resume_fit(original: Any, model: Any, kept: fit_state.Fit, args: tuple, kwargs: dict) -> Any:
    """The call `original(model, *args, **kwargs)` of fit in a run whose state is kept."""
    signature = inspect.signature(original)
    given = _bind_by_name(signature, signature.bind(model, *args, **kwargs))
    kept.first_epoch = given.get("initial_epoch", 0)
    if kept.is_over:
        return _pass_over(original, kept, given)
    if kept.saved is not None and _is_keras3(model):
        given["initial_epoch"] = kept.epoch  # Keras 2 is given its epochs by `_epochs_of_handler`
    history = original(**given)
    kept.end_fit(history)
    return history


def _bind_by_name(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any]:
    given = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(name, {}))
    return given


def _is_keras3(model: Any) -> bool:
    return hasattr(model, "_symbolic_build")


def _pass_over(original: Any, kept: fit_state.Fit, given: dict[str, Any]) -> Any:
    """The call had ended: make what it makes, go through its data, and leave all as it was at its end."""
    model, callbacks = kept.model, given.get("callbacks")
    given.update(callbacks=None, verbose=0, validation_data=None)
    before = getattr(model, "_initial_epoch", None)
    if _is_keras3(model):
        # Where a step is needed to make all variables, it is one of the last epoch (see `Fit.begin_training`).
        given.update(epochs=kept.epoch, initial_epoch=max(kept.epoch - 1, kept.first_epoch))
    history = original(**given)
    if hasattr(model, "_initial_epoch"):
        model._initial_epoch = before
    if kept.needs_data():
        fast_forward.pass_epochs(kept, kept.epoch - kept.first_epoch)
    return kept.leave_ended(_flatten_callbacks(callbacks), history)


def _flatten_callbacks(callbacks: Any) -> list[Any]:
    if hasattr(callbacks, "callbacks"):
        return list(callbacks.callbacks)
    if isinstance(callbacks, (list, tuple)):
        return [one for part in callbacks for one in _flatten_callbacks(part)]
    return [] if callbacks is None else [callbacks]


def take_first_step(kept: fit_state.Fit, function: Any, iterator: Any) -> Any:
    """An iterator of what `iterator` gives to the next step; all that the step makes has been put back.

    Variables that are made in a step are there after one, whose other effects are undone.
    """
    batches = fast_forward.take_batches(iterator, fast_forward.read_steps_per_execution(kept.model))

    def again() -> Any:
        dataset = _make_one_batch(batches[0], iterator.element_spec)
        for batch in batches[1:]:
            dataset = dataset.concatenate(_make_one_batch(batch, iterator.element_spec))
        return iter(iteration.exempt_dataset(dataset))

    kept.put_back_rest(lambda: function(again()))
    return again()


def _make_one_batch(batch: Any, spec: Any) -> Any:
    """A dataset of `batch` alone, of the element spec `spec`: a model that is built by it is not one for its rows."""
    import tensorflow as tf

    def as_open_as_before(*parts: Any) -> Any:
        open_parts = [
            tf.compat.v1.placeholder_with_default(part, kind.shape) if isinstance(part, tf.Tensor) else part
            for part, kind in zip(tf.nest.flatten(parts), tf.nest.flatten(spec))
        ]
        return tf.nest.pack_sequence_as(spec, open_parts)

    return tf.data.Dataset.from_tensors(batch).map(as_open_as_before)


# Callbacks


@HOOKS.replace_in(_LOST, "callbacks.callback_list:CallbackList.on_train_begin", "callbacks:CallbackList.on_train_begin")
def _wrap_train_begin(original: Any) -> Any:
    def on_train_begin(self, logs=None):
        kept = fast_forward.get_current_state()
        if kept is not None and kept.saved is not None:
            for callback in self.callbacks:
                if type(callback).__name__ == "CSVLogger":
                    _go_on_with_log(callback, kept.epoch)
        result = original(self, logs)
        if kept is not None:
            kept.begin_training(self.callbacks, self.params)
        return result

    return on_train_begin


def _go_on_with_log(callback: Any, epoch: int) -> None:
    """A log is appended to; lines of epochs that come again are dropped."""
    if not os.path.exists(callback.filename):
        return
    with open(callback.filename, newline="") as file:
        rows = list(csv.reader(file, delimiter=callback.sep))
    while len(rows) > 1 and rows[-1] and rows[-1][0].isdigit() and int(rows[-1][0]) >= epoch:
        rows.pop()
    with atomic.write_beside(callback.filename) as place, open(place, "w", newline="") as file:
        csv.writer(file, delimiter=callback.sep).writerows(rows)
    callback.append = True


@HOOKS.replace_in(_LOST, "callbacks.callback_list:CallbackList.on_epoch_begin", "callbacks:CallbackList.on_epoch_begin")
def _wrap_epoch_begin(original: Any) -> Any:
    def on_epoch_begin(self, epoch, logs=None):
        result = original(self, epoch, logs)
        kept = fast_forward.get_current_state()
        if kept is not None:
            kept.begin_epoch(epoch)
        return result

    return on_epoch_begin


@HOOKS.replace_in(
    _LOST,
    "callbacks.callback_list:CallbackList.on_train_batch_end",
    "callbacks:CallbackList.on_train_batch_end",
)
def _wrap_batch_end(original: Any) -> Any:
    def on_train_batch_end(self, batch, logs=None):
        result = original(self, batch, logs)
        kept = fast_forward.get_current_state()
        if kept is not None:
            kept.end_batch(batch + 1)
        return result

    return on_train_batch_end


@HOOKS.replace_in(_LOST, "callbacks.callback_list:CallbackList.on_epoch_end", "callbacks:CallbackList.on_epoch_end")
def _wrap_epoch_end(original: Any) -> Any:
    def on_epoch_end(self, epoch, logs=None):
        result = original(self, epoch, logs)
        kept = fast_forward.get_current_state()
        if kept is not None:
            kept.end_epoch(epoch)
        return result

    return on_epoch_end


# Data
