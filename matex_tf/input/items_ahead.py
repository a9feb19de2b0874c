"""The order of the items of a `PyDataset` in a pass, and items that are made ahead of their steps (`ItemsAhead`)."""

from __future__ import annotations

import collections
import copy
import itertools
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import pool
from typing import Any

_ITEMS_AHEAD = 2
"""The number of items that a rank makes ahead, if the object asks for no workers."""
_worker = threading.local()  # `make`: makes the item of a number in a thread or process of a pool


def _begin(make: Callable[[int], Any]) -> None:
    """Begin a thread or process of a pool: `_make_item` makes its items by `make`."""
    _worker.make = make


def _make_item(number: int) -> Any:
    return _worker.make(number)


class ItemsAhead:
    """Some items of a `PyDataset`, made ahead in the threads or processes that it asks for, or else in one thread.

    numbers: the numbers of the items.
    """

    def __init__(self, py_dataset: Any, numbers: Sequence[int]):
        workers, uses_processes = py_dataset.workers, py_dataset.use_multiprocessing
        has_workers = workers > 1 or (workers > 0 and uses_processes)  # the condition of Keras
        make_pool: Any = multiprocessing.Pool if has_workers and uses_processes else pool.ThreadPool
        self._pool = make_pool(max(1, workers), _begin, (py_dataset.__getitem__,))
        self._numbers, self._results = iter(numbers), collections.deque[Any]()
        limit = py_dataset.max_queue_size if has_workers else _ITEMS_AHEAD
        self._start(limit if limit > 0 else None)

    def _start(self, count: int | None) -> None:
        """Start making the next `count` items; None: all."""
        numbers = list(itertools.islice(self._numbers, count))
        self._results += [self._pool.apply_async(_make_item, (number,)) for number in numbers]
        if count is None or len(numbers) < count:
            self._pool.close()  # its threads or processes end after the last item

    def give_items(self) -> Iterator[Any]:
        """The items, in order. Raises the error of the object. The making ends with this iterator."""
        try:
            while self._results:
                result = self._results.popleft()
                self._start(1)
                yield result.get()
        finally:
            self._pool.terminate()  # does not wait for an item that a thread is making


class KnownItems:
    """Stands in for a `PyDataset`, with items that exist already."""

    def __init__(self, items: Sequence[Any]):
        self._items, self.num_batches = items, len(items)

    def __getitem__(self, number: int) -> Any:
        return self._items[number]


def order_items(adapter: Any) -> list[int]:
    """The numbers of the items of the next pass of a `PyDatasetAdapter`, in Keras' own order, with its random draws."""
    number_adapter = copy.copy(adapter)  # an adapter whose items are numbers
    number_adapter.py_dataset = KnownItems(range(adapter.py_dataset.num_batches))
    number_adapter._standardize_batch = lambda item: item
    return list(number_adapter._finite_generator())
