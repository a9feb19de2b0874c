"""The source of Keras' data for `fit` in a run that was started again: it begins where the state was kept."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from matex_tf.resilience import source_data
from matex_tf.resilience.fit_state import Fit, find_current
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.sharding import shard_arrays
from matex_tf.steps import weak_scaling

HOOKS = KerasTable()
_LOST = "a run that is started again does not go on where it was"


@HOOKS.replace_in(_LOST, "trainers.epoch_iterator:EpochIterator.__init__", "engine.data_adapter:DataHandler.__init__")
def _wrap_source(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(*args: Any, **kwargs: Any) -> None:
        import tensorflow as tf

        kept = find_current()
        if kept is not None and kept.source is None:
            # The first that a call of fit makes is of what it trains on.
            kept.source, x = args[0], signature.bind(*args, **kwargs).arguments.get("x")
            kept.are_rows_dealt = weak_scaling.is_on() or any(map(shard_arrays.is_shard, tf.nest.flatten(x)))
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


def pass_epochs(kept: Fit) -> None:
    """Keras 3: go through the epochs that have ended."""
    source = kept.source
    for _ in range(kept.epoch - kept.first_epoch):
        _pass_epoch(kept, ((iterator, source.steps_per_execution) for _, _, iterator in source))
    kept.return_to_epoch()
    kept.seeks_step = kept.goes_on


def _find_step(kept: Fit, steps: Iterator[Any], describe: Callable[[Any], tuple[int, Any, int]]) -> Iterator[Any]:
    """The steps of the epoch in which the state was kept that were not made yet.

    Args:
        steps: all of its steps.
        describe: the place of a step, its iterator, and how many batches it takes.
    """
    kept.seeks_step, last = False, None
    for step in steps:
        begin, iterator, count = describe(step)
        if begin < kept.step:
            with kept.pass_data():
                _pass_step(kept, iterator, count)
            last = step
            continue
        if kept.is_away and last is not None and not source_data.has_length(kept.source):
            again = _take_again(iterator, count)
            if again is None:
                yield _replay_step(kept, last)
            else:
                _answer_next_step(kept.model, functools.partial(_call_with, again))
        kept.reach_step()
        yield step
    if kept.is_away and last is not None:
        yield _replay_step(kept, last)


def _take_again(iterator: Any, count: int) -> Any:
    """An iterator of the batches that a step takes; None where there is none."""
    import tensorflow as tf

    try:
        batches = source_data.take_batches(iterator, count)
    except tf.errors.OutOfRangeError:
        return None
    return source_data.make_iterator(batches, iterator.element_spec)


def _replay_step(kept: Fit, last: Any) -> Any:
    """The `last` step that was kept, which nobody knew to be the epoch's last: of its figures come those of the epoch.

    All that is put back comes after it.
    """
    _answer_next_step(kept.model, lambda _: kept.saved["logs"])
    return last


def _call_with(iterator: Any, function: Any) -> Any:
    return function(iterator)


def _answer_next_step(model: Any, answer: Callable[[Any], Any]) -> None:
    """Have the next call of Keras' function of a step give what `answer` gives of that function."""
    function = model.train_function

    def call(_: Any) -> Any:
        model.train_function = function
        return answer(function)

    model.train_function = call


@HOOKS.replace_in(_LOST, "trainers.epoch_iterator:EpochIterator._enumerate_iterator")
def _wrap_epoch_steps(original: Any) -> Any:
    """The steps of an epoch of Keras 3."""

    def _enumerate_iterator(self: Any) -> Iterator[Any]:
        kept = _find_of(self)
        if kept is None or not kept.seeks_step:
            yield from original(self)
            return
        yield from _find_step(kept, original(self), lambda step: (step[0], step[2], self.steps_per_execution))

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
                kept.return_to_epoch()
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
        yield from _find_step(kept, original(self), lambda step: (step, kept.iterator, self.step_increment + 1))

    return steps
