"""Data of a restarted run, wound forward to where it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf.keras import fit_call
from matex_tf.resilience import fit_state
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import row_shares

HOOKS = KerasTable()
"""Those of `resume`, too."""

LOST = "a run that is started again does not go on where it was"

_CALLS_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")


def read_steps_per_execution(model: Any) -> int:
    return int(getattr(model, "_steps_per_execution", None) or getattr(model, "steps_per_execution", None) or 1)


def get_current_state() -> fit_state.Fit | None:
    run = fit_call.get_current_fit()
    return None if run is None else run.kept


@HOOKS.replace_in(LOST, "trainers.epoch_iterator:EpochIterator.__init__", "engine.data_adapter:DataHandler.__init__")
def wrap_source(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs):
        kept = get_current_state()
        if kept is not None and kept.source is None:
            # The first that a call of fit makes is of what it trains on.
            kept.source = self
            kept.calls_python = _is_made_by_python(signature.bind(self, *args, **kwargs).arguments.get("x"))
        original(self, *args, **kwargs)

    return __init__


def _is_made_by_python(x: Any) -> bool:
    """Whether Python code of the script's own makes the batches, which may go on from where it was at the last."""
    if not hasattr(x, "element_spec"):
        return hasattr(x, "__next__") or hasattr(x, "on_epoch_end")
    for step in row_shares.list_pipeline(x):
        for part in vars(step).values():
            graph = getattr(getattr(part, "function", None), "graph", None)
            if graph is not None and _has_python(graph.as_graph_def()):
                return True
    return False


def _has_python(graph: Any) -> bool:
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any(node.op in _CALLS_PYTHON for node in nodes)


def take_batches(iterator: Any, count: int) -> list[Any]:
    """The next `count` batches, fewer at the end of the data. Raises OutOfRangeError where there is none."""
    import tensorflow as tf

    batches = [iterator.get_next()]
    try:
        while len(batches) < count:
            batches.append(iterator.get_next())
    except tf.errors.OutOfRangeError:
        return batches
    return batches


def _has_position(source: Any, calls_python: bool) -> bool:
    """Whether where the data are depends on how many batches were taken, not only on how many epochs were begun."""
    known = getattr(source, "_num_batches", None) or getattr(source, "_inferred_steps", None)
    if calls_python or not (known or getattr(source, "steps_per_epoch", None)):
        return True
    if hasattr(source, "enumerate_epochs"):
        return not source._adapter.should_recreate_iterator()
    return source.steps_per_epoch is not None


def _pass_epoch(kept: fit_state.Fit, steps: Iterator[Any], iterator_of: Callable[[Any], tuple[Any, int]]) -> None:
    """Go through the steps of an epoch as training did, without training.

    An epoch makes its iterator, which shuffles anew. Its batches are taken and dropped only where something depends on
    how far the iterator went.
    """
    source = kept.source
    takes = _has_position(source, kept.calls_python)
    with source.catch_stop_iteration():
        for step in steps:
            if takes:
                take_batches(*iterator_of(step))


@HOOKS.replace_in(LOST, "trainers.epoch_iterator:EpochIterator._enumerate_iterator")
def wrap_epoch_steps(original: Any) -> Any:
    def _enumerate_iterator(self):
        kept = get_current_state()
        if kept is None or kept.source is not self or not kept.needs_data():
            yield from original(self)
            return
        pass_epochs(kept, kept.epoch - kept.first_epoch - kept.is_over)
        for begin, end, iterator in original(self):
            if not kept.is_over and begin < kept.step:
                take_batches(iterator, self.steps_per_execution)
                continue
            _note_data_back(kept)
            yield begin, end, iterator

    return _enumerate_iterator


def pass_epochs(kept: fit_state.Fit, number: int) -> None:
    """Go through the first epochs of Keras 3's source of data."""
    source = kept.source
    kept.data_taken = True
    for _ in range(number):
        steps = type(source)._enumerate_iterator.__wrapped__(source)
        _pass_epoch(kept, steps, lambda step: (step[2], source.steps_per_execution))


def _note_data_back(kept: fit_state.Fit) -> None:
    # What Python code has drawn on the way here it has drawn as it did before.
    run = fit_call.get_current()
    stage = None if run is None else run.training
    if stage is not None and stage.is_dealt:
        kept.say_rows()
    if not kept.data_are_back and not kept.calls_python:
        kept.put_back_random()
    kept.data_are_back = True


def _begin_step(handler: Any, iterator: Any, step: int) -> tuple[Any, int]:
    """The iterator of a step of Keras 2, and how many batches it takes; both are known once it has begun."""
    return iterator, handler.step_increment + 1


@HOOKS.replace_in(LOST, keras2="engine.data_adapter:DataHandler.enumerate_epochs")
def wrap_handler_epochs(original: Any) -> Any:
    """Keras 2's epochs."""

    def enumerate_epochs(self):
        kept = get_current_state()
        if kept is None or kept.source is not self or not kept.needs_data():
            yield from original(self)
            return
        kept.data_taken = True
        # `BackupAndRestore` may have put them elsewhere.
        self._initial_epoch, self._initial_step = kept.first_epoch, 0
        for epoch, iterator in original(self):
            if epoch < kept.epoch and not (kept.is_over and epoch + 1 == kept.epoch and kept.missing):
                _pass_epoch(kept, self.steps(), functools.partial(_begin_step, self, iterator))
                continue
            if kept.is_over and epoch >= kept.epoch:
                return
            if epoch == kept.epoch:
                kept.resumed = (iterator, kept.step)
            yield epoch, iterator

    return enumerate_epochs


@HOOKS.replace_in(LOST, keras2="engine.data_adapter:DataHandler.steps")
def wrap_handler_steps(original: Any) -> Any:
    def steps(self):
        kept = get_current_state()
        iterator, passed = None, None
        if kept is not None and kept.source is self and kept.resumed is not None:
            (iterator, passed), kept.resumed = kept.resumed, None
        for step in original(self):
            if passed is not None and step < passed:
                take_batches(iterator, self.step_increment + 1)
                continue
            if passed is not None and kept is not None:
                _note_data_back(kept)
                passed = None
            yield step

    return steps
