"""Batches of a `PyDataset`, Keras' class of data whose item k, a batch, is `dataset[k]`. Each item is made by one rank,
in turn, which sends the other ranks their rows.

Example with 2 ranks: rank 0 makes items 0, 2, 4, ... and sends rank 1 the second half of the rows of each; rank 1 makes
items 1, 3, 5, ... A rank makes its items ahead of the step, in the threads or processes that the object asks for.

This is correct only if item k depends on nothing but k. So `items` checks the first items, and all ranks make and
compare some later ones. After a few items the ranks choose the faster way: turns, or all items on every rank.

The path of an item: a hook on Keras (`hooks.py_datasets`) calls `take_turns`, which gives the dataset of the items a
`Source`. When Keras iterates over this dataset, the `Source` creates a `Pass` (`Source.iterate`). A step takes the next
item by `Pass.take`, and code outside shared steps by `take_element`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors, settings, tags
from matex_tf.input import items, items_ahead, tickets
from matex_tf.input.sent_items import NEXT, SentItem
from matex_tf.lazy import tf
from matex_tf.rewrite.sources import find_components
from matex_tf.runtime import notes, objects
from matex_tf.sharding import fingerprint
from matex_tf.steps import batches, failures
from matex_tf.world import membership, world

_SOURCE = "items by turns"
_MEASURED_ITEMS = 4
"""The number of items that are sent before the ranks choose between sending items and making all of them everywhere."""
_FIRST_COMPARED = 4
"""All ranks make and compare the first item of each pass, and items 4, 8, 16, ..., counted from 1 over all passes."""


def take_turns(adapter: Any, make_dataset: Callable[[], Any], obstacle: str = "") -> Any:
    """The dataset of a `PyDataset`'s items for Keras; ranks take turns at the items if they can. Collective.

    Every rank makes all items, as Keras does without ranks, if one of three checks fails:
        1. before any item is made: there is an `obstacle`, or `_find_obstacle` finds one;
        2. on the first items: an item depends on more than its number (`comparison.why`);
        3. on the dataset: its elements are no dense tensors with rows that ranks could send (`Source.find_obstacle`).

    Args:
        adapter: Keras' `PyDatasetAdapter`.
        make_dataset: Keras' method that makes the dataset from the items that `adapter._get_iterator` yields.
        obstacle: the reason why Keras itself prevents turns; "" if there is none.
    """
    py_dataset, name = adapter.py_dataset, type(adapter.py_dataset).__name__
    obstacle = obstacle or _find_obstacle(py_dataset)
    if obstacle:
        _explain(name, f"every rank makes all: {obstacle}")
        return make_dataset()
    comparison = items.compare_items(py_dataset, name)
    source = None if comparison.why else Source(adapter, name, comparison.seconds)
    adapter.py_dataset = items_ahead.KnownItems(comparison.items)  # Keras learns the shapes from them
    try:
        dataset = make_dataset()
    finally:
        adapter.py_dataset = py_dataset
    if source is None:
        notes.print_note(
            f"every rank makes all items of {name}: {comparison.why}. Ranks take turns at items that depend on nothing "
            "but their numbers, for instance drawn by np.random.default_rng([seed, number])"
        )
        return dataset
    adapter.enqueuer = None  # with it, Keras would make all items, too
    if why := source.find_obstacle(dataset):
        _explain(name, f"every rank makes all: {why}")
    else:
        source.start_sharing(dataset)
        _explain(name, "ranks take turns")
    return dataset


def _find_obstacle(py_dataset: Any) -> str:
    """The reason why ranks take no turns at the items of an object; "" if there is none."""
    me, strategy = world.get_world(), settings.get_settings().strategy
    if me.is_phantom or me.trainers < 2:  # phantom: the other ranks do not exist (`matex plan`)
        return "one rank trains"
    if settings.get_strategy_name(strategy) in ("async", "local"):
        return "ranks train apart"
    count = py_dataset.num_batches
    return "" if count is not None and count >= len(items.FIRST) else "it has one item, or no end"


def _explain(name: str, text: str) -> None:
    if settings.get_settings().explain and world.get_world().size > 1:
        notes.print_note(f"the items of {name}: {text}")


def explain_generator() -> None:
    """Print the line of `--explain` on a generator that Keras trains on."""
    _explain("a generator", "every rank makes all, as they have no numbers. Ranks take turns at those of a PyDataset")


class Source:
    """A dataset of items that ranks make in turn, or all of which the generator of each rank makes, by two flags:

    1. `is_open` and `is_shared`: ranks take turns and measure the exchanges, until they choose the faster way.
    2. `is_shared` alone, after `choose`: ranks take turns, since turns are faster.
    3. Neither, after `choose`: each rank makes all items, since that is faster.

    Without `start_sharing`, no iterator has a `Pass`, so each rank makes all items as well.

    name: the name of the class of the `PyDataset`.
    making_seconds: the time to make an item.
    spec, specs: the element spec of the dataset, and the dtypes and shapes of an item's flat tensors.
    are_rows: which of these tensors have rows.
    taken_count: the number of items that have been taken by `Pass.take` in all passes.
    exchange_seconds: the times of the exchanges of items, while `is_open`.

    next_pass: a weak reference to the pass whose items the next generator makes: the pass of the newest iterator, or
        the pass whose turns end.
    """

    def __init__(self, adapter: Any, name: str, making_seconds: float):
        self._adapter, self.name, self.making_seconds = adapter, name, making_seconds
        self.is_shared = self.is_open = True
        self.taken_count = 0
        self.exchange_seconds: list[float] = []
        self.next_pass: Callable[[], Pass | None] = lambda: None
        adapter._get_iterator = self._generate

    def find_obstacle(self, dataset: Any) -> str:
        """The reason why ranks cannot share items with this element spec; "" if there is none."""
        specs = tf.nest.flatten(dataset.element_spec, expand_composites=False)
        if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
            return "they are no dense tensors"
        return "" if any(find_components([spec.shape for spec in specs])) else "they have no rows"

    def start_sharing(self, dataset: Any) -> None:
        """Let iterators of the dataset give the items by turns."""
        self.dataset, self.spec = dataset, dataset.element_spec
        self.specs = tickets.flatten_specs(self.spec)
        self.are_rows = find_components([shape for _, shape in self.specs])
        tags.set_tag(dataset, _SOURCE, self)

    def iterate(self, make_iterator: Callable[[Any], Any]) -> Any:
        """An iterator of the dataset, with a new `Pass`. Steps take items from the pass, by turns.

        Code that takes elements of the iterator itself starts its generator (`_generate`), which makes all items here.
        """
        new_pass = Pass(self)
        self.next_pass = weakref.ref(new_pass)  # weak: a dropped pass makes no more items
        self._make_iterator = make_iterator
        iterator = make_iterator(self.dataset)
        new_pass.whole_iterator = weakref.ref(iterator)
        batches.note_shared_batches(iterator, new_pass)
        return iterator

    def order_items(self) -> list[int]:
        """The numbers of the items of a pass, in Keras' order. Called when the first item of the pass is taken."""
        return items_ahead.order_items(self._adapter)

    def make_ahead(self, numbers: Sequence[int]) -> Any:
        """An iterator of items, which are made and converted to tensors ahead, until it is dropped."""
        ahead_items = items_ahead.ItemsAhead(self._adapter.py_dataset, numbers)  # begins now, not with the generator
        dataset = tf.data.Dataset.from_generator(lambda: self._give_items(ahead_items), output_signature=self.spec)
        options = tf.data.Options()
        options.experimental_warm_start = True  # the generator begins now: when it is dropped, it ends the making
        options.autotune.enabled = False  # the tuning thread may sleep for a minute after the end
        return self._make_iterator(dataset.prefetch(1).with_options(options))

    def take_from(self, iterator: Any) -> list[Any]:
        """The flat tensors of the next item. If the object fails: the tf.errors.OpError of a generator of Keras."""
        return tickets.take_next(iterator._iterator_resource, self.specs)

    def _give_items(self, ahead_items: items_ahead.ItemsAhead) -> Iterator[Any]:
        return map(self._adapter._standardize_batch, ahead_items.give_items())

    def _generate(self) -> Iterator[Any]:
        """The generator of Keras' dataset. TensorFlow runs it in a thread when code takes elements of an iterator.

        Steps may have taken items of the iterator's pass by then. So the generator asks the pass for the remaining
        items, and the pass ends its turns.
        """
        whole_pass = self.next_pass() or Pass(self)  # a new pass if `iterate` was not called, as in other threads
        self.next_pass = lambda: None
        return self._give_items(items_ahead.ItemsAhead(self._adapter.py_dataset, whole_pass.give_up_turns()))

    def choose(self) -> None:
        """Choose the faster way: turns, or all items on every rank. Collective."""
        own_seconds = min(self.exchange_seconds, default=0.0), self.making_seconds
        sending_seconds, making_seconds = zip(*objects.allgather(own_seconds, "choosing how items are made"))
        # Turns spare a rank all items but 1 / N.
        saved_seconds = min(making_seconds) * (1 - 1 / world.get_world().trainers)
        self.is_open = False
        self.is_shared = max(sending_seconds) < saved_seconds  # even where sending is slowest and making fastest
        if not self.is_shared:
            _explain(self.name, "every rank makes all from now on: that is faster than to send rows")


