"""Keras callbacks run on every rank: whether one stops training is agreed on, and what is sent away is sent once."""

from __future__ import annotations

import weakref
from typing import Any

from matex_tf import settings
from matex_tf.keras import fit_call
from matex_tf.monitor import sampler
from matex_tf.runtime.replace import replace, when_defined, when_imported
from matex_tf.world import world

_WITHIN_AN_EPOCH = (
    "on_train_begin",
    "on_epoch_begin",
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)

_may_stop: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def install() -> None:
    when_imported("keras.src.callbacks.callback_list", _lists)
    when_imported("keras.src.callbacks.remote_monitor", _monitor)
    for package in ("keras", "tf_keras"):
        when_defined(f"{package}.src.callbacks", "CallbackList", _keras2)


def _keras2(module: Any) -> None:
    _lists(module)
    _monitor(module)


def _lists(module: Any) -> None:
    replace(module.CallbackList, "on_train_begin", _train_begin)
    replace(module.CallbackList, "on_train_batch_end", _batch_end)
    replace(module.CallbackList, "on_epoch_end", _epoch_end)


def _monitor(module: Any) -> None:
    replace(module.RemoteMonitor, "on_epoch_end", _on_first_rank)


def _train_begin(original: Any) -> Any:
    def on_train_begin(self, logs=None):
        run = fit_call.current_fit()
        if run is not None:
            run.callbacks = self.callbacks
        return original(self, logs)

    return on_train_begin


def _epoch_end(original: Any) -> Any:
    def on_epoch_end(self, epoch, logs=None):
        run = fit_call.current_fit()
        if run is not None:
            run.end_epoch(epoch)
            sampler.note_epoch(epoch, self.params or {}, logs)
        result = original(self, epoch, logs)
        if run is not None:
            run.agree_to_stop()
        return result

    return on_epoch_end


def _batch_end(original: Any) -> Any:
    def on_train_batch_end(self, batch, logs=None):
        result = original(self, batch, logs)
        run = fit_call.current_fit()
        if run is not None and run.turns is None and _may_stop_within_an_epoch(self):
            run.agree_to_stop()
        return result

    return on_train_batch_end


def _may_stop_within_an_epoch(callbacks: Any) -> bool:
    """Whether the script has callbacks of its own that are called during an epoch; Keras' own decide by the logs."""
    if callbacks not in _may_stop:
        _may_stop[callbacks] = any(map(_acts_within_an_epoch, callbacks.callbacks))
    return _may_stop[callbacks]


def _acts_within_an_epoch(callback: Any) -> bool:
    kind = type(callback)
    if kind.__name__ == "LambdaCallback":
        return True
    owners = [base for base in kind.__mro__ if not base.__module__.startswith(("keras.", "tf_keras."))]
    return any(name in vars(owner) for owner in owners for name in _WITHIN_AN_EPOCH)


def _on_first_rank(original: Any) -> Any:
    def on_epoch_end(self, epoch, logs=None):
        if world.current().rank == 0 or settings.current().output == "all":
            original(self, epoch, logs)

    return on_epoch_end
