"""Hooks on Keras' data source: in a restarted run, `fit` continues with the batch after the saved step.

An iterator or a shuffle reaches the saved position only by a repetition of what happened before it. So the hooks skip
the data before the saved step: they begin each epoch, take its batches if the position of the data depends on them, and
train none of them.

1. `_wrap_source` notes the data source of the call of `fit`.
2. Ended epochs are skipped by `_skip_epoch`, which `skip_epochs` (Keras 3) or `_wrap_epochs` (Keras 2) calls.
3. Steps of the interrupted epoch are skipped by `_resume_steps`, which `_wrap_epoch_steps` (Keras 3) or `_wrap_steps`
   (Keras 2) calls. Then training continues.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf.lazy import tf
from matex_tf.resilience import source_data
from matex_tf.resilience.fit_state import find_current
from matex_tf.resilience.resumption import Phase, Resumption
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import shard_arrays
from matex_tf.steps import weak_scaling

HOOKS = KerasTable()
_IF_HOOK_MISSING = "a restarted run does not resume from its saved state"


@HOOKS.replace_in(
    _IF_HOOK_MISSING, "trainers.epoch_iterator:EpochIterator.__init__", "engine.data_adapter:DataHandler.__init__"
)
def _wrap_source(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(*args: Any, **kwargs: Any) -> None:
        fit = find_current()
        if fit is not None and fit.source is None:
            # A call of `fit` creates the data source for training before the source for validation.
            fit.source, x = args[0], signature.bind(*args, **kwargs).arguments.get("x")
            fit.are_rows_already_sharded = weak_scaling.is_on() or any(map(shard_arrays.is_shard, tf.nest.flatten(x)))
        original(*args, **kwargs)

    return __init__


def _find_resumption(source: Any) -> Resumption | None:
    """The resumption of the call of `fit` that trains on `source`; None if it has no saved state."""
    fit = find_current()
    return None if fit is None or fit.source is not source else fit.resumption


def _skip_epoch(resumption: Resumption, steps: Iterator[tuple[Any, int]]) -> None:
    """Skip an epoch, so that iterators and shuffles advance as in the original run.

    `steps` yields each step's iterator and number of batches. A loop over it lets Keras begin the epoch. Batches are
    taken only if the position of the data depends on them, or if a training step must create variables.
    """
    fit = resumption.fit
    takes_batches = source_data.has_position(fit.source, fit.calls_python)
    with fit.source.catch_stop_iteration(), resumption.skip_data():
        for iterator, batch_count in steps:
            _skip_step(resumption, iterator, batch_count, takes_batches)


def _skip_step(resumption: Resumption, iterator: Any, batch_count: int, takes_batches: bool = True) -> None:
    """Skip a step of `batch_count` batches. `takes_batches`: take its batches from the iterator.

    If some saved variables exist only after a training step, the first skipped step is trained. `Resumption.restore`
    then replaces all its results.
    """
    if resumption.lacks_variables and not resumption.has_created_variables:
        resumption.has_created_variables = True
        batches = source_data.take_batches(iterator, batch_count)
        resumption.fit.model.train_function(source_data.make_iterator(batches, iterator.element_spec))
        resumption.restore()
    elif takes_batches:
        source_data.take_batches(iterator, batch_count)


def skip_epochs(resumption: Resumption) -> None:
    """Keras 3: skip the epochs that had ended. `fit_hooks` calls this before the epochs of the restarted call."""
    source = resumption.fit.source
    for _ in range(resumption.epoch - resumption.fit.first_epoch):
        _skip_epoch(resumption, ((iterator, source.steps_per_execution) for _, _, iterator in source))
    resumption.begin_epoch()


def _resume_steps(
    resumption: Resumption, steps: Iterator[Any], describe_step: Callable[[Any], tuple[int, Any, int]]
) -> Iterator[Any]:
    """Skip the steps before the saved position, restore the state, and yield the remaining steps of the epoch.

    Possibly no step remains: if the length of the epoch is unknown, a state may be saved after its last step. But Keras
    needs the logs of a step at the end of each epoch. So the last step is yielded once more, and its call returns the
    saved logs without training (`_repeat_last_step`).

    Args:
        steps: all steps of the epoch, as Keras yields them.
        describe_step: returns a step's number in the epoch, its iterator, and its number of batches.
    """
    resumption.phase, last_skipped = Phase.SKIPS_STEPS, None
    for step in steps:
        number, iterator, batch_count = describe_step(step)
        if number < resumption.step:
            with resumption.skip_data():
                _skip_step(resumption, iterator, batch_count)
            last_skipped = step
            continue
        is_first = resumption.is_before_saved_step and last_skipped is not None  # the first step after skipped ones
        if is_first and not source_data.has_length(resumption.fit.source):
            # Only taking the batches shows whether there is a further step. This step then trains these batches. At the
            # end of the data, the last step is repeated, and then `step` finds the end again: Keras ends the epoch.
            next_batches = _take_next_batches(iterator, batch_count)
            if next_batches is None:
                yield _repeat_last_step(resumption, last_skipped)
            else:
                _feed_next_step(resumption.fit.model, next_batches)
        resumption.reach_step()
        yield step
    if resumption.is_before_saved_step and last_skipped is not None:  # all steps were skipped
        yield _repeat_last_step(resumption, last_skipped)


def _take_next_batches(iterator: Any, batch_count: int) -> Any:
    """An iterator over the batches of the next step; None at the end of the data."""
    try:
        batches = source_data.take_batches(iterator, batch_count)
    except tf.errors.OutOfRangeError:
        return None
    return source_data.make_iterator(batches, iterator.element_spec)


def _repeat_last_step(resumption: Resumption, last_skipped: Any) -> Any:
    """The last step of an epoch, for Keras to call again. The call trains nothing, and returns the saved logs."""
    _replace_next_step(resumption.fit.model, lambda _: resumption.saved["logs"])
    return last_skipped


def _feed_next_step(model: Any, batches: Any) -> None:
    """Let the next step train the iterator `batches`, because they are already taken from the iterator of the epoch."""
    _replace_next_step(model, lambda train_function: train_function(batches))


def _replace_next_step(model: Any, replacement: Callable[[Any], Any]) -> None:
    """Replace the model's `train_function`, which Keras calls with the iterator of the epoch, for one call.

    That call puts the original function back, ignores the iterator, and returns `replacement(original function)`.
    """
    train_function = model.train_function

    def call_replacement(_: Any) -> Any:
        model.train_function = train_function
        return replacement(train_function)

    model.train_function = call_replacement


@HOOKS.replace_in(_IF_HOOK_MISSING, "trainers.epoch_iterator:EpochIterator._enumerate_iterator")
def _wrap_epoch_steps(original: Any) -> Any:
    """The steps of an epoch in Keras 3."""

    def _enumerate_iterator(self: Any) -> Iterator[Any]:
        resumption = _find_resumption(self)
        if resumption is None or resumption.phase != Phase.BEGINS_EPOCH:
            yield from original(self)
            return
        yield from _resume_steps(resumption, original(self), lambda step: (step[0], step[2], self.steps_per_execution))

    return _enumerate_iterator


@HOOKS.replace_in(_IF_HOOK_MISSING, keras2="engine.data_adapter:DataHandler.enumerate_epochs")
def _wrap_epochs(original: Any) -> Any:
    """The epochs in Keras 2, of which the ended ones are skipped."""

    def enumerate_epochs(self: Any) -> Iterator[Any]:
        resumption = _find_resumption(self)
        if resumption is None:
            yield from original(self)
            return
        # The callback `BackupAndRestore` may have changed both.
        self._initial_epoch, self._initial_step = resumption.fit.first_epoch, 0
        for epoch, iterator in original(self):
            if epoch < resumption.epoch:
                # Keras sets `step_increment`, the number of batches of a step minus 1, when the step begins.
                _skip_epoch(resumption, ((iterator, self.step_increment + 1) for _ in self.steps()))
                continue
            if resumption.phase == Phase.OVER:
                return
            if resumption.is_before_saved_step:
                resumption.begin_epoch()
                resumption.iterator = iterator
            yield epoch, iterator

    return enumerate_epochs


@HOOKS.replace_in(_IF_HOOK_MISSING, keras2="engine.data_adapter:DataHandler.steps")
def _wrap_steps(original: Any) -> Any:
    """The steps of an epoch in Keras 2."""

    def steps(self: Any) -> Iterator[Any]:
        resumption = _find_resumption(self)
        if resumption is None or resumption.phase != Phase.BEGINS_EPOCH:
            yield from original(self)
            return
        yield from _resume_steps(
            resumption, original(self), lambda step: (step, resumption.iterator, self.step_increment + 1)
        )

    return steps
