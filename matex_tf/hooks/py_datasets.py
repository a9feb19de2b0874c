"""Hooks on Keras 3 by which only one rank makes each item of a `PyDataset` or `Sequence`: a batch, computed in Python.

Without the hooks every rank would make all items. With them ranks take turns (`input.turns`): one rank makes an item
and sends the other ranks their rows. The first hook runs when a call such as `fit` begins: it looks for an obstacle, a
reason against turns. The second one makes Keras' dataset of the items, by turns if there is no obstacle.
"""

from __future__ import annotations

import sys
from typing import Any

from matex_tf import tags
from matex_tf.input import turns
from matex_tf.runtime.keras_table import KerasTable
from matex_tf.steps import agreement

HOOKS = KerasTable()
_IF_HOOK_MISSING = "every rank makes all items of a PyDataset"
_ADAPTER = "trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter"
_OBSTACLE = "why ranks take no turns"


@HOOKS.replace_in(_IF_HOOK_MISSING, "trainers.epoch_iterator:EpochIterator.__init__", since="3.6", optional=True)
def _wrap_source(original: Any) -> Any:
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if not agreement.is_watched():  # ranks do not work together here, for example in another thread
            return
        if hasattr(self.data_adapter, "py_dataset"):
            obstacle = "" if self.steps_per_execution == 1 else "a call of a step takes several (steps_per_execution)"
            if self.steps_per_epoch not in (None, self._num_batches) and _is_read_ahead(self.data_adapter):
                obstacle = "an epoch has a part of them (steps_per_epoch, validation_steps)"
            tags.set_tag(self.data_adapter, _OBSTACLE, obstacle)
        elif hasattr(self.data_adapter, "generator"):
            turns.explain_generator()

    return __init__


def _is_read_ahead(adapter: Any) -> bool:
    """Whether the next epoch depends on how many items Keras has made ahead, if an epoch does not use all items.

    Turns make another number of items ahead, so the next epoch would have other items than in Keras. Two cases:
    - The object has an `on_epoch_begin` or `on_epoch_end`, after which it may make other items. Items that Keras has
      made before, for the next epoch, are still the old ones.
    - The object asks for threads or processes (Keras' `enqueuer`). At the end of an epoch Keras keeps the items that
      they have made and the epoch has not used, and begins the order of items again after them.
    """
    base, py_dataset = sys.modules[type(adapter).__module__].PyDataset, adapter.py_dataset
    methods = ((getattr(py_dataset, name), getattr(base, name)) for name in ("on_epoch_begin", "on_epoch_end"))
    hears_epochs = any(getattr(method, "__func__", None) is not inherited for method, inherited in methods)
    return hears_epochs or adapter.enqueuer is not None


@HOOKS.replace_in(_IF_HOOK_MISSING, f"{_ADAPTER}.get_tf_dataset", since="3.6", optional=True)
def _wrap_dataset(original: Any) -> Any:
    def get_tf_dataset(self):
        obstacle = tags.get_tag(self, _OBSTACLE)
        # None: the first hook did not see the adapter.
        if obstacle is None or not agreement.is_watched():
            return original(self)
        return turns.take_turns(self, lambda: original(self), obstacle)

    return get_tf_dataset
