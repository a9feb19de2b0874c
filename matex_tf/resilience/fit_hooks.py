"""Keras' `fit` in a run whose state is kept: calls that had ended are passed over, one goes on where it was."""

from __future__ import annotations

import csv
import inspect
import os
from typing import Any

from matex_tf.resilience import callback_state, data_hooks, run_state, source_data
from matex_tf.resilience.fit_state import Fit, find_current, is_nested
from matex_tf.runtime import atomic, notes
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps import events

HOOKS = KerasTable()
_LOST = "a run that is started again does not go on where it was"


def install() -> None:
    """Keep the state of this run."""
    HOOKS.install()
    data_hooks.HOOKS.install()
    events.training_begins.add_listener(_begin_training)
    events.training_began.add_listener(_resume_training)
    events.epoch_begins.add_listener(lambda model, epoch: _tell(model, "begin_epoch", epoch))
    events.batch_ended.add_listener(lambda model, batch, logs: _tell(model, "end_batch", batch + 1, logs))
    events.epoch_ended.add_listener(lambda model, epoch: _tell(model, "end_epoch", epoch))
    events.step_trained.add_listener(_note_trained)


def _tell(model: Any, what: str, *args: Any) -> None:
    kept = find_current()
    if kept is not None and kept.model is model:
        getattr(kept, what)(*args)


def _note_trained(plan: Any) -> None:
    run = run_state.get_current()
    if run is not None and run.within is None:
        notes.print_note(
            "of this run only calls of fit are put back when it is started again; a loop of the script's own begins "
            "anew then (or where the script itself has saved and restores)"
        )
    elif (kept := find_current()) is not None:
        kept.note_trained(plan)


# The call


@HOOKS.replace_in(_LOST, "models.model:Model.fit", "engine.training:Model.fit", takes="x")
def _wrap_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_state.get_current()
        if run is None:
            return original(self, *args, **kwargs)
        if run.within is not None:
            with is_nested.set():
                return original(self, *args, **kwargs)
        before = getattr(self, "_initial_epoch", None)
        kept = Fit(run, self)
        try:
            given = _bind_by_name(signature, signature.bind(self, *args, **kwargs))
            kept.first_epoch = given.get("initial_epoch", 0)
            kept.calls_python = source_data.is_made_by_python(given.get("x"))
            if kept.is_over:
                return _pass_over(original, kept, given)
            if kept.saved is not None and _is_keras3(self):
                given["initial_epoch"] = kept.epoch  # of Keras 2 see `_wrap_epochs`
            history = original(**given)
            kept.end_fit(history)
            return history
        finally:
            kept.close_fit()
            if kept.saved is not None and _is_keras3(self):
                self._initial_epoch = before

    return fit


def _bind_by_name(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any]:
    given = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(name, {}))
    return given


def _is_keras3(model: Any) -> bool:
    return hasattr(model, "_symbolic_build")


def _pass_over(original: Any, kept: Fit, given: dict[str, Any]) -> Any:
    """The call had ended: make what it makes, go through its data, and leave all as it was at its end."""
    callbacks = given.get("callbacks")
    given.update(callbacks=None, verbose=0, validation_data=None)
    if _is_keras3(kept.model):
        given.update(epochs=kept.epoch, initial_epoch=kept.epoch)
    return kept.leave_ended(_flatten_callbacks(callbacks), original(**given))


def _flatten_callbacks(callbacks: Any) -> list[Any]:
    if hasattr(callbacks, "callbacks"):
        return [one for one in callbacks.callbacks if not isinstance(one, events.Watcher)]
    if isinstance(callbacks, (list, tuple)):
        return [one for part in callbacks for one in _flatten_callbacks(part)]
    return [] if callbacks is None else [callbacks]


def _begin_training(model: Any, callbacks: Any) -> None:
    kept = find_current()
    if kept is None or kept.model is not model:
        return
    kept.begin_training(_flatten_callbacks(callbacks), callbacks.params)
    for callback in kept.callbacks if kept.goes_on else ():
        if type(callback).__name__ == "CSVLogger":
            _go_on_with_log(callback, kept.epoch)


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


def _resume_training(model: Any) -> None:
    """Callbacks were told that training begins."""
    kept = find_current()
    if kept is None or kept.model is not model or kept.saved is None:
        return
    kept.put_back()
    if _is_keras3(model):
        model._initial_epoch = None  # `BackupAndRestore` may have put it elsewhere
        data_hooks.pass_epochs(kept)
    for what in callback_state.begin_anew(kept.callbacks) if kept.goes_on else ():
        notes.print_note(f"of the callbacks of fit, {what} cannot be kept and begins anew")
