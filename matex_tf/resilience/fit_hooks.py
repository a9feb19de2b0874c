"""Keras' `fit` in a run whose state is kept: calls that had ended are passed over, one goes on where it was."""

from __future__ import annotations

import csv
import inspect
import os
from collections.abc import Iterator
from typing import Any

from matex_tf.io import atomic
from matex_tf.resilience import callback_state, run_state, source_data
from matex_tf.resilience.fit_state import Fit
from matex_tf.runtime import notes
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import share_arrays
from matex_tf.steps import events, weak_scaling
from matex_tf.thread_flag import ThreadFlag

HOOKS = KerasTable()
_LOST = "a run that is started again does not go on where it was"

_is_nested = ThreadFlag()
"""Whether the innermost call of `fit` is one within another, of which nothing is kept."""


def install() -> None:
    """Keep the state of this run."""
    HOOKS.install()
    events.training_begins.add_listener(_begin_training)
    events.training_began.add_listener(_resume_training)
    events.epoch_begins.add_listener(lambda model, epoch: _tell(model, "begin_epoch", epoch))
    events.batch_ended.add_listener(lambda model, batch: _tell(model, "end_batch", batch + 1))
    events.epoch_ended.add_listener(lambda model, epoch: _tell(model, "end_epoch", epoch))
    events.step_trained.add_listener(_note_trained)


def find_current() -> Fit | None:
    """The call of `fit` that is under way in this thread, if its state is kept."""
    run = run_state.get_current()
    return None if run is None or _is_nested else run.within


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


@HOOKS.replace_in(_LOST, "backend.tensorflow.trainer:TensorFlowTrainer.fit", "engine.training:Model.fit", takes="x")
def _wrap_fit(original: Any) -> Any:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_state.get_current()
        if run is None:
            return original(self, *args, **kwargs)
        if run.within is not None:
            with _is_nested.set():
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
        _pass_epochs(kept)
    for what in callback_state.begin_anew(kept.callbacks) if kept.goes_on else ():
        notes.print_note(f"of the callbacks of fit, {what} cannot be kept and begins anew")


# The data


@HOOKS.replace_in(_LOST, "trainers.epoch_iterator:EpochIterator.__init__", "engine.data_adapter:DataHandler.__init__")
def _wrap_source(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(*args: Any, **kwargs: Any) -> None:
        kept = find_current()
        if kept is not None and kept.source is None:
            # The first that a call of fit makes is of what it trains on.
            kept.source, x = args[0], signature.bind(*args, **kwargs).arguments.get("x")
            kept.are_rows_dealt = weak_scaling.is_on() or (hasattr(x, "element_spec") and share_arrays.is_share(x))
        original(*args, **kwargs)

    return __init__


def _find_of(source: Any) -> Fit | None:
    """The call of `fit` that trains on `source`, if it had begun before the run was started again."""
    kept = find_current()
    return kept if kept is not None and kept.saved is not None and kept.source is source else None


def _pass_epoch(kept: Fit, steps: Iterator[tuple[Any, int]]) -> None:
    """Go through an epoch, which makes its iterator anew, and shuffles.

    Its batches are taken only where something depends on how far the iterator went, or where variables are missing.
    """
    takes = source_data.has_position(kept.source, kept.calls_python)
    with kept.source.catch_stop_iteration(), kept.pass_data():
        for iterator, count in steps:
            _pass_step(kept, iterator, count, takes)


def _pass_step(kept: Fit, iterator: Any, count: int, takes: bool = True) -> None:
    if kept.missing and not kept.has_made:  # the step of Keras makes variables
        kept.has_made = True
        batches = source_data.take_batches(iterator, count)
        kept.model.train_function(source_data.make_iterator(batches, iterator.element_spec))
        kept.put_back()
    elif takes:
        source_data.take_batches(iterator, count)


def _pass_epochs(kept: Fit) -> None:
    """Keras 3: go through the epochs that have ended."""
    source = kept.source
    for _ in range(kept.epoch - kept.first_epoch):
        _pass_epoch(kept, ((iterator, source.steps_per_execution) for _, _, iterator in source))
    kept.put_back()
    kept.put_back_random()
    kept.seeks_step = kept.goes_on


@HOOKS.replace_in(_LOST, "trainers.epoch_iterator:EpochIterator._enumerate_iterator")
def _wrap_epoch_steps(original: Any) -> Any:
    """The steps of an epoch of Keras 3."""

    def _enumerate_iterator(self: Any) -> Iterator[Any]:
        kept = _find_of(self)
        if kept is None or not kept.seeks_step:
            yield from original(self)
            return
        kept.seeks_step = False
        for begin, end, iterator in original(self):
            if begin < kept.step:
                with kept.pass_data():
                    _pass_step(kept, iterator, self.steps_per_execution)
            else:
                kept.reach_step()
                yield begin, end, iterator

    return _enumerate_iterator


@HOOKS.replace_in(_LOST, keras2="engine.data_adapter:DataHandler.enumerate_epochs")
def _wrap_epochs(original: Any) -> Any:
    """Keras 2's epochs."""

    def enumerate_epochs(self: Any) -> Iterator[Any]:
        kept = _find_of(self)
        if kept is None:
            yield from original(self)
            return
        # `BackupAndRestore` may have put them elsewhere.
        self._initial_epoch, self._initial_step = kept.first_epoch, 0
        for epoch, iterator in original(self):
            if epoch < kept.epoch:
                # Both are known once a step has begun.
                _pass_epoch(kept, ((iterator, self.step_increment + 1) for _ in self.steps()))
                continue
            if kept.is_over:
                return
            if kept.is_away:
                kept.put_back()
                kept.put_back_random()
                kept.seeks_step, kept.iterator = True, iterator
            yield epoch, iterator

    return enumerate_epochs


@HOOKS.replace_in(_LOST, keras2="engine.data_adapter:DataHandler.steps")
def _wrap_steps(original: Any) -> Any:
    """The steps of an epoch of Keras 2."""

    def steps(self: Any) -> Iterator[Any]:
        kept = _find_of(self)
        if kept is None or not kept.seeks_step:
            yield from original(self)
            return
        kept.seeks_step = False
        for step in original(self):
            if step < kept.step:
                with kept.pass_data():
                    _pass_step(kept, kept.iterator, self.step_increment + 1)
            else:
                kept.reach_step()
                yield step

    return steps
