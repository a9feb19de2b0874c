"""Counts batches and updates of an epoch of the script alone, for `matex plan`: of `fit`, or of a loop over a dataset.

`monitor.listeners` registers the functions from `begin_fit` on for events of training. A source gives batches: the data
of a call of `fit`, or an iterator of a loop. A pass is an iteration over a source; a pass that trains is an epoch.
"""

from __future__ import annotations

import weakref
from typing import Any

from matex_tf import ops, settings
from matex_tf.sharding import shard_arrays
from matex_tf.world import world

_last_trained: Source | None = None  # the source whose batches trained last
_fits: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()  # by model
_loops: weakref.WeakKeyDictionary[Any, Source] = weakref.WeakKeyDictionary()  # by iterator


class Source:
    """A source of batches, with several passes over it.

    Args:
        name: for messages.
        batches: the number of batches of a pass, from its length; 0 if unknown.
        scale: the number of batches of the script alone that each batch stands for: with weak scaling, in which each
            rank takes a batch of the script of its own, one for each rank that trains.
    """

    def __init__(self, name: str, batches: int = 0, scale: int = 1):
        self.name, self.batches, self.scale = name, batches, scale
        self.pass_batches = 0  # batches in this pass so far
        self._earlier_batches = self._last_pass_batches = 0  # in all earlier passes, and in the last of these
        # The number of updates of gradients in this process: at the creation, and at the last batch that trained.
        self._first_update = self._last_update = ops.count_updates()
        self._trained_batches = self._trained_updates = 0  # batches at the last update, and updates by then

    def end_batches(self, count: int) -> None:
        """The first `count` batches of this pass have been processed."""
        global _last_trained
        self.pass_batches = count
        updates = ops.count_updates()
        if updates > self._last_update:
            _last_trained, self._last_update = self, updates
            self._trained_batches = self._earlier_batches + count
            self._trained_updates = updates - self._first_update

    def end_pass(self) -> None:
        """All batches of this pass have been processed; the next batch begins another pass."""
        self._last_pass_batches = self.pass_batches
        self._earlier_batches += self.pass_batches
        self.pass_batches = 0

    def describe_epoch(self) -> dict[str, Any]:
        """batches (of an epoch; 0: unknown, see why_not), given (batches that trained), updates (made by them)."""
        batches = (self.batches or self._last_pass_batches) * self.scale
        why = "" if batches else f"the number of batches of {self.name} is unknown, and no epoch was completed"
        trained = {"given": self._trained_batches, "updates": self._trained_updates}
        return {"batches": batches, **trained, "why_not": why}


def describe_epoch() -> dict[str, Any]:
    """Describe the source that trained last."""
    if _last_trained is not None:
        return _last_trained.describe_epoch()
    why = "no batches were given by `fit`, or by a loop in eager code over a tf.data.Dataset"
    return {"batches": 0, "given": 0, "updates": 0, "why_not": why}


def begin_fit(model: Any, callbacks: Any) -> None:
    is_weak = settings.get_settings().scaling == "weak"
    batches = (callbacks.params or {}).get("steps") or 0
    _fits[model] = Source("the data of `fit`", batches, world.get_world().trainers if is_weak else 1)


def end_step(plan: Any) -> None:
    """A call of a step has ended. Within `fit`, a step of Keras has one or several batches (`steps_per_execution`)."""
    for model, source in _fits.items():
        if plan.trained:  # the weights that the step changes
            source.end_batches(source.pass_batches + int(getattr(model, "steps_per_execution", None) or 1))


def end_epoch(model: Any, epoch: int) -> None:
    if model in _fits:
        _fits[model].end_pass()


def end_fit(model: Any) -> None:
    _fits.pop(model, None)


def begin_pass(dataset: Any, iterator: Any) -> None:
    """Eager code begins to iterate over a dataset."""
    # With weak scaling, a batch of a shard stands for a batch of each rank.
    is_batch_of_each_rank = shard_arrays.is_shard(dataset) and settings.get_settings().scaling == "weak"
    scale = world.get_world().trainers if is_batch_of_each_rank else 1
    _loops[iterator] = Source("the dataset of the training loop", max(int(dataset.cardinality()), 0), scale)


def want_batch(iterator: Any) -> None:
    """Called when eager code begins to take a batch: all batches given before have been processed."""
    source = _loops.get(iterator)
    if source is not None:
        source.end_batches(source.pass_batches)


def give_batch(iterator: Any, is_over: bool) -> None:
    """Called when eager code has the batch, or has found the end of the data."""
    source = _loops.get(iterator)
    if source is not None and is_over:
        source.end_pass()
    elif source is not None:
        source.pass_batches += 1
