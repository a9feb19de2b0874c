"""Hooks on Keras for ranks that train by themselves: on `fit` and its data source, the object that yields its steps.

With `MATEX_STRATEGY=async` the hooks make an `AsyncFit` for each call of `fit`; the listeners pass the events of its
training on to it. `local` asks `fitted`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from matex_tf.apart import choice
from matex_tf.apart.async_fit import AsyncFit
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.servers.pieces import update_costs
from matex_tf.steps import events, own_data
from matex_tf.thread_flag import is_main_thread

HOOKS = KerasTable()
_IF_HOOK_MISSING = "ranks train together in fit, whatever MATEX_STRATEGY says"

fitted: ContextVar[Any] = ContextVar("fitted", default=None)
"""The model of the innermost call of `fit` that runs in this thread; None outside of `fit`."""
_fits: list[AsyncFit] = []  # running calls, the innermost last, in which ranks may take turns


@HOOKS.replace_in(_IF_HOOK_MISSING, "models.model:Model.fit", "engine.training:Model.fit")
def _wrap_fit(original: Any) -> Any:
    def call_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = fitted.set(self)
        try:
            # `matex plan` measures whether ranks could take turns.
            is_requested = choice.is_chosen("async") or update_costs.are_measured()
            if not is_requested or own_data.is_alone() or not is_main_thread():
                return original(self, *args, **kwargs)
            call = AsyncFit(self, is_within=any(outer.turns is not None for outer in _fits))
            _fits.append(call)
            try:
                result = original(self, *args, **kwargs)
                call.end()
                return result
            finally:
                _fits.remove(call)
                call.close()
        finally:
            fitted.reset(token)

    return call_fit


@HOOKS.replace_in(_IF_HOOK_MISSING, "trainers.epoch_iterator:EpochIterator.__init__")
def _wrap_source(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _fits and _fits[-1].source is None and is_main_thread():
            _fits[-1].source = self

    return __init__


@HOOKS.replace_in(_IF_HOOK_MISSING, "trainers.epoch_iterator:EpochIterator._enumerate_iterator", optional=True)
def _wrap_enumerate(original: Any) -> Any:
    def _enumerate_iterator(self: Any) -> Any:
        call = next((call for call in _fits if call.source is self), None)
        return original(self) if call is None else call.iterate_epoch(original(self))

    return _enumerate_iterator


def start_listening() -> None:
    """From now on, ranks take turns at the batches of `fit` if possible."""
    events.training_begins.add_listener(_begin_training)
    events.epoch_begins.add_listener(_begin_epoch)
    events.step_trained.add_listener(_note_trained)
    events.ranks_meet.add_listener(_meet)
    events.epoch_logs_made.add_listener(_update_logs)


def _begin_training(model: Any, callbacks: Any) -> None:
    if _fits and _fits[-1].model is model:
        _fits[-1].begin(callbacks)


def _begin_epoch(model: Any, epoch: int) -> None:
    if _fits and _fits[-1].model is model:
        _fits[-1].begin_epoch()


def _note_trained(plan: Any) -> None:
    """Called after a step has trained. Outside of `fit` ranks share the step, as with allreduce: tell the user."""
    if fitted.get() is None:
        choice.report_fallback("async", choice.name_step(plan), choice.ONLY_FIT)


def _meet(doing: str) -> None:
    """Called before an operation for which all ranks must hold the same weights, such as saving."""
    for call in _fits[:]:
        call.meet(doing)


def _update_logs(model: Any, logs: dict[str, Any]) -> None:
    if _fits and _fits[-1].model is model:
        _fits[-1].update_logs(logs)
