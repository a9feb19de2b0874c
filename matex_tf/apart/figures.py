"""The figures of an epoch in which ranks trained apart: those of all ranks together, once these have met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.runtime import objects


class Figures:
    """Those of the epoch that is under way."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def read_metrics(self, model: Any) -> None:
        """The ranks have met: the model's metrics have counted the rows of all of them."""
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
        """Put the figures of all ranks into `logs`.

        Args:
            choose: makes one of what each rank has of a figure of no metric.
            order: by which those come to `choose`.

        Collective, where there are figures of no metric. Figures of validation are those of all ranks already.
        """
        names = [name for name in logs if not name.startswith("val_")]
        if set(names) == set(self._known):  # as Keras itself prefers the metrics
            logs.update(self._known)
            return
        mine = {name: logs[name].numpy() if hasattr(logs[name], "numpy") else logs[name] for name in names}
        everyone = objects.allgather((order, mine), "the figures of an epoch in which ranks trained apart")
        ordered = [one for _, one in sorted(everyone, key=lambda one: one[0])]
        logs.update({name: choose([one[name] for one in ordered]) for name in names})
