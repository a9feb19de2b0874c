"""Hooks on Keras' `fit` in a run with saved state: ended calls are skipped, an interrupted call resumes."""

from __future__ import annotations

import inspect
from typing import Any

from matex_tf.resilience import callback_state, data_hooks, run_state, source_data
from matex_tf.resilience.fit_state import Fit, find_current, is_nested
from matex_tf.resilience.resumption import Resumption
from matex_tf.runtime import notes
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps import events

HOOKS = KerasTable()
_IF_HOOK_MISSING = "a restarted run does not resume from its saved state"


def install() -> None:
    """Install the hooks that save and restore the state of this run."""
    HOOKS.install()
    data_hooks.HOOKS.install()
    events.training_begins.add_listener(
        lambda model, callbacks: _notify(model, "begin_training", _flatten_callbacks(callbacks), callbacks.params)
    )
    events.training_began.add_listener(_resume_training)
    events.epoch_begins.add_listener(lambda model, epoch: _notify(model, "begin_epoch", epoch))
    events.batch_ended.add_listener(lambda model, batch, logs: _notify(model, "end_batch", batch + 1, logs))
    events.epoch_ended.add_listener(lambda model, epoch: _notify(model, "end_epoch", epoch))
    events.step_trained.add_listener(_note_trained)


def _notify(model: Any, method_name: str, *args: Any) -> None:
    """Call the method `method_name` of the running call of `fit`, if it trains `model` and its state is saved."""
    fit = find_current()
    if fit is not None and fit.model is model:
        getattr(fit, method_name)(*args)


def _note_trained(plan: Any) -> None:
    """Called after a step has trained, in `fit` or in a loop of the script."""
    run = run_state.get_current()
    if run is not None and run.current_fit is None:
        notes.print_note(
            "a restart restores only calls of fit; a loop of the script's own starts over, unless the script itself "
            "saves and restores it"
        )
    elif (fit := find_current()) is not None:
        fit.note_trained(plan)


# The hook on fit


@HOOKS.replace_in(_IF_HOOK_MISSING, "models.model:Model.fit", "engine.training:Model.fit", takes="x")
def _wrap_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_state.get_current()
        if run is None:  # or in another thread
            return original(self, *args, **kwargs)
        if run.current_fit is not None:  # a call within another call of `fit`: its state is not saved
            with is_nested.set():
                return original(self, *args, **kwargs)
        initial_epoch = getattr(self, "_initial_epoch", None)  # of Keras 3; `_resume_training` changes it
        current_fit = Fit(run, self)
        try:
            arguments = _bind_by_name(signature, signature.bind(self, *args, **kwargs))
            current_fit.first_epoch = arguments.get("initial_epoch", 0)
            # Python code of the script may draw random numbers for each batch. `Fit.skip_data` notes the generators.
            current_fit.calls_python = source_data.is_made_by_python(arguments.get("x"))
            resumption = current_fit.resumption
            if resumption is not None and current_fit.is_over:
                return _skip_call(original, resumption, arguments)
            if resumption is not None and _is_keras3(self):
                arguments["initial_epoch"] = resumption.epoch  # Keras 2: see `data_hooks._wrap_epochs`
            history = original(**arguments)
            current_fit.end_fit(history)
            return history
        finally:
            current_fit.close_fit()
            if current_fit.resumption is not None and _is_keras3(self):
                self._initial_epoch = initial_epoch

    return fit


def _bind_by_name(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any]:
    """The bound arguments by name; the arguments in **kwargs are on the same level as the others."""
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
    return arguments


def _is_keras3(model: Any) -> bool:
    return hasattr(model, "_symbolic_build")


def _skip_call(original: Any, resumption: Resumption, arguments: dict[str, Any]) -> Any:
    """Skip a call that had ended: build its variables, advance its data, and restore its final state."""
    callbacks = arguments.get("callbacks")
    arguments.update(callbacks=None, verbose=0, validation_data=None)
    if _is_keras3(resumption.fit.model):
        arguments.update(
            epochs=resumption.epoch, initial_epoch=resumption.epoch
        )  # no epoch: `skip_epochs` advances data
    return resumption.leave_ended(_flatten_callbacks(callbacks), original(**arguments))


def _flatten_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks of a list (also a nested one), of Keras' CallbackList, or None; without this library's watchers."""
    if hasattr(callbacks, "callbacks"):
        return [callback for callback in callbacks.callbacks if not isinstance(callback, events.Watcher)]
    if isinstance(callbacks, (list, tuple)):
        return [callback for element in callbacks for callback in _flatten_callbacks(element)]
    return [] if callbacks is None else [callbacks]


def _resume_training(model: Any) -> None:
    """Restore the state after callbacks were told that training begins."""
    fit = find_current()
    if fit is None or fit.model is not model or fit.resumption is None:
        return
    fit.resumption.restore()
    if _is_keras3(model):
        model._initial_epoch = None  # `BackupAndRestore` may have changed it
        data_hooks.skip_epochs(fit.resumption)
    if fit.is_resumed:
        for unsaved_attributes in callback_state.list_unsaved_attributes(fit.callbacks):
            notes.print_note(f"callbacks of fit: {unsaved_attributes} cannot be saved and starts over")
