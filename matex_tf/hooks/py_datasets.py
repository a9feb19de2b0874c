"""A hook on Keras 3 by which only one rank makes each item of a `PyDataset` or `Sequence`: a batch, computed in Python.

Without the hook every rank would make all items. With it ranks take turns (`input.turns`): one rank makes an item and
sends the other ranks their rows. The hook runs when a call such as `fit` begins, and replaces Keras' dataset of the
items, unless there is an obstacle, a reason against turns.
"""

from __future__ import annotations

import sys
from typing import Any

from matex_tf.input import turns
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps import agreement

HOOKS = KerasTable()


@HOOKS.replace_in(
    "every rank makes all items of a PyDataset",
    "trainers.epoch_iterator:EpochIterator.__init__",
    since="3.6",
    optional=True,
)
def _wrap_source(original: Any) -> Any:
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if not agreement.is_watched():  # ranks do not work together here, for example in another thread
            return
        if hasattr(self.data_adapter, "py_dataset"):
            obstacle = "" if self.steps_per_execution == 1 else "a call of a step takes several (steps_per_execution)"
            if self.steps_per_epoch not in (None, self._num_batches) and _is_read_ahead(self.data_adapter):
                obstacle = "an epoch has a part of them (steps_per_epoch, validation_steps)"
            _take_turns(self.data_adapter, obstacle)
        elif hasattr(self.data_adapter, "generator"):
            turns.explain_generator()

    return __init__


def _take_turns(adapter: Any, obstacle: str) -> None:
    """Let ranks take turns in the dataset for which Keras next asks the adapter."""

    def get_tf_dataset():
        del adapter.get_tf_dataset  # Keras' own method, which is called once, is the adapter's again
        return turns.take_turns(adapter, adapter.get_tf_dataset, obstacle)

    adapter.get_tf_dataset = get_tf_dataset


def _is_read_ahead(adapter: Any) -> bool:
    """Whether the next epoch depends on how many items Keras has made ahead, if an epoch does not use all items.

    Turns make another number of items ahead, so the next epoch would have other items than in Keras. Two cases:
    - The object has an `on_epoch_begin` or `on_epoch_end`, after which it may make other items. Items that Keras has
      made before, for the next epoch, are still the old ones.
    - The object asks for threads or processes (Keras' `enqueuer`). At the end of an epoch Keras keeps the items that
      they have made and the epoch has not used, and begins the order of items again after them.
    """
    base_class, py_dataset = sys.modules[type(adapter).__module__].PyDataset, adapter.py_dataset
    methods = ((getattr(py_dataset, name), getattr(base_class, name)) for name in ("on_epoch_begin", "on_epoch_end"))
    hears_epochs = any(getattr(method, "__func__", None) is not inherited for method, inherited in methods)
    return hears_epochs or adapter.enqueuer is not None
