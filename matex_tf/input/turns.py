"""Batches of a `PyDataset`: each item is made by one rank, in turn, which sends the other ranks their rows.

Item k of such an object is a function of k (`items.py`). The rank whose turn it is makes the item ahead of the step, in
the threads or processes that the object asks for; the other ranks do not. Some items are made by all ranks and
compared.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from matex_tf import errors, settings, tags
from matex_tf.input import items, items_ahead, tickets
from matex_tf.input.sent_items import NEXT, Turn
from matex_tf.lazy import tf
from matex_tf.rewrite.sources import find_components
from matex_tf.runtime import notes, objects
from matex_tf.sharding import fingerprint
from matex_tf.steps import batches, failures
from matex_tf.world import membership, world

_SOURCE = "items by turns"
_OP = re.compile(r"^\{\{function_node [^}]*\}\} ")
_MEASURED = 4
"""The number of items that are sent before the ranks choose between sending items and making all of them everywhere."""
_COMPARED = 4
"""The number, from 1, of an item that all ranks make; the next ones are at twice the number, or the first of a pass."""


def take_turns(adapter: Any, make_dataset: Callable[[], Any], obstacle: str = "") -> Any:
    """The dataset of a `PyDataset`'s items for Keras. Collective.

    Args:
        adapter: Keras' `PyDatasetAdapter`.
        make_dataset: makes the dataset from the results of its `_get_iterator`.
        obstacle: the reason why Keras itself prevents turns.
    """
    whole, name = adapter.py_dataset, type(adapter.py_dataset).__name__
    obstacle = obstacle or _find_obstacle(whole)
    if obstacle:
        _explain(name, f"every rank makes all: {obstacle}")
        return make_dataset()
    found = items.compare_items(whole, name)
    source = None if found.why else Source(adapter, name, found.seconds)
    adapter.py_dataset = items_ahead.Own(whole, found.made, items.FIRST)  # Keras learns the shapes of items from these
    try:
        dataset = make_dataset()
    finally:
        adapter.py_dataset = whole
    if source is None:
        notes.print_note(
            f"every rank makes all items of {name}: {found.why}. Ranks take turns at items that depend on nothing but "
            "their numbers, for instance drawn by np.random.default_rng([seed, number])"
        )
    elif why := source.find_obstacle(dataset):
        source.leave()
        _explain(name, f"every rank makes all: {why}")
    else:
        source.begin(dataset)
        _explain(name, "ranks take turns")
    return dataset


def _find_obstacle(whole: Any) -> str:
    me, strategy = world.get_world(), settings.get_settings().strategy
    if me.is_phantom or me.trainers < 2:
        return "one rank trains"
    if settings.get_strategy_name(strategy) in ("async", "local"):
        return "ranks train apart"
    number = whole.num_batches
    return "" if number is not None and number >= len(items.FIRST) else "it has one item, or no end"


def _explain(name: str, text: str) -> None:
    if settings.get_settings().explain and world.get_world().size > 1:
        notes.print_note(f"the items of {name}: {text}")


def explain_generator() -> None:
    _explain("a generator", "every rank makes all, as they have no numbers. Ranks take turns at those of a PyDataset")


class Source:
    """A dataset of items that ranks make in turn.

    name: of its class. seconds: the time to make an item.
    specs: of the flat tensors of an item. are_rows: which of them have rows.
    is_shared: ranks take turns; otherwise each makes all items. is_open: the choice is still to be made.
    turns: the number of items that have been taken.
    """

    def __init__(self, adapter: Any, name: str, seconds: float):
        self._adapter, self.name, self.seconds = adapter, name, seconds
        self.is_shared = self.is_open = True
        self.turns = 0
        self.exchanges: list[float] = []
        self._asked: Any = None
        self._begun: Pass | None = None
        self._make_iterator: Callable[[Any], Any] = iter
        self._lock = threading.Lock()
        self._is_left = False
        adapter._get_iterator = self._generate

    def find_obstacle(self, dataset: Any) -> str:
        specs = tf.nest.flatten(dataset.element_spec, expand_composites=False)
        if not all(isinstance(one, tf.TensorSpec) for one in specs):
            return "they are no dense tensors"
        return "" if any(find_components([one.shape for one in specs])) else "they have no rows"

    def leave(self) -> None:
        """Let Keras continue as without ranks."""
        self._is_left = True

    def begin(self, dataset: Any) -> None:
        self._adapter.enqueuer = None  # Keras would make all items
        self.dataset, self.spec = dataset, dataset.element_spec
        self.specs = tickets.flatten_specs(self.spec)
        self.are_rows = find_components([shape for _, shape in self.specs])
        tags.set_tag(dataset, _SOURCE, self)

    def iterate(self, make_iterator: Callable[[Any], Any]) -> Any:
        """An iterator of the items, all of which this rank makes; steps take the items of the pass
        beneath it in turn.
        """
        self._make_iterator, self._begun = make_iterator, Pass(self)
        begun = self._begun
        iterator = make_iterator(self.dataset)
        begun.whole = weakref.ref(iterator)
        batches.note_shared_batches(iterator, begun)
        return iterator

    def order_items(self) -> list[int]:
        """The numbers of the items of a pass, whose first item is taken."""
        return items_ahead.order_items(self._adapter)

    def make_adapter(self, numbers: Sequence[int], is_ahead: bool) -> Any:
        return items_ahead.make_adapter(self._adapter, numbers, is_ahead)

    def make_item(self, number: int) -> list[Any]:
        """The flat tensors of an item, made by this rank now."""
        return self.start(self.make_adapter([number], is_ahead=True))[1]

    def start(self, adapter: Any) -> tuple[Any, list[Any]]:
        """An iterator of the items of `adapter`, and the flat tensors of its first one."""
        with self._lock:
            self._asked = adapter
            iterator = self._make_iterator(self.dataset)
            return iterator, tickets.take_next(iterator._iterator_resource, self.specs)

    def _generate(self) -> Iterator[Any]:
        """The generator of the dataset for Keras; runs in another thread."""
        if self._is_left:
            yield from type(self._adapter)._get_iterator(self._adapter)
            return
        adapter, self._asked = self._asked, None
        if adapter is None:
            begun, self._begun = self._begun or Pass(self), None
            adapter = begun.give_up()
        try:
            if adapter.num_batches:
                yield from adapter._get_iterator()
        finally:
            items_ahead.stop_adapter(adapter)

    def choose(self) -> None:
        """Choose the faster way. Collective."""
        mine = min(self.exchanges, default=0.0), self.seconds
        everyone = objects.allgather(mine, "choosing how items are made")
        saved = min(making for _, making in everyone) * (1 - 1 / world.get_world().trainers)
        self.is_open, self.is_shared = False, max(sending for sending, _ in everyone) < saved
        if not self.is_shared:
            _explain(self.name, "every rank makes all from now on: that is faster than to send rows")


def find_source(dataset: Any) -> Source | None:
    return tags.get_tag(dataset, _SOURCE)


class Pass:
    """One pass over the items of a source. See `batches.SharedBatches`.

    whole: a reference to the iterator of whole items.
    """

    def __init__(self, source: Source):
        self.source, self._at, self._before = source, 0, source.turns
        self._order: list[int] | None = None
        self._dealt: tuple[int, bool] | None = None
        self._adapter: Any = None
        self._stop: Callable[[], object] = lambda: None
        self._iterator: Any = None
        self._is_given_up = self._is_agreed = False
        self.whole: Callable[[], Any] = lambda: None

    @property
    def order(self) -> list[int]:
        if self._order is None:
            self._order = self.source.order_items()
        return self._order

    def give_up(self) -> Any:
        """The adapter of all remaining items: from now on this rank makes all of them."""
        self._is_given_up = True
        return self.source.make_adapter(self.order[self._at :], is_ahead=False)

    def take(self) -> Any:
        """The next item, a `batches.Batch`. Collective if ranks take turns.

        Raises:
            tf.errors.OutOfRangeError: at the end. tf.errors.OpError: on every rank, if a rank cannot make its item.
        """
        source = self.source
        if self._is_given_up:
            return self._make_whole(self.whole())
        self._agree_on_order()
        if self._at >= len(self.order):
            raise tf.errors.OutOfRangeError(None, None, "the items of a PyDataset have all been taken")
        if source.is_open and source.turns >= _MEASURED:
            source.choose()
        if not source.is_shared:
            self._deal()
            tensors, self._at = self._pull(), self._at + 1
            return batches.WholeBatch(tensors, source.are_rows)
        at = self._at
        batch = membership.attempt_collectives(NEXT, self._take_turn, lambda: self._go_to(at))
        if batch.failed:
            self._go_to(len(self.order))
            code, text = batch.failed
            raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, text)
        return batch

    def _agree_on_order(self) -> None:
        """Take rank 0's order, if ranks have shuffled differently. Collective in the first call."""
        if self._is_agreed:
            return
        self._is_agreed = True
        mine = fingerprint.digest_value(np.array(self.order))
        if len(set(objects.allgather(mine, "comparing the order of items"))) > 1:
            self._order = objects.broadcast(self.order, "sending the order of items")
            notes.print_note(
                f"ranks have put the items of {self.source.name} into different orders, as where one has drawn numbers "
                "of Python's random that others have not. All take that of rank 0"
            )

    def _go_to(self, at: int) -> None:
        self._at, self.source.turns = at, self._before + at

    def _make_whole(self, iterator: Any) -> batches.WholeBatch:
        tensors = tickets.take_next(iterator._iterator_resource, self.source.specs)
        return batches.WholeBatch(tensors, self.source.are_rows)

    def _find_maker(self, at: int) -> int:
        """Turns continue from pass to pass, so that no rank makes more of the last items than others."""
        return (self._before + at) % world.get_world().trainers

    def _is_compared(self, at: int) -> bool:
        number = self._before + at + 1
        return at == 0 or (number >= _COMPARED and number & (number - 1) == 0)

    def _deal(self) -> None:
        """Start making this rank's remaining items ahead."""
        me, dealt = world.get_world(), (world.get_world().size, self.source.is_shared)
        if dealt == self._dealt:
            return

        def is_mine(at: int) -> bool:
            makes = self._find_maker(at) == me.rank or (me.rank < me.trainers and self._is_compared(at))
            return makes or not self.source.is_shared

        numbers = [number for at, number in enumerate(self.order) if at >= self._at and is_mine(at)]
        self._stop()
        self._dealt, self._iterator = dealt, None
        if numbers:
            self._adapter = self.source.make_adapter(numbers, is_ahead=True)
            self._stop = weakref.finalize(self, items_ahead.stop_adapter, self._adapter)

    def _pull(self) -> list[Any]:
        """The flat tensors of this rank's next item."""
        if self._iterator is None:
            self._iterator, tensors = self.source.start(self._adapter)
            return tensors
        return tickets.take_next(self._iterator._iterator_resource, self.source.specs)

    def _take_turn(self) -> Turn:
        self._deal()
        me, at = world.get_world(), self._at
        maker, number, is_compared = self._find_maker(at), self.order[at], self._is_compared(at)
        made, failed, shapes, digest = None, None, None, None
        if me.rank == maker or (is_compared and me.rank < me.trainers):
            try:
                made = self._pull()
                shapes = [tuple(one.shape) for one in made]
                digest = batches.digest_tensors(made) if is_compared else None
            except tf.errors.OpError as error:
                failed = error.error_code, self._tell_failure(number, error)
        mine = at, number, shapes, digest, failed
        if is_compared:
            everyone = objects.allgather(mine, f"comparing {NEXT}")
            self._compare(everyone[: me.trainers])
            told = next((one for one in everyone if one[-1]), everyone[maker])
        else:
            told = _send_to_all(mine if me.rank == maker else None, maker)
        if told[:2] != mine[:2]:
            raise errors.MismatchError(
                f"ranks take other items of {self.source.name}: rank {maker} item {told[1]} as number {told[0]} of an "
                f"epoch, rank {me.rank} ({me.host}) item {number} as number {at}"
            )
        self._go_to(at + 1)
        return Turn(self.source, number, maker, made if me.rank == maker else None, told[2], told[-1])

    def _tell_failure(self, number: int, error: Any) -> str:
        me = world.get_world()
        text = _OP.sub("", error.message)
        return f"rank {me.rank} ({me.host}) cannot make item {number} of {self.source.name}: {text}"

    def _compare(self, everyone: Sequence[Any]) -> None:
        other = next((rank for rank, one in enumerate(everyone) if one[3] != everyone[0][3]), 0)
        if other and not any(one[-1] for one in everyone):
            notes.print_note(
                f"ranks 0 and {other} made different items of the same number of {self.source.name}, at whose items "
                "ranks take turns: they depend on what else was made. The results are not exactly those of the script "
                "alone"
            )


def _send_to_all(value: Any, root: int) -> Any:
    with objects.start_exchange(NEXT, f"broadcast from {root}"):
        return world.get_communicator("control").bcast(value, root=root)


def take_element(shared: Pass) -> Any:
    """The next item, whole, for eager code. Collective if ranks take turns.

    Raises:
        tf.errors.OutOfRangeError: at the end.
    """
    try:
        batch = shared.take()
    except tf.errors.OutOfRangeError:
        raise
    except tf.errors.OpError:  # possibly on this rank alone
        with failures.fail_together(NEXT):
            raise
    return tickets.pack(shared.source.spec, batch.take_whole())
