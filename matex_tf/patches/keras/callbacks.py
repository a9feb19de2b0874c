"""Keras callbacks run on every rank: whether one stops training is agreed on, and what is sent away is sent once."""

from __future__ import annotations

import weakref
from typing import Any

from matex_tf import settings
from matex_tf.keras import fit_call
from matex_tf.monitor import sampler
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.world import world

HOOKS = KerasTable()

_LOST = "a callback that stops fit stops one rank alone"

_WITHIN_AN_EPOCH = (
    "on_train_begin",
    "on_epoch_begin",
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)

_may_stop: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


@HOOKS.replace_in(_LOST, "callbacks.callback_list:CallbackList.on_train_begin", "callbacks:CallbackList.on_train_begin")
def _wrap_train_begin(original: Any) -> Any:
    def on_train_begin(self, logs=None):
        run = fit_call.get_current_fit()
        if run is not None:
            run.callbacks = self.callbacks
        return original(self, logs)

    return on_train_begin


@HOOKS.replace_in(_LOST, "callbacks.callback_list:CallbackList.on_epoch_end", "callbacks:CallbackList.on_epoch_end")
def _wrap_epoch_end(original: Any) -> Any:
    def on_epoch_end(self, epoch, logs=None):
        run = fit_call.get_current_fit()
        if run is not None:
            run.end_epoch(epoch)
            if run.epoch is not None:
                run.epoch.end_pass()
            if run.kept is None or not run.kept.is_over:  # else it only makes what is to be put back
                call = None if run.kept is None else run.kept.number
                sampler.note_epoch(epoch, self.params or {}, logs, call)
        result = original(self, epoch, logs)
        if run is not None:
            run.agree_to_stop()
        return result

    return on_epoch_end


@HOOKS.replace_in(
    _LOST,
    "callbacks.callback_list:CallbackList.on_train_batch_end",
    "callbacks:CallbackList.on_train_batch_end",
)
def _wrap_batch_end(original: Any) -> Any:
    def on_train_batch_end(self, batch, logs=None):
        result = original(self, batch, logs)
        run = fit_call.get_current_fit()
        if run is not None and run.turns is None and _may_stop_within_an_epoch(self):
            run.agree_to_stop()
        return result

    return on_train_batch_end


def _may_stop_within_an_epoch(callbacks: Any) -> bool:
    """Whether the script has callbacks of its own that are called during an epoch; Keras' own decide by the logs."""
    if callbacks not in _may_stop:
        _may_stop[callbacks] = any(map(_is_used_within_epoch, callbacks.callbacks))
    return _may_stop[callbacks]


def _is_used_within_epoch(callback: Any) -> bool:
    kind = type(callback)
    if kind.__name__ == "LambdaCallback":
        return True
    owners = [base for base in kind.__mro__ if not base.__module__.startswith(("keras.", "tf_keras."))]
    return any(name in vars(owner) for owner in owners for name in _WITHIN_AN_EPOCH)


@HOOKS.replace_in(
    "each rank sends the events of a RemoteMonitor",
    "callbacks.remote_monitor:RemoteMonitor.on_epoch_end",
    "callbacks:RemoteMonitor.on_epoch_end",
    optional=True,
)
def _wrap_remote_monitor(original: Any) -> Any:
    def on_epoch_end(self, epoch, logs=None):
        if world.get_world().rank == 0 or settings.get_settings().output == "all":
            original(self, epoch, logs)

    return on_epoch_end
