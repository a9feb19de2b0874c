"""Datasets of a Keras `PyDataset`, whose item k, a batch, is `dataset[k]`. Ranks take turns to make the items.

Example with 2 ranks: rank 0 makes items 0, 2, 4, ... and sends rank 1 the second half of the rows of each; rank 1 makes
items 1, 3, 5, ... A rank makes its items ahead of the step, in the threads or processes that the object asks for.

This is correct only if item k depends on nothing but k. So `items` checks the first items, and all ranks make and
compare some later ones. After a few items the ranks choose the faster way: turns, or all items on every rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matex_tf import settings, tags
from matex_tf.input import items, items_ahead, tickets
from matex_tf.input.choices import Choice
from matex_tf.input.passes import Pass
from matex_tf.lazy import tf
from matex_tf.rewrite.sources import find_components
from matex_tf.runtime import notes
from matex_tf.steps import batches
from matex_tf.world import world

_SOURCE = "items by turns"


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
    """A dataset of items that ranks make in turn, until they choose the faster way.

    Without `start_sharing`, no iterator has a `Pass`, so each rank makes all items.

    choice: whether ranks take turns, or the generator of each rank makes all items. making_seconds: of an item.
    name: the name of the class of the `PyDataset`.
    spec, specs: the element spec of the dataset, and the dtypes and shapes of an item's flat tensors.
    are_rows: which of these tensors have rows.
    taken_count: the number of items that have been taken by `Pass.take` in all passes.

    next_pass: a weak reference to the pass whose items the next generator makes: the pass of the newest iterator, or
        the pass whose turns end.
    """

    def __init__(self, adapter: Any, name: str, making_seconds: float):
        self._adapter, self.name = adapter, name
        self.choice = Choice()
        self.choice.seconds[False] = making_seconds
        self.taken_count = 0
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
        self.choice.choose("choosing how items are made")
        if not self.choice.is_shared:
            _explain(self.name, "every rank makes all from now on: that is faster than to send rows")


def find_source(dataset: Any) -> Source | None:
    """The source of a dataset of items by turns; None for any other dataset."""
    return tags.get_tag(dataset, _SOURCE)
