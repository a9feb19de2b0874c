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

    def __call__(self, *args: Any) -> None:
        for listener in self._listeners:
            listener(*args)


step_planned = Event()
"""(plan): it is known how the calls of a traced function are computed."""
step_copied = Event()
"""(): the copy of a step that ranks share has been made, in the graph that is being built."""
step_begins = Event()
"""(plan): a call of a step that ranks share is about to run; `plan.trained` has the weights that the call changes."""
step_computed = Event()
"""(plan): the call has been computed; where a rank is lost meanwhile, it is made again."""
step_ended = Event()
"""(plan): the call has run."""
training_begins = Event()
"""(model, callbacks): `fit` of Keras is about to train `model`; `callbacks` is Keras' list of its callbacks."""
training_ended = Event()
"""(model): `fit` has trained, and callbacks were told."""
epoch_begins = Event()
"""(model, epoch): `epoch` counts from 0."""
epoch_ended = Event()
"""(model, epoch): after the callbacks of the script were told."""
pieces_are_used = Event()
"""(variables): a step is planned that uses these variables, of which each rank may hold a piece."""
pieces_refused = Event()
"""(variables, why): such variables are whole from now on, or as long as what changes them takes them whole."""
updates_eagerly = Event()
"""(optimizer): an optimizer of Keras is about to update in eager code, which every rank computes whole."""
world_changed = Event()
"""(): there are fewer ranks than before; plans are made anew."""