def find_source(dataset: Any) -> Source | None:
    """The source of a dataset of items by turns; None for any other dataset."""
    return tags.get_tag(dataset, _SOURCE)


class _Report(NamedTuple):
    """A rank's report of the item that it takes next.

    position: how many items of the pass come before it. number: the index of the item in the object.
    shapes: of its tensors, if this rank has made it. digest: of these tensors, if the item is compared.
    failure: the code and the text of the error, if the item could not be made.
    """

    position: int
    number: int
    shapes: Any
    digest: int | None
    failure: tuple[int, str] | None


class Pass:
    """One pass over the items of a source, from which steps take batches: a `batches.SharedBatches`.

    A position is the place of an item in this pass, from 0; the number of an item is its index in the `PyDataset`.

    whole_iterator: a weak reference to the iterator of all items, which `Source.iterate` has created with this pass.

    _position: of the next item, so also the number of items taken in this pass. _taken_before: the number of items
        taken in all earlier passes.
    _order: the numbers of the items, in the order of this pass; None before its first item.
    _is_order_agreed: the ranks have compared their orders.
    _made: the iterator of the items that this rank makes ahead.
    _prepared_for: the number of ranks for which `_made` was created.
    _is_whole: the generator of the iterator makes all remaining items on this rank.
    """

    def __init__(self, source: Source):
        self.source, self._position, self._taken_before = source, 0, source.taken_count
        self._order: list[int] | None = None
        self._prepared_for = 0
        self._made: Any = None
        self._is_whole = self._is_order_agreed = False
        self.whole_iterator: Callable[[], Any] = lambda: None

    @property
    def order(self) -> list[int]:
        """The numbers of the items, in the order of this pass."""
        if self._order is None:
            self._order = self.source.order_items()
        return self._order

    def give_up_turns(self) -> list[int]:
        """The numbers of all remaining items: from now on the generator makes all of them."""
        self._is_whole, self._made = True, None
        return self.order[self._position :]

    def take(self) -> Any:
        """The next item, a `batches.Batch`. Collective if ranks take turns.

        There are two ways:
            1. Turns: one rank makes the item and sends the others their rows.
            2. The generator makes all items of this pass (`_is_whole`), because the ranks have chosen so, or because
               other code takes elements, too: the item comes from the iterator itself.

        Raises:
            tf.errors.OutOfRangeError: at the end. tf.errors.OpError: a rank cannot make its item; by turns on every
                rank, otherwise on that rank.
        """
        source = self.source
        if not self._is_whole:
            self._agree_on_order()
            if self._position >= len(self.order):
                raise tf.errors.OutOfRangeError(None, None, "the items of a PyDataset have all been taken")
            if source.is_open and source.taken_count >= _MEASURED_ITEMS:
                source.choose()
            if not source.is_shared:
                self._is_whole, source.next_pass = True, weakref.ref(self)
        if self._is_whole:
            return batches.WholeBatch(source.take_from(self.whole_iterator()), source.are_rows)
        position = self._position  # if a rank is lost meanwhile, the turn is repeated from here
        item = membership.attempt_collectives(NEXT, self._take_turn, undo=lambda: self._move_to(position))
        if item.failure:
            self._move_to(len(self.order))
            code, text = item.failure
            raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, text)
        return item

    def _agree_on_order(self) -> None:
        """Take rank 0's order, if ranks have shuffled differently. Collective in the first call."""
        if self._is_order_agreed:
            return
        self._is_order_agreed = True
        own_digest = fingerprint.digest_value(np.array(self.order))
        if len(set(objects.allgather(own_digest, "comparing the order of items"))) > 1:
            self._order = objects.broadcast(self.order, "sending the order of items")
            notes.print_note(
                f"ranks have put the items of {self.source.name} into different orders, as where one has drawn numbers "
                "of Python's random that others have not. All take that of rank 0"
            )

    def _move_to(self, position: int) -> None:
        """Continue with the item at `position`: the next one, an earlier one to repeat a turn, or the end."""
        self._position, self.source.taken_count = position, self._taken_before + position

    def _find_maker(self, position: int) -> int:
        """The rank whose turn an item is. Turns continue from pass to pass, so that ranks make equally many items."""
        return (self._taken_before + position) % world.get_world().trainers

    def _is_compared(self, position: int) -> bool:
        """Whether all ranks make an item, and compare it. See `_FIRST_COMPARED`."""
        number = self._taken_before + position + 1  # over all passes, from 1
        is_power_of_two = number & (number - 1) == 0
        return position == 0 or (number >= _FIRST_COMPARED and is_power_of_two)

    def _prepare_items(self) -> None:
        """Start to make ahead, of the remaining items, the ones that this rank makes.

        Called for each item. It starts at the first one, and again with another list of items after ranks were lost:
        turns go to other ranks.
        """
        size = world.get_world().size
        if size == self._prepared_for:
            return
        numbers = [self.order[position] for position in range(self._position, len(self.order)) if self._makes(position)]
        self._prepared_for, self._made = size, self.source.make_ahead(numbers) if numbers else None

    def _makes(self, position: int) -> bool:
        """Whether this rank makes an item, in its turn or for a comparison.

        The first `trainers` ranks train. Ranks after them only keep weights (MATEX_STRATEGY=servers:S:only), and make
        no items.
        """
        me = world.get_world()
        return self._find_maker(position) == me.rank or (me.rank < me.trainers and self._is_compared(position))

    def _take_turn(self) -> SentItem:
        """The next item, which one rank has made. Collective."""
        self._prepare_items()
        me, position = world.get_world(), self._position
        maker, number, is_compared = self._find_maker(position), self.order[position], self._is_compared(position)
        tensors = shapes = digest = failure = None
        if self._makes(position):
            try:
                tensors = self.source.take_from(self._made)
                shapes = [tuple(tensor.shape) for tensor in tensors]
                digest = batches.digest_tensors(tensors) if is_compared else None
            except tf.errors.OpError as error:
                place = f"rank {me.rank} ({me.host}) cannot make item {number} of {self.source.name}"
                failure = error.error_code, f"{place}: {error.message}"
        own_report = position, number, shapes, digest, failure  # a plain tuple to send
        if is_compared:
            reports = [_Report(*report) for report in objects.allgather(own_report, NEXT)]
            self._compare(reports[: me.trainers])
            # A failure of any rank counts for all ranks, so that all raise it.
            report = next((report for report in reports if report.failure), reports[maker])
        else:
            with objects.start_exchange(NEXT, f"sending from {maker}"):
                report = _Report(*world.get_communicator("control").bcast(own_report, root=maker))
        if (report.position, report.number) != (position, number):
            raise errors.MismatchError(
                f"ranks take other items of {self.source.name}: rank {maker} item {report.number} as number "
                f"{report.position} of an epoch, rank {me.rank} ({me.host}) item {number} as number {position}"
            )
        self._move_to(position + 1)
        own_tensors = tensors if me.rank == maker else None
        return SentItem(self.source, number, maker, own_tensors, report.shapes, report.failure)

    def _compare(self, reports: Sequence[_Report]) -> None:
        """Print a note if ranks have made different items of the same number."""
        digests = [report.digest for report in reports]
        different_rank = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), 0)
        if different_rank and not any(report.failure for report in reports):
            notes.print_note(
                f"ranks 0 and {different_rank} made different items of the same number of {self.source.name}, at whose "
                "items ranks take turns: they depend on what else was made. The results are not exactly those of the "
                "script alone"
            )


def take_element(shared: Pass) -> Any:
    """The next item with all rows, for eager code outside shared steps. Collective if ranks take turns.

    Raises:
        tf.errors.OutOfRangeError: at the end. tf.errors.OpError: on every rank, if a rank cannot make the item.
    """
    try:
        batch = shared.take()
    except tf.errors.OutOfRangeError:
        raise
    except tf.errors.OpError:
        # If each rank makes all items, perhaps only this rank has failed. The other ranks then go on and would wait for
        # it in their next collective. So announce the error, which is then raised on all ranks.
        with failures.fail_together(NEXT):
            raise
    return tickets.pack(shared.source.spec, batch.take_whole())
