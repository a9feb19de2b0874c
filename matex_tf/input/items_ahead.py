"""Items of a `PyDataset` that Keras' enqueuers make ahead, in the threads or processes that the object asks for.

`turns` gives each rank an adapter of Keras for the items that this rank makes. Keras' `stop` waits for the enqueuer's
thread, but here an enqueuer must also stop while objects are finalized. So this module replaces parts of the enqueuer,
and its thread ends by itself after `stop_adapter`.
"""

from __future__ import annotations

import copy
import queue
import sys
import weakref
from collections.abc import Sequence
from typing import Any

_ITEMS_AHEAD = 2
"""The number of items that a rank makes ahead, if the object does not say."""
_CHECK_SECONDS = 0.5
"""Interval at which a thread that waits for room in its queue checks whether it should stop."""


class Selection:
    """A `PyDataset` with some items of another one.

    options: the `PyDataset` whose workers and queue sizes are used.
    items: gives items by number.
    numbers: the numbers of the selected items.
    """

    def __init__(self, options: Any, items: Any, numbers: Sequence[int]):
        self.workers, self.use_multiprocessing = options.workers, options.use_multiprocessing
        self.max_queue_size, self.num_batches = options.max_queue_size, len(numbers)
        self._items, self._numbers = items, numbers

    def __getitem__(self, index: int) -> Any:
        item = self._items[self._numbers[index]]
        if item is None:  # an enqueuer of Keras would skip None
            raise ValueError(f"item {self._numbers[index]} of a PyDataset is None")
        return item

    def on_epoch_begin(self) -> None:
        """Nothing: Keras calls the method of the whole object once in each epoch, and not again for its parts."""

    def on_epoch_end(self) -> None:
        """See `on_epoch_begin`."""


class _Queue(queue.Queue[Any]):
    """The queue of Keras' `enqueuer`.

    If nobody takes items any more, a thread that waits for room would wait forever. So it checks every half second
    whether the enqueuer still runs; if not, it drops the item. The reference is weak: the enqueuer owns its queue, and
    a cycle would be freed only by the garbage collection.
    """

    def __init__(self, enqueuer: Any):
        super().__init__(enqueuer.future_queue.maxsize)
        self._reference = weakref.ref(enqueuer)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Keras always waits for room, so `block` and `timeout` are not used."""
        while True:
            try:
                return super().put(item, timeout=_CHECK_SECONDS)
            except queue.Full:
                enqueuer = self._reference()
                if enqueuer is None or not enqueuer.running:
                    return None


def stop_adapter(adapter: Any) -> None:
    """Stop making items ahead. It does not wait, so it may run in any thread, and while objects are finalized."""
    if adapter.enqueuer is not None:
        adapter.enqueuer.running = False
        # In this global table, by the number of the enqueuer, Keras' workers find the items. An entry would keep them
        # in memory, so `stop` of Keras sets it to None, too.
        sys.modules[type(adapter).__module__]._SHARED_SEQUENCES[adapter.enqueuer.uid] = None


def make_adapter(original: Any, numbers: Sequence[int], is_ahead: bool) -> Any:
    """Keras' adapter of the items with these numbers, with the options of an adapter of all items.

    is_ahead: start making the items now.
    """
    kind, whole = type(original), original.py_dataset
    module = sys.modules[kind.__module__]
    adapter = kind(Selection(whole, whole, numbers), class_weight=original.class_weight, shuffle=False)
    if is_ahead and adapter.enqueuer is None:
        adapter.enqueuer = module.OrderedEnqueuer(adapter.py_dataset, workers=1, max_queue_size=_ITEMS_AHEAD)
    if adapter.enqueuer is not None:
        adapter.enqueuer.future_queue = _Queue(adapter.enqueuer)
        reference = weakref.ref(adapter.enqueuer)  # weak as in `_Queue`
        adapter.enqueuer._send_py_dataset = lambda: _send(reference(), module)
    if is_ahead:
        adapter.on_epoch_begin()  # starts the enqueuer
    return adapter


class _Numbers:
    """A `PyDataset` whose items are their own numbers."""

    def __init__(self, count: int):
        self.num_batches = count

    def __getitem__(self, number: int) -> int:
        return number


def order_items(adapter: Any) -> list[int]:
    """The numbers of the items of the adapter's next pass, in Keras' own order, with its random draws."""
    of_numbers = copy.copy(adapter)
    of_numbers.py_dataset, of_numbers._standardize_batch = _Numbers(adapter.py_dataset.num_batches), lambda item: item
    return list(of_numbers._finite_generator())


def _send(enqueuer: Any, module: Any) -> None:
    """The first action of an enqueuer's thread: put its items into the table where the workers find them.

    `stop_adapter` takes no lock, so it may have removed the items before this function puts them there. Then the
    enqueuer does not run any more, and this function removes them itself.
    """
    module._SHARED_SEQUENCES[enqueuer.uid] = enqueuer.py_dataset
    if not enqueuer.running:
        module._SHARED_SEQUENCES[enqueuer.uid] = None
