"""Reads and restores the values of all variables of a model in training, in ordered groups.

A variable is found by its group and its position there, not by its name: Keras numbers names (`dense_1`) over the whole
process, so a restarted script may have other ones. Names are saved for messages.

Variables are created when a model is built, an optimizer's also at its first step. Usually they come last in their
group. Existing variables can therefore be restored before later ones are created.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from matex_tf import errors
from matex_tf.steps.variables import find_name, find_tf_variable

METRICS = "metrics"
Values = dict[str, list[tuple[str, np.ndarray]]]
"""The names and values of variables, by group."""


def group_variables(model: Any, source: Any = None) -> dict[str, list[Any]]:
    """The variables of a Keras model, by group: weights, optimizers, metrics, and states of random generators.

    A variable that several lists have is in the first group whose list has it, in the order of the calls below.

    Args:
        source: Keras' data source. Its variables are excluded: they hold its position in the epoch (in Keras 2 the
            number of batches in the current step), and it sets them when data are skipped.
    """
    # Keras' method, if it exists, also lists nested layers.
    all_layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else getattr(model, "layers", [])
    layers = [layer for layer in all_layers if layer is not model]
    grouped_ids: set[int] = set()  # the variables that have a group, or are excluded
    _select_new([] if source is None else _list_attributes(source), grouped_ids)  # so that no group has them
    # Metrics are selected before the weights, among which Keras 2 lists some of their variables.
    metrics = _select_new(_list_metric_variables(model, layers), grouped_ids)
    groups = {
        "weights": _select_new(_list_weights(model), grouped_ids),
        "random": _select_new(_list_random_variables([model, *layers]), grouped_ids),
        "random of TensorFlow": _select_new(_list_global_generator(), grouped_ids),
        "random of Keras": _select_new(_list_keras_seed(), grouped_ids),
    }
    for index, optimizer in enumerate(_list_optimizers([model, *layers])):
        variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        groups[f"optimizer {index}"] = _select_new(variables, grouped_ids)
        # In Keras 2, the learning rate is not among the optimizer's variables.
        groups[f"optimizer {index}, own"] = _select_new(_list_attributes(optimizer), grouped_ids)
    groups["own"] = _select_new(_list_attributes(model), grouped_ids)  # of a script's subclass of Model
    groups[METRICS] = metrics
    return groups


def _list_metric_variables(model: Any, layers: list[Any]) -> list[Any]:
    """The variables of all metrics."""
    metrics = list(getattr(model, "metrics", []))
    # An adapting layer also has `update_state`, but no `result`.
    metrics += [layer for layer in layers if hasattr(layer, "update_state") and hasattr(layer, "result")]
    for layer in [model, *layers]:
        metrics += getattr(layer, "_metrics", None) or []
    return [variable for metric in metrics for variable in metric.variables]


def _list_weights(model: Any) -> list[Any]:
    try:
        return [*model.weights, *model.variables]
    except ValueError:
        return []  # Keras 2 raises for a model that its first step builds


def _select_new(variables: Iterable[Any], seen_ids: set[int]) -> list[Any]:
    """The variables whose ids are not in `seen_ids`; adds them to it."""
    new_variables = []
    for variable in variables:
        tf_variable = find_tf_variable(variable)
        # String variables are neither training state nor plain data.
        is_kept = (
            hasattr(tf_variable, "assign")
            and hasattr(tf_variable, "numpy")
            and getattr(tf_variable.dtype, "name", "") != "string"
        )
        if is_kept and id(tf_variable) not in seen_ids:
            seen_ids.add(id(tf_variable))
            new_variables.append(variable)
    return new_variables


def _list_attributes(holder: Any) -> list[Any]:
    """The variables in the attributes of an object, and in dicts there."""
    values = list(vars(holder).values())
    values += [part for value in values if isinstance(value, dict) for part in value.values()]
    return [value for value in values if hasattr(value, "assign")]


def _list_optimizers(holders: list[Any]) -> list[Any]:
    """The optimizers of a model: that of `compile`, and those in its attributes."""
    candidates = [getattr(holders[0], "optimizer", None)]
    candidates += [candidate for holder in holders for candidate in vars(holder).values()]
    optimizers = [one for one in candidates if hasattr(one, "apply_gradients") and hasattr(one, "variables")]
    return list({id(optimizer): optimizer for optimizer in optimizers}.values())  # each once


def _list_random_variables(holders: list[Any]) -> list[Any]:
    """States of random generators that are in no list of weights."""
    values = [value for holder in holders for value in vars(holder).values()]
    # Keras 3: a SeedGenerator; Keras 2: in a RandomGenerator
    generators: list[Any] = [generator for value in values for generator in (value, getattr(value, "_generator", None))]
    return [generator.state for generator in generators if hasattr(getattr(generator, "state", None), "assign")]


def _list_global_generator() -> list[Any]:
    from tensorflow.python.ops import stateful_random_ops

    generator = stateful_random_ops.global_generator
    return [] if generator is None else [generator.state]


def _list_keras_seed() -> list[Any]:
    try:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
    except ImportError:
        return []  # Keras 2
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


def read_values(model: Any, source: Any) -> Values:
    """The values of `group_variables`. Call this on all ranks: reading a variable in pieces is collective."""
    return {
        group: [(find_name(variable), np.asarray(find_tf_variable(variable).numpy())) for variable in variables]
        for group, variables in group_variables(model, source).items()
    }


def load_values(model: Any, source: Any, saved: Values) -> dict[str, int]:
    """Assign the `saved` values to the variables that exist, by position. Returns the number assigned in each group,
    by which the caller finds out whether saved variables are still missing.

    `Resumption.restore` calls this several times before a restarted call of `fit` trains: when training begins, and
    again when skipped data or a discarded step have created or changed variables. So an earlier call may assign a value
    to a wrong variable of equal shape: the last call finds all variables, or training ends with an error.

    Raises:
        SetupError: the values belong to another model.
    """
    assigned_counts = {}
    for group, variables in group_variables(model, source).items():
        values = saved.get(group, [])
        if len(variables) > len(values):
            raise describe_difference(f"{len(variables)} variables of the group '{group}'", f"{len(values)}")
        if len(variables) < len(values) and not all(map(_is_assignable, variables, (value for _, value in values))):
            # Not all variables have their final positions. Example: in Keras 3, a model's Dropout seeds come last once
            # its weights exist.
            assigned_counts[group] = 0
            continue
        assigned_counts[group] = len(variables)
        for variable, (name, value) in zip(variables, values):
            _assign_value(variable, name, value)
    return assigned_counts


def _is_assignable(variable: Any, value: np.ndarray) -> bool:
    tf_variable = find_tf_variable(variable)
    return tuple(tf_variable.shape) == value.shape and bool(tf_variable.dtype.as_numpy_dtype == value.dtype)


def _assign_value(variable: Any, name: str, value: np.ndarray) -> None:
    tf_variable = find_tf_variable(variable)
    if not _is_assignable(variable, value):
        present = f"'{find_name(variable)}' {tf_variable.dtype.name}{list(tf_variable.shape)}"
        raise describe_difference(present, f"'{name}' {value.dtype.name}{list(value.shape)}")
    tf_variable.assign(value)


def describe_difference(present: str, saved: str) -> errors.SetupError:
    """The error for a state that does not fit the model."""
    return errors.SetupError(
        f"the saved state of this run belongs to another model: the script has {present} where {saved} was saved. Has "
        "the script, or its input, changed since? Remove the folder of the state (MATEX_STATE) to start over."
    )
