"""Adds two callbacks of the library to Keras' list: one before and one after the callbacks of the script.

Every rank runs the script's callbacks, and a callback may change the model, or stop training, on one rank only. The
library's first callback compares the ranks' weights at the beginning of `fit`, `evaluate` and `predict`, and at the end
of an epoch. The last one stops training on all ranks if one rank stops it. Both raise the events of `steps.events`.
"""

from __future__ import annotations

import sys
from typing import Any

from matex_tf import settings
from matex_tf.runtime import notes, objects
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps import agreement, events
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import world

HOOKS = KerasTable()
_IF_HOOK_MISSING = "a callback that stops fit stops one rank alone, and weights are not compared"
_INNER_METHODS = "on_train_begin on_epoch_begin on_batch_begin on_batch_end on_train_batch_begin on_train_batch_end"


@HOOKS.replace_in(_IF_HOOK_MISSING, "callbacks.callback_list:CallbackList.__init__", "callbacks:CallbackList.__init__")
def _wrap_list(original: Any) -> Any:
    base = sys.modules[original.__module__].Callback
    first_class, last_class = _make_callbacks(base)

    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if not world.is_active() or not is_main_thread():
            return
        stops_within = any(map(_may_stop_within_epoch, self.callbacks))
        if stops_within or events.batch_ended.is_heard:
            self._async_train = False  # Keras 3: the ends of training batches are reported in this thread
            self._should_call_train_batch_hooks = True  # Keras 2
        first_callback, last_callback = first_class(self), last_class(stops_within)
        for callback in (first_callback, last_callback):
            callback.set_params(getattr(self, "params", None))
            callback.set_model(getattr(self, "model", None))
        self.callbacks[:] = [first_callback, *self.callbacks, last_callback]

    return __init__


def _make_callbacks(base: Any) -> tuple[Any, Any]:
    """The classes of the first callback and of the last one."""

    class CompareWeights(events.Watcher, base):
        """The first callback. callbacks: Keras' list of all callbacks. is_within_fit: `fit` is running."""

        def __init__(self, callbacks: Any):
            super().__init__()
            self.callbacks, self.is_within_fit = callbacks, False

        def on_train_begin(self, logs=None):
            agreement.agree_on_model(self.model)
            self.is_within_fit = True
            events.training_begins(self.model, self.callbacks)

        def on_epoch_begin(self, epoch, logs=None):
            events.epoch_begins(self.model, epoch)

        def on_train_end(self, logs=None):
            self.is_within_fit = False

        def on_test_begin(self, logs=None):
            agreement.compare_model(self.model, "evaluate", self.is_within_fit)

        def on_predict_begin(self, logs=None):
            agreement.compare_model(self.model, "predict", self.is_within_fit)

        def on_epoch_end(self, epoch, logs=None):
            agreement.compare_weights(f"at the end of epoch {epoch + 1}", agreement.list_weights(self.model))
            if logs is not None:
                events.epoch_logs_made(self.model, logs)

    class StopTogether(events.Watcher, base):
        """The last callback. stops_within: a callback may stop training within an epoch."""

        def __init__(self, stops_within: bool):
            super().__init__()
            self.stops_within = stops_within

        def on_train_begin(self, logs=None):
            events.training_began(self.model)

        def on_epoch_end(self, epoch, logs=None):
            _agree_to_stop(self.model)
            events.epoch_logged(self.model, epoch, self.params or {}, logs or {})
            events.epoch_ended(self.model, epoch)

        def on_train_batch_end(self, batch, logs=None):
            if self.stops_within:
                _agree_to_stop(self.model)
            events.batch_ended(self.model, batch, logs)

        def on_train_end(self, logs=None):
            events.training_ended(self.model)

    return CompareWeights, StopTogether


def _may_stop_within_epoch(callback: Any) -> bool:
    """Whether a callback may stop training on one rank within an epoch: the script wrote it, and Keras calls it there.

    Keras' own callbacks decide by the logs, which are equal on all ranks.
    """
    callback_class = type(callback)
    if callback_class.__name__ == "LambdaCallback":
        return True
    script_classes = [
        base for base in callback_class.__mro__ if not base.__module__.startswith(("keras.", "tf_keras."))
    ]
    return any(name in vars(script_class) for script_class in script_classes for name in _INNER_METHODS.split())


def _agree_to_stop(model: Any) -> None:
    """If a callback has stopped training on one rank, stop it on all. Collective, unless this rank trains by itself.

    No other message can carry this: callbacks decide after the last message of a step, and before the next step each
    rank must know whether there is one.
    """
    if not agreement.is_watched():
        return
    have_stopped = objects.allgather(bool(getattr(model, "stop_training", False)), "whether a callback stops training")
    if any(have_stopped) and not all(have_stopped):
        rank = have_stopped.index(True)
        notes.print_note(f"a callback stopped training on rank {rank} and not on every rank; all ranks stop")
        model.stop_training = True


@HOOKS.replace_in(
    "every rank sends its logs away",
    "callbacks.remote_monitor:RemoteMonitor.on_epoch_end",
    "callbacks:RemoteMonitor.on_epoch_end",
)
def _wrap_remote_monitor(original: Any) -> Any:
    """RemoteMonitor sends its data once, from rank 0."""

    def on_epoch_end(self, epoch, logs=None):
        if world.get_world().rank == 0 or settings.get_settings().output == "all":
            original(self, epoch, logs)

    return on_epoch_end
