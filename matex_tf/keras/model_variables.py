"""The variables of a Keras model that ranks compare."""

from __future__ import annotations

from typing import Any

from matex_tf.gradients import reduction
from matex_tf.metrics import metrics


def are_made(model: Any) -> bool:
    """Whether the model and its layers have made all their variables."""
    return bool(getattr(model, "built", False)) and all(getattr(layer, "built", True) for layer in model.layers)


def list_weights(model: Any) -> list[Any]:
    """The model's weights that are made, without the variables of metrics that Keras 2 counts among them."""
    counted = _list_metrics_ids(model)
    return [weight for weight in _list_made(model) if id(reduction.find_tf_variable(weight)) not in counted]


def list_counted(model: Any) -> list[Any]:
    """The variables of metrics that Keras 2 counts among the model's weights."""
    counted = _list_metrics_ids(model)
    found = map(reduction.find_tf_variable, _list_made(model))
    return [variable for variable in found if id(variable) in counted]


def list_variables(model: Any) -> list[Any]:
    """The model's weights and the variables of its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    owned = getattr(optimizer, "variables", [])
    return [*list_weights(model), *(owned() if callable(owned) else owned)]


def _list_metrics_ids(model: Any) -> set[int]:
    return {id(reduction.find_tf_variable(variable)) for variable in metrics.list_variables(model)}


def _list_made(layer: Any) -> list[Any]:
    try:
        return list(layer.weights)
    except ValueError:  # Keras 2: of a model that is not built yet
        return [weight for inner in layer.layers for weight in _list_made(inner)]
