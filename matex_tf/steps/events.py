"""Events of training, for the extras of the library. The core raises events and names no listener.

Every rank raises the same events in the same order, so a listener may run collectives. A shared step is one of which
each rank computes its slice; `plan` is the `StepPlan`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Event:
    """An event. Listeners are called in the order of their registration, with the arguments of the event."""

    def __init__(self) -> None:
        self._listeners: list[Callable[..., object]] = []

    def add_listener(self, listener: Callable[..., object]) -> None:
        if listener not in self._listeners:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[..., object]) -> None:
        self._listeners.remove(listener)

    @property
    def is_heard(self) -> bool:
        return bool(self._listeners)

    def __call__(self, *args: Any) -> None:
        for listener in self._listeners:
            listener(*args)


class Watcher:
    """A callback of the library in Keras' list, which raises events. The class tells it from the script's callbacks."""


copy_begins = Event()
"""(plan, copy): `copy`, a `rewrite.emit.Copy`, is about to build the copy of a step."""
step_copied = Event()
"""(): the copy of a shared step has been built in the current graph."""
step_planned = Event()
"""(plan): the ranks have agreed on how to compute the step; `plan.why_whole` is the reason if they do not share it."""
computed_whole = Event()
"""(step, why): every rank computes this step by itself, or parts of it in eager code."""
step_begins = Event()
"""(plan): a call of a shared step is about to run; `plan.trained` lists the weights that it changes."""
step_computed = Event()
"""(plan): the call has been computed; it is repeated if a rank was lost meanwhile."""
step_ended = Event()
"""(plan): the call has run."""
step_trained = Event()
"""(plan): a step has changed weights, shared or not; the plan of its function, None for eager code and sessions."""
unmeasured = Event()
"""(place): ranks share calls without events of their own, such as runs of sessions; `place` names them."""
training_begins = Event()
"""(model, callbacks): `fit` of Keras is about to train `model`; `callbacks` is Keras' list of its callbacks."""
training_began = Event()
"""(model): the callbacks have been told that training begins."""
training_ended = Event()
"""(model): `fit` has ended, and the callbacks have been told."""
epoch_begins = Event()
"""(model, epoch): an epoch begins; `epoch` counts from 0."""
batch_ended = Event()
"""(model, batch, logs): after the script's callbacks; `batch` is the last batch of the step, counted from 0."""
epoch_logged = Event()
"""(model, epoch, params, logs): an epoch has ended; Keras' parameters of the call, and the epoch's logs."""
epoch_ended = Event()
"""(model, epoch): after the script's callbacks."""
pass_begins = Event()
"""(dataset, iterator): eager code begins to iterate over a tf.data.Dataset; a function may take the batches."""
batch_wanted = Event()
"""(iterator): eager code takes the next batch of the iterator."""
batch_given = Event()
"""(iterator, is_over): eager code has the batch, or the data have ended."""
batch_taken = Event()
"""(plan, seconds, handle): the batch of a call has been taken after `seconds`, from the iterator of this handle."""
epoch_logs_made = Event()
"""(model, logs): the callbacks are about to get the logs of an epoch; a listener may change `logs`."""
ranks_meet = Event()
"""(doing): before an operation, named by `doing`, for which all ranks must hold the same state. Ranks that have trained
by themselves bring their variables together.
"""
cuts_wanted = Event()
"""(variables): a step is being planned that uses these `PieceVariable`s. A listener sets missing `cuts` of them."""
pieces_refused = Event()
"""(variables, why): these `PieceVariable`s are whole from now on, or are made whole before each call of the code that
changes them.
"""
updates_eagerly = Event()
"""(optimizer): a Keras optimizer is about to update in eager code, which every rank computes by itself."""
world_changed = Event()
"""(became_first): ranks were lost, and the others have new numbers; whether this rank has become rank 0.

`membership.survivors` lists the former numbers.
"""
