"""Items of a `PyDataset`: their order in a pass, and a rank's items, made ahead."""

from __future__ import annotations

import collections
import copy
import itertools
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import pool
from typing import Any

_ITEMS_AHEAD = 2
"""The number of items that a rank makes ahead, if the object asks for no workers."""
_worker = threading.local()  # `py_dataset`: the object whose items a thread or process of a pool makes


def _begin(py_dataset: Any) -> None:
    _worker.py_dataset = py_dataset


def _make_item(number: int) -> Any:
    return _worker.py_dataset[number]


class ItemsAhead(Iterator[Any]):
    """Some items of a `PyDataset`, made ahead in the threads or processes that it asks for, or else in one thread.

    numbers: the numbers of the items.
    """

    def __init__(self, py_dataset: Any, numbers: Sequence[int]):
        workers, uses_processes = py_dataset.workers, py_dataset.use_multiprocessing
        has_workers = workers > 1 or (workers > 0 and uses_processes)  # the condition of Keras
        make_pool: Any = multiprocessing.Pool if has_workers and uses_processes else pool.ThreadPool
        self._pool = make_pool(max(1, workers), _begin, (py_dataset,))
        self._numbers, self._results = iter(numbers), collections.deque[Any]()
        # It does not wait for an item that a thread is making, so it may run while objects are finalized.
        self.stop = self._pool.terminate
        limit = py_dataset.max_queue_size if has_workers else _ITEMS_AHEAD
        self._start(limit if limit > 0 else None)

    def _start(self, count: int | None) -> None:
        """Start making the next `count` items; None: all."""
        numbers = list(itertools.islice(self._numbers, count))
        self._results += [self._pool.apply_async(_make_item, (number,)) for number in numbers]
        if count is None or len(numbers) < count:
            self._pool.close()  # its threads or processes end after the last item

    def __next__(self) -> Any:
        """The next item. Raises the error of the object, if it cannot make the item."""
        if not self._results:
            raise StopIteration
        result = self._results.popleft()
        self._start(1)
        return result.get()


class _Numbers:
    """A `PyDataset` whose items are their own numbers."""

    def __init__(self, count: int):
        self.num_batches = count

    def __getitem__(self, number: int) -> int:
        return number


def order_items(adapter: Any) -> list[int]:
    """The numbers of the items of the next pass of a `PyDatasetAdapter`, in Keras' own order, with its random draws."""
    of_numbers = copy.copy(adapter)
    of_numbers.py_dataset, of_numbers._standardize_batch = _Numbers(adapter.py_dataset.num_batches), lambda item: item
    return list(of_numbers._finite_generator())
