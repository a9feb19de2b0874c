"""The state of a model in training: its variables, in groups of fixed order; kept, put back, and shared after a loss.

A group grows at its end only, as a rule, so that what is there already can be put back before the rest is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from matex_tf.gradients import reduction
from matex_tf.metrics import metrics
from matex_tf.servers import local_sgd
from matex_tf.sharding import step_weight
from matex_tf.steps import pieces
from matex_tf.world import world

METRICS, ACCUMULATED = "metrics", "accumulated"
_SUMS = (METRICS, ACCUMULATED)  # of which each rank has a part
Kept = dict[str, list[tuple[str, np.ndarray]]]


def group_variables(model: Any) -> dict[str, list[Any]]:
    """The variables of a Keras model: weights, those of its optimizers, metrics, and sources of random numbers."""
    layers = [layer for layer in metrics.list_layers(model) if layer is not model]
    seen: set[int] = set()
    counted = _select_new(metrics.list_variables(model), seen)
    optimizers = _list_optimizers([model, *layers])
    accumulated = _select_new([one for optimizer in optimizers for one in reduction.list_accumulators(optimizer)], seen)
    found = {
        "weights": _select_new(_list_weights(model), seen),
        "random": _select_new(_list_random_variables([model, *layers]), seen),
        "random of TensorFlow": _select_new(_list_global_generator(), seen),
        "random of Keras": _select_new(_list_keras_seed(), seen),
    }
    for index, optimizer in enumerate(optimizers):
        owned = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        found[f"optimizer {index}"] = _select_new(owned, seen)
        # Of Keras 2 the learning rate is not among them.
        found[f"optimizer {index}, own"] = _select_new(_list_attributes(optimizer), seen)
    found["own"] = _select_new(_list_attributes(model), seen)
    found[ACCUMULATED] = accumulated
    found[METRICS] = counted
    return found


def _list_weights(model: Any) -> list[Any]:
    try:
        return [*model.weights, *model.variables]
    except ValueError:
        return []  # Keras 2 says so of a model that the first step builds


def _select_new(variables: Iterable[Any], seen: set[int]) -> list[Any]:
    chosen = []
    for variable in variables:
        inner = reduction.find_tf_variable(variable)
        # Variables of text are no state of training, and no plain data.
        is_kept = hasattr(inner, "assign") and hasattr(inner, "numpy") and getattr(inner.dtype, "name", "") != "string"
        if is_kept and id(inner) not in seen:
            seen.add(id(inner))
            chosen.append(variable)
    return chosen


def _list_attributes(holder: Any) -> list[Any]:
    values = list(vars(holder).values())
    values += [part for value in values if isinstance(value, dict) for part in value.values()]
    return [value for value in values if hasattr(value, "assign")]


def _list_optimizers(holders: list[Any]) -> list[Any]:
    """The optimizers that a model has, that of `compile` and others of its own."""
    candidates = [getattr(holders[0], "optimizer", None)]
    candidates += [value for holder in holders for value in vars(holder).values()]
    seen: set[int] = set()
    chosen = []
    for value in candidates:
        if hasattr(value, "apply_gradients") and hasattr(value, "variables") and id(value) not in seen:
            seen.add(id(value))
            chosen.append(value)
    return chosen


def _list_random_variables(holders: list[Any]) -> list[Any]:
    """States of generators of random numbers that no list of weights has."""
    found = []
    for holder in holders:
        for value in vars(holder).values():
            inner = getattr(value, "_generator", None)
            for generator in (value, inner):
                state = getattr(generator, "state", None)
                if state is not None and hasattr(state, "assign"):
                    found.append(state)
    return found


def _list_global_generator() -> list[Any]:
    from tensorflow.python.ops import stateful_random_ops

    shared = stateful_random_ops.global_generator
    return [] if shared is None else [shared.state]


def _list_keras_seed() -> list[Any]:
    try:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
    except ImportError:
        return []  # Keras 2
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


class State:
    """The state of `model` in training, on this rank.

    In memory, for a step that is made again by fewer ranks: `save` keeps it, `restore` puts it back as it was saved,
    `sync` has the ranks that are left go on with what all had counted. On a disk, for a run that is started again:
    `gather_whole` gives what is to be kept of all ranks, `load_values` puts it back.
    """

    def __init__(self, model: Any):
        self.counted: list[tuple[Any, np.ndarray, np.ndarray]] = []
        self._model = model
        self._changed: list[Any] = []
        self._variables: list[Any] = []
        self._saved: tuple[list[Any], list[Any]] = [], []
        self._reader: Any = None

    def find_variables(self, changed: Iterable[Any] = ()) -> None:
        """Look which variables there are: of the model, and others that its step has `changed`, of the script's own."""
        import tensorflow as tf

        self._changed = list(changed)
        found = self._list_all()
        if self._reader is None or list(map(id, found)) != list(map(id, self._variables)):
            self._variables = found
            read = tf.function(lambda: [variable.read_value() for variable in found], autograph=False)
            self._reader = read.get_concrete_function()

    def save(self) -> None:
        """Keep the values of the variables. That copies nothing: TensorFlow writes what changes to new memory."""
        self._saved = self._reader(), list(self.counted)

    def restore(self) -> None:
        """Give the variables the values that were saved."""
        values, counted = self._saved
        self.counted = list(counted)
        for variable, value in zip(self._variables, values):
            variable.assign(value)

    def has_grown(self) -> bool:
        """Whether variables were made since."""
        return len(self._list_all()) > len(self._variables)

    def count_sums(self) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        """What is not the same on all ranks but a sum over them: variables, with this rank's part and the sum.

        Collective. What all have completed is for `counted`.
        """
        counted = [
            *metrics.list_variables(self._model),
            *reduction.list_accumulators(getattr(self._model, "optimizer", None)),
        ]
        counted = list(map(reduction.find_tf_variable, counted))
        own = [variable.read_value() for variable in counted]
        return [(one, mine.numpy(), all.numpy()) for one, mine, all in zip(counted, own, metrics.sum_over_ranks(own))]

    def sync(self) -> None:
        """Have the first rank that is left go on with the sums that all had `counted`, where nothing changed since."""
        for at, (variable, own, total) in enumerate(self.counted):
            if np.array_equal(variable.numpy(), own):
                mine = total if world.get_world().rank == 0 else np.zeros_like(total)
                variable.assign(mine)
                self.counted[at] = (variable, mine, total)

    def _list_all(self) -> list[Any]:
        known = [
            reduction.find_tf_variable(variable)
            for group in group_variables(self._model).values()
            for variable in group
        ]
        seen = {*map(id, known), *map(id, step_weight.list_own_variables())}
        others = [variable for variable in map(reduction.find_tf_variable, self._changed) if id(variable) not in seen]
        known += [one for one in others if hasattr(one, "assign") and one.dtype.name != "string"]
        return list({id(one): one for one in pieces.list_kept(known)}.values())

    @contextlib.contextmanager
    def gather_whole(self) -> Iterator[Kept]:
        """Within it, rank 0 gets the value of every variable, of metrics the sum over the ranks. Collective.

        The values may change with the variables once it is left; copy them before.
        """
        chosen = group_variables(self._model)
        pieces.make_whole()
        local_sgd.average_current()
        with metrics.hold_whole_state([*chosen[METRICS], *chosen[ACCUMULATED]]):
            first = world.get_world().rank == 0
            yield _read_values(chosen) if first else {}

    def load_values(self, kept: Kept, skip: dict[str, int] | None = None) -> dict[str, int]:
        """Give the variables the values `kept`, those after the first `skip` of each group.

        Returns how many of each group have been put back. What the ranks counted together rank 0 goes on with alone.

        Raises:
            RankError: what was kept is of another model.
        """
        present = {}
        chosen = group_variables(self._model)
        for group, variables in chosen.items():
            values = kept.get(group, [])
            if len(variables) > len(values):
                raise describe_difference(f"{len(variables)} variables of the group '{group}'", f"{len(values)}")
            if len(variables) < len(values) and not all(map(_is_assignable, variables, (value for _, value in values))):
                # As of Keras 3 the seeds of a model's Dropouts, which come last once its weights are made.
                present[group] = 0
                continue
            present[group] = len(variables)
            begin = (skip or {}).get(group, 0)
            for variable, (name, value) in list(zip(variables, values))[begin:]:
                _assign_value(
                    variable, name, np.zeros_like(value) if group in _SUMS and world.get_world().rank > 0 else value
                )
        return present


