"""`MATEX_STRATEGY=local:H`: in `fit` each rank trains H steps by itself, then all take the average of their weights.

A step is of this rank's slice of the batch, and its gradient stays the rank's own. Whoever looks at the model where the
ranks are together, at the end of an epoch, to validate or to save it, finds the average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf import ops, settings
from matex_tf.gradients import local_gradients, reduction, variables
from matex_tf.runtime import notes
from matex_tf.servers import asynchronous
from matex_tf.servers.pieces import update_costs
from matex_tf.world import world

_AT_ONCE = 1 << 22  # bytes of variables that are averaged in one piece, where more than one fit in
_under_way: list[Averaging] = []


def is_chosen() -> bool:
    """Whether ranks are to train by themselves where they can."""
    name = settings.get_strategy_name(settings.get_settings().strategy)
    return name == "local" and world.is_active() and not world.get_world().is_phantom


def read_period() -> int:
    """How many steps a rank trains by itself."""
    return settings.get_strategy_number(settings.get_settings().strategy, 1)


def say_not(what: str, why: str) -> None:
    """Say once that ranks do not train `what` by themselves though that is chosen; note it for a plan."""
    update_costs.note_obstacle("local", why)
    if is_chosen():
        notes.print_note(f"MATEX_STRATEGY=local: {what} runs as allreduce: {why}")


def say_only_fit(what: str) -> None:
    """Say once that `what` is trained as ever, where a strategy of `fit` alone is chosen."""
    if not local_gradients.are_kept():
        why = "only fit trains so"
        asynchronous.say_not(what, why)
        say_not(what, why)


def average_current() -> None:
    """Where ranks train by themselves, give all the average of what they have. Collective there, else nothing."""
    for one in _under_way:
        one.average_weights()


class Averaging:
    """A training in which ranks are by themselves for some steps.

    Args:
        trained: the variables of TensorFlow that it trains; there may be more once a step was traced.
        has: gives these and others that may become another on each rank, such as the optimizer's.
    """

    def __init__(self, trained: Sequence[Any], has: Callable[[], Sequence[Any]]):
        self._trained, self._has = trained, has
        self._steps = 0  # since the weights were averaged
        self._are_apart = False  # the others
        _under_way.append(self)

    def say_averaging(self) -> None:
        """Say how this training goes."""
        steps = "each step" if read_period() == 1 else f"{read_period()} steps"
        notes.print_note(
            f"local: {world.get_world().size} ranks, each on its slices of batches by itself; after {steps} the "
            "average of their weights; results are statistical, not those of the script alone (docs/strategies.md)"
        )

    def end_step(self) -> None:
        """A step is over. Collective after every so many."""
        self._steps += 1
        self._are_apart = True
        if self._steps == read_period():
            self._average_trained()

    def average_weights(self) -> None:
        """Give all ranks the average of what they have. Collective, unless nothing was trained since the last time."""
        if self._steps:
            self._average_trained()
        if self._are_apart:
            self._are_apart = False
            known = set(map(id, self._trained))
            others = [one for one in map(reduction.find_tf_variable, self._has()) if id(one) not in known]
            chosen = [one for one in others if one.dtype.is_floating]
            values = [np.asarray(one.numpy()) for one in chosen]
            names = list(map(reduction.find_name, chosen))
            differing = variables.find_differing(names, values, "what ranks that trained by themselves have")
            _take_average([chosen[index] for index in differing])

    def close_averaging(self) -> None:
        """It is over. Not collective."""
        _under_way.remove(self)

    def _average_trained(self) -> None:
        self._steps = 0
        _take_average(self._trained)


def _take_average(chosen: Sequence[Any]) -> None:
    """Give variables of TensorFlow the average of what they are on all ranks. Collective."""
    import tensorflow as tf

    for group in _group_variables(chosen):
        flat = [tf.reshape(one.read_value(), [-1]) for one in group]
        name = f"the average of '{reduction.find_name(group[0])}' and {len(group) - 1} more"
        average = ops.allreduce(flat[0] if len(flat) == 1 else tf.concat(flat, 0), "mean", name)
        for one, value in zip(group, tf.split(average, [part.shape[0] for part in flat])):
            one.assign(tf.reshape(value, one.shape))


def _group_variables(chosen: Sequence[Any]) -> Iterator[list[Any]]:
    """Variables of one type that follow each other and fit into one piece."""
    group: list[Any] = []
    size = 0
    for one in chosen:
        more = one.shape.num_elements() * one.dtype.size
        if group and (one.dtype != group[0].dtype or size + more > _AT_ONCE):
            yield group
            group, size = [], 0
        group.append(one)
        size += more
    if group:
        yield group
