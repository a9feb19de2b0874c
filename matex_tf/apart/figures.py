"""Metrics of an epoch in which ranks trained by themselves: combined over all ranks after they have synchronized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.runtime import objects


class Figures:
    """The metrics of the current epoch."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def read_metrics(self, model: Any) -> None:
        """Read the model's metrics, which now include the rows of all ranks."""
        import tensorflow as tf

        self._known = {}
        results = model.get_metrics_result() if hasattr(model, "get_metrics_result") else {}
        for one in () if results else model.metrics:  # Keras 2
            result = one.result()
            results.update(result if isinstance(result, dict) else {one.name: result})
        for name, value in results.items():
            value = tf.convert_to_tensor(value).numpy()
            self._known[name] = float(value) if not value.shape else value

    def tell(self, logs: dict[str, Any], choose: Callable[[list[Any]], Any], order: int = 0) -> None:
        """Put the values of all ranks into `logs`.

        Args:
            choose: combines the ranks' values of a name that is not a metric.
            order: sort key of this rank's values in the list for `choose`.

        Collective, if there are such names. Values of validation are already those of all ranks.
        """
        names = [name for name in logs if not name.startswith("val_")]
        if set(names) == set(self._known):  # Keras prefers the metrics, too
            logs.update(self._known)
            return
        mine = {name: logs[name].numpy() if hasattr(logs[name], "numpy") else logs[name] for name in names}
        everyone = objects.allgather((order, mine), "the metrics of an epoch of ranks that trained by themselves")
        ordered = [one for _, one in sorted(everyone, key=lambda one: one[0])]
        logs.update({name: choose([one[name] for one in ordered]) for name in names})