def _is_assignable(variable: Any, value: np.ndarray) -> bool:
    inner = reduction.find_tf_variable(variable)
    return tuple(inner.shape) == value.shape and bool(inner.dtype.as_numpy_dtype == value.dtype)


def _assign_value(variable: Any, name: str, value: np.ndarray) -> None:
    inner = reduction.find_tf_variable(variable)
    if not _is_assignable(variable, value):
        here = f"'{reduction.find_name(variable)}' {inner.dtype.name}{list(inner.shape)}"
        raise describe_difference(here, f"'{name}' {value.dtype.name}{list(value.shape)}")
    inner.assign(value)


def _read_values(chosen: dict[str, list[Any]]) -> Kept:
    return {
        group: [
            (reduction.find_name(variable), np.asarray(reduction.find_tf_variable(variable).numpy()))
            for variable in variables
        ]
        for group, variables in chosen.items()
    }


def describe_difference(here: str, there: str) -> world.RankError:
    return world.RankError(
        f"the state that was kept of this run is of another model: the script has {here} where {there} was kept. Has "
        "the script, or what it reads, changed since? Remove the folder of the state (MATEX_STATE) to begin anew."
    )


def is_complete(present: dict[str, int], kept: Kept) -> bool:
    """Whether all that was kept has been put back."""
    return all(present.get(group, 0) == len(values) for group, values in kept.items())
