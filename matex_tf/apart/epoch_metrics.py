"""Metrics of an epoch in which ranks trained by themselves (strategies `async` and `local`), combined for callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.runtime import objects


class EpochMetrics:
    """The metrics of the current epoch, by name, which replace this rank's own in the logs."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}

    def read_metrics(self, model: Any) -> None:
        """Read the model's metrics. Call this after ranks have synchronized, when metrics include the rows of all."""
        import tensorflow as tf

        self._metrics = {}
        results = model.get_metrics_result() if hasattr(model, "get_metrics_result") else {}
        for metric in () if results else model.metrics:  # Keras 2
            result = metric.result()
            results.update(result if isinstance(result, dict) else {metric.name: result})
        for name, value in results.items():
            value = tf.convert_to_tensor(value).numpy()
            self._metrics[name] = float(value) if not value.shape else value

    def update_logs(self, logs: dict[str, Any], combine: Callable[[list[Any]], Any], order: int = 0) -> None:
        """Replace this rank's values in `logs` by values of all ranks. Collective, unless `logs` has just the metrics.

        Values of validation (`val_*`) stay: all ranks have computed them together.

        combine: computes a value that is not a metric from the values of all ranks.
        order: sort key of this rank's values in the list for `combine`.
        """
        names = [name for name in logs if not name.startswith("val_")]
        if set(names) == set(self._metrics):  # as in Keras, metrics are logged in place of the results of the last step
            logs.update(self._metrics)
            return
        own_logs = {name: logs[name].numpy() if hasattr(logs[name], "numpy") else logs[name] for name in names}
        orders_and_logs = objects.allgather(
            (order, own_logs), "the metrics of an epoch of ranks that trained by themselves"
        )
        ordered = [rank_logs for _, rank_logs in sorted(orders_and_logs, key=lambda order_and_logs: order_and_logs[0])]
        logs.update({name: combine([rank_logs[name] for rank_logs in ordered]) for name in names})
