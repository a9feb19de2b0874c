"""The variables that make up the state of a model in training, in groups of fixed order; copied out and put back.

A group grows at its end only: the variables that a model or an optimizer makes in its first step follow those that it
had before. So what is there already can be put back before the rest is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from matex_tf.gradients import reduction
from matex_tf.metrics import metrics
from matex_tf.world import world

METRICS, ACCUMULATED = "metrics", "accumulated"
_SUMS = (METRICS, ACCUMULATED)  # of which each rank has a part
Kept = dict[str, list[tuple[str, np.ndarray]]]


def groups(model: Any) -> dict[str, list[Any]]:
    """The variables of a Keras model: weights, those of its optimizers, metrics, and sources of random numbers."""
    layers = [layer for layer in metrics.layers_of(model) if layer is not model]
    seen: set[int] = set()
    counted = _new(metrics.variables_of(model), seen)
    optimizers = _optimizers([model, *layers])
    accumulated = _new([one for optimizer in optimizers for one in reduction.accumulators(optimizer)], seen)
    found = {
        "weights": _new(_weights(model), seen),
        "random": _new(_random_variables([model, *layers]), seen),
        "random of TensorFlow": _new(_global_generator(), seen),
        "random of Keras": _new(_keras_global_seed(), seen),
    }
    for index, optimizer in enumerate(optimizers):
        owned = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        found[f"optimizer {index}"] = _new(owned, seen)
        # Of Keras 2 the learning rate is not among them.
        found[f"optimizer {index}, own"] = _new(_attributes(optimizer), seen)
    found["own"] = _new(_attributes(model), seen)
    found[ACCUMULATED] = accumulated
    found[METRICS] = counted
    return found


def _weights(model: Any) -> list[Any]:
    try:
        return [*model.weights, *model.variables]
    except ValueError:
        return []  # Keras 2 says so of a model that the first step builds


def _new(variables: Iterable[Any], seen: set[int]) -> list[Any]:
    chosen = []
    for variable in variables:
        inner = reduction.underlying(variable)
        # Variables of text are no state of training, and no plain data.
        is_kept = hasattr(inner, "assign") and hasattr(inner, "numpy") and getattr(inner.dtype, "name", "") != "string"
        if is_kept and id(inner) not in seen:
            seen.add(id(inner))
            chosen.append(variable)
    return chosen


def _attributes(holder: Any) -> list[Any]:
    values = list(vars(holder).values())
    values += [part for value in values if isinstance(value, dict) for part in value.values()]
    return [value for value in values if hasattr(value, "assign")]


def _optimizers(holders: list[Any]) -> list[Any]:
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


def _random_variables(holders: list[Any]) -> list[Any]:
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


def _global_generator() -> list[Any]:
    from tensorflow.python.ops import stateful_random_ops

    shared = stateful_random_ops.global_generator
    return [] if shared is None else [shared.state]


def _keras_global_seed() -> list[Any]:
    try:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
    except ImportError:
        return []  # Keras 2
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


@contextlib.contextmanager
def whole(model: Any) -> Iterator[Kept]:
    """Within it, rank 0 gets the value of every variable, of metrics the sum over the ranks. Collective.

    The values may change with the variables once it is left; copy them before.
    """
    chosen = groups(model)
    with metrics.whole_state([*chosen[METRICS], *chosen[ACCUMULATED]]):
        yield _read(chosen) if world.current().rank == 0 else {}


def values(model: Any) -> Kept:
    """A copy of every variable as this rank has it."""
    return {group: [(name, value.copy()) for name, value in pairs] for group, pairs in _read(groups(model)).items()}


def set_values(model: Any, before: Kept) -> None:
    """Give variables the values that `values` found."""
    for group, variables in groups(model).items():
        for variable, (_, value) in zip(variables, before.get(group, [])):
            reduction.underlying(variable).assign(value)


def _read(chosen: dict[str, list[Any]]) -> Kept:
    return {
        group: [
            (reduction.name_of(variable), np.asarray(reduction.underlying(variable).numpy())) for variable in variables
        ]
        for group, variables in chosen.items()
    }


def put_back(model: Any, kept: Kept, skip: dict[str, int] | None = None) -> dict[str, int]:
    """Give the model's variables the values `kept`, those after the first `skip` of each group.

    Returns how many of each group are there. What the ranks counted together rank 0 goes on with alone.

    Raises:
        RankError: what was kept is of another model.
    """
    present = {}
    for group, variables in groups(model).items():
        values = kept.get(group, [])
        if len(variables) > len(values):
            raise other_model(f"{len(variables)} variables of the group '{group}'", f"{len(values)}")
        present[group] = len(variables)
        begin = (skip or {}).get(group, 0)
        for variable, (name, value) in list(zip(variables, values))[begin:]:
            inner = reduction.underlying(variable)
            if tuple(inner.shape) != value.shape or inner.dtype.as_numpy_dtype != value.dtype:
                here = f"'{reduction.name_of(variable)}' {inner.dtype.name}{list(inner.shape)}"
                raise other_model(here, f"'{name}' {value.dtype.name}{list(value.shape)}")
            inner.assign(np.zeros_like(value) if group in _SUMS and world.current().rank > 0 else value)
    return present


def other_model(here: str, there: str) -> world.RankError:
    return world.RankError(
        f"the state that was kept of this run is of another model: the script has {here} where {there} was kept. Has "
        "the script, or what it reads, changed since? Remove the folder of the state (MATEX_STATE) to begin anew."
    )


def is_complete(present: dict[str, int], kept: Kept) -> bool:
    """Whether all that was kept has been put back."""
    return all(present.get(group, 0) == len(values) for group, values in kept.items())
