"""Items of a `PyDataset` of Keras, whose `__getitem__` makes a batch by its number.

`order_items` finds the order of all items in a pass. `ItemsAhead` makes the items that a rank needs before their steps.
"""

from __future__ import annotations

import collections
import copy
import itertools
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
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


class ItemsAhead(Iterator[Any]):
    """Some items of a `PyDataset`, made ahead in the threads or processes that it asks for, or else in one thread.

    numbers: the numbers of the items.
    convert: converts an item in a thread of this process, also ahead.
    stop: ends the making.

    _receive: applied to a result of the pool in this process: `convert`, except after threads, which have converted.
    """

    def __init__(self, py_dataset: Any, numbers: Sequence[int], convert: Callable[[Any], Any]):
        workers, uses_processes = py_dataset.workers, py_dataset.use_multiprocessing
        has_workers = workers > 1 or (workers > 0 and uses_processes)  # the condition of Keras
        self._pool: Any
        self._receive: Callable[[Any], Any]
        if has_workers and uses_processes:
            self._pool, self._receive = multiprocessing.Pool(workers, _begin, (py_dataset.__getitem__,)), convert
        else:
            make = lambda number: convert(py_dataset[number])  # noqa: E731
            self._pool, self._receive = pool.ThreadPool(max(1, workers), _begin, (make,)), lambda item: item
        self._numbers, self._results = iter(numbers), collections.deque[futures.Future[Any]]()
        # `terminate` does not wait for an item that a thread is making, so it may run while objects are finalized.
        self.stop = self._pool.terminate
        limit = py_dataset.max_queue_size if has_workers else _ITEMS_AHEAD
        self._start(limit if limit > 0 else None)

    def _start(self, count: int | None) -> None:
        """Start making the next `count` items; None: all."""
        numbers = list(itertools.islice(self._numbers, count))
        self._results += map(self._start_item, numbers)
        if count is None or len(numbers) < count:
            self._pool.close()  # its threads or processes end after the last item

    def _start_item(self, number: int) -> futures.Future[Any]:
        """Start making an item in the pool. Returns its future, which has the converted item, or the error."""
        result, receive = futures.Future[Any](), self._receive

        def set_result(item: Any) -> None:
            try:
                result.set_result(receive(item))
            except Exception as error:
                result.set_exception(error)

        self._pool.apply_async(_make_item, (number,), callback=set_result, error_callback=result.set_exception)
        return result

    def __next__(self) -> Any:
        """The next item, converted. Raises the error of the object or of `convert`, if there is no such item."""
        if not self._results:
            raise StopIteration
        result = self._results.popleft()
        self._start(1)
        return result.result()


class _Numbers:
    """A `PyDataset` whose items are their own numbers."""

    def __init__(self, count: int):
        self.num_batches = count

    def __getitem__(self, number: int) -> int:
        return number


def order_items(adapter: Any) -> list[int]:
    """The numbers of the items of the next pass of a `PyDatasetAdapter`, in Keras' own order, with its random draws."""
    copied = copy.copy(adapter)  # an adapter whose items are numbers
    copied.py_dataset = _Numbers(adapter.py_dataset.num_batches)
    copied._standardize_batch = lambda item: item
    return list(copied._finite_generator())
