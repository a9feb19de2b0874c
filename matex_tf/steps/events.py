"""Events of training, to which the extras of the library listen. The core raises events and names no listener.

Every rank raises the same events in the same order, so that a listener may communicate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Event:
    """Listeners are called in the order in which they were added, each with the arguments of the event."""

    def __init__(self) -> None:
        self._listeners: list[Callable[..., object]] = []

    def add_listener(self, listener: Callable[..., object]) -> None:
        if listener not in self._listeners:
            self._listeners.append(listener)

    @property
    def is_heard(self) -> bool:
        return bool(self._listeners)

    def __call__(self, *args: Any) -> None:
        for listener in self._listeners:
            listener(*args)


class Watcher:
    """A callback of ours in Keras' list of callbacks, which raises events."""


copy_begins = Event()
"""(plan, copy): `copy`, a `rewrite.emit.Copy`, is about to build the copy of a step."""
step_copied = Event()
"""(): the copy of a step that ranks share has been made, in the graph that is being built."""
step_planned = Event()
"""(plan): ranks have agreed on how the step is computed; `plan.why_whole` says why they do not share it."""
computed_whole = Event()
"""(step, why): every rank computes a step, so named, by itself, of which the user is told."""
trained_eagerly = Event()
"""(): a training step in eager code takes its gradients."""
step_begins = Event()
"""(plan): a call of a step that ranks share is about to run; `plan.trained` has the weights that the call changes."""
step_computed = Event()
"""(plan): the call has been computed; where a rank is lost meanwhile, it is made again."""
step_ended = Event()
"""(plan): the call has run."""
step_trained = Event()
"""(plan): a step has changed weights, shared or not; the plan of its function, None for eager code and sessions."""
unmeasured = Event()
"""(place): ranks share calls of which no events of steps tell, as of sessions; `place` names them."""
training_begins = Event()
"""(model, callbacks): `fit` of Keras is about to train `model`; `callbacks` is Keras' list of its callbacks."""
training_began = Event()
"""(model): callbacks were told that training begins."""
training_ended = Event()
"""(model): `fit` has trained, and callbacks were told."""
epoch_begins = Event()
"""(model, epoch): `epoch` counts from 0."""
batch_ended = Event()
"""(model, batch, logs): after the script's callbacks were told; `batch` is the last one of the step, from 0."""
epoch_logged = Event()
"""(model, epoch, params, logs): Keras' parameters of the call and the figures of an epoch that has ended."""
epoch_ended = Event()
"""(model, epoch): after the callbacks of the script were told."""
pass_begins = Event()
"""(dataset, iterator): eager code begins to go through a tf.data.Dataset; a function may take the batches."""
batch_wanted = Event()
"""(iterator): eager code takes the next batch of the iterator."""
batch_given = Event()
"""(iterator, is_over): eager code has that batch, or there is none any more."""
batch_taken = Event()
"""(plan, seconds, take): the batch of a call of a step has been taken before the call, which waited so long for it.

`take` takes the next one of the same data: a `batches.Batch`, or None at the end.
"""
figures_told = Event()
"""(model, logs): callbacks are about to be told of the end of an epoch; a listener may change the figures in `logs`."""
ranks_meet = Event()
"""(doing): for what follows all ranks have to hold the same; a listener brings ranks that train apart together."""
pieces_are_used = Event()
"""(variables): a step is planned that uses these variables, of which each rank may hold a piece."""
pieces_refused = Event()
"""(variables, why): such variables are whole from now on, or as long as what changes them takes them whole."""
updates_eagerly = Event()
"""(optimizer): an optimizer of Keras is about to update in eager code, which every rank computes whole."""
world_changed = Event()
"""(): there are fewer ranks than before. Copies of steps are made anew for them as they are called."""
