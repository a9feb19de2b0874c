"""Finds whether ranks can share the batches of a dataset (`find_source`), and makes iterators of shared batches.

An iterator of slices makes the next slices ahead: on 2 ranks, rank 0 works on rows 0-15 of a batch of 32, and rank 1 on
rows 16-31. A step may need other rows than were made: after a rank is lost, after a change of slice ratios, or for the
whole batch. They are made again from the ticket. So no rank asks another one for rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import ops, settings, tags
from matex_tf.input import advice, changing_state, filled_caches, pipelines, records, splitting, tickets
from matex_tf.input.deferred import Batches
from matex_tf.input.ticket_batches import TicketBatch, TicketBatches
from matex_tf.input.whole_iterators import WholeIterators
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite.sharing import Slice
from matex_tf.rewrite.sources import find_components
from matex_tf.sharding import slice_bounds
from matex_tf.steps import batches
from matex_tf.world import world

_BATCHES_AHEAD = 2
"""The number of batches that are worked on concurrently; as many more may wait."""


class RowsAhead:
    """Which rows of each batch the iterators of a source make ahead: this rank's slices, or whole batches.

    numbers: the argument `dealt` of `deal_rows`: 1 for slices, 0 for whole batches; this rank; the ratio of each rank.
    variable: these numbers, as running iterators read them.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.variable = tf.Variable([], False, dtype=tf.int64, shape=[None], name="matex_tf_shares")
        self.change(is_sliced=True)

    def change(self, is_sliced: bool, ratios: Any = None) -> None:
        me = world.get_world()
        self.set_numbers([int(is_sliced), me.rank, *(ratios or [1] * me.trainers + [0] * me.servers)])

    def set_numbers(self, numbers: list[int]) -> None:
        if numbers != self.numbers:
            self.numbers = numbers
            self.variable.assign(np.array(numbers, np.int64))


class Source:
    """A dataset whose batches ranks make in slices; a `batches.Dealer`, which steps ask for rows of these batches.

    dataset: the script's dataset. spec: the spec of its elements.
    batches: the tickets of its batches, and the work on them.
    batch_specs: the dtypes and shapes of a whole batch's flat tensors.
    is_compared: the ranks have compared a batch.
    rows_ahead: which rows this rank makes ahead.
    specs: the dtypes and shapes of the flat tensors of a `batches.Element`, of which the dataset of slices consists.
    are_rows, pads: see `Batches`.

    _elements_come_again: no iteration changes what other iterations see, so an element that is read ahead and unused is
        not lost.
    _slices: the dataset of this rank's slices.
    """

    def __init__(self, dataset: Any, deferred: Batches):
        self.dataset, self.spec, self.batches = dataset, dataset.element_spec, deferred
        self.batch_specs = tickets.flatten_specs(self.spec)
        self.are_rows, self.pads = deferred.are_rows, deferred.pads
        self.is_compared = False
        stages = slice_bounds.list_pipeline(dataset)
        self._elements_come_again = not any(map(pipelines.has_outside_state, stages))
        # Maps of the tickets run in parallel, which reads ahead, only if elements come again.
        parallel_options = {"num_parallel_calls": _BATCHES_AHEAD, "deterministic": True}
        self._map_options: dict[str, Any] = parallel_options if self._elements_come_again else {}
        self._options = dataset.options().merge(_make_options(stages))
        self._ticket_size = len(tickets.flatten_specs(deferred.tickets.element_spec))
        self.rows_ahead, self._whole_iterators = RowsAhead(), WholeIterators(self)
        self._slices = self._make_slices()
        self.specs = tickets.flatten_specs(self._slices.element_spec)
        shapes = [(dtype, None if shape.rank is None else tuple(shape.as_list())) for dtype, shape in self.specs]
        pads = [(index, repr(value)) for index, value in deferred.pads.items()]
        self.signature = tuple(shapes), tuple(deferred.are_rows), tuple(pads)

    def take(self, ticket: Sequence[Any], batch_slice: Slice) -> list[Any]:
        """In a graph: the flat tensors with the rows of a slice of the batch of a ticket."""
        batch_slice = batch_slice._replace(contributes=tf.constant(True), keeps=tf.constant(False))
        rows = self.batches.compute(list(ticket), batch_slice)
        for tensor, (_, shape) in zip(rows, tickets.open_rows(self.batch_specs, self.batches.are_rows)):
            tensor.set_shape(shape)
        return rows

    def _make_slices(self) -> Any:
        """The dataset of this rank's slices, with a `batches.Element` for each batch."""

        def work(ticket: tickets.Tensors) -> Any:
            dealt = ops.deal_rows(tf.stack(self.batches.count_rows(ticket)), self.rows_ahead.variable)
            # If components of the ticket have different lengths, all rows are dealt: `count` is the number of the
            # longest component, `total` of the first. A map may then drop or change either component.
            is_whole = tf.equal(dealt.first, 0) & (dealt.count >= dealt.total)
            total = tf.maximum(dealt.total, dealt.count)
            rows = self.take(ticket, Slice(dealt.first, dealt.count, total, contributes=True))
            counts = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in itertools.compress(rows, self.are_rows)])
            longest = tf.reduce_max(counts)
            count, total = (tf.where(is_whole, longest, number) for number in (dealt.count, total))
            is_even = tf.reduce_all(tf.equal(counts, longest))
            digest = tf.bitcast(tickets.digest_ticket(ticket, self.batches.windows), tf.int64)
            return dealt.first, count, total, is_even, digest, *rows, *ticket

        slices = tickets.map_dataset(self.batches.tickets, work, **self._map_options)
        ahead_count = _BATCHES_AHEAD if self._elements_come_again else pipelines.count_ahead(self.dataset)
        slices = slices.prefetch(ahead_count) if ahead_count else slices
        if not any(map(pipelines.may_vary, slice_bounds.list_pipeline(self.dataset))):
            slices = slices.take(0).concatenate(slices)  # an unused iterator costs little: `whole_iterators`
        return slices.with_options(self._options)

    def iterate(self, make_iterator: Any) -> Any:
        """An iterator of whole batches for any code; steps take slices from the iterator beneath it.

        Collective if the dataset reads files of records.
        """
        for dataset in self.batches.files:
            records.make_tickets(dataset)  # of files that have changed since the last iteration
        shared = TicketBatches(self, make_iterator(self._slices))
        iterator = make_iterator(self._whole_iterators.make_dataset(shared.iterator))
        # By these notes a step finds the iterator of slices: when it takes a batch before a call, and in its graph.
        batches.note_shared_batches(iterator, shared)
        handle = shared.iterator._iterator_resource
        batches.note_dealt(iterator._iterator_resource, batches.Dealt(self, handle))
        # TensorFlow saves and restores the iterator by these methods.
        iterator._serialize_to_tensors, iterator._restore_from_tensors = shared.save, shared.restore
        return iterator

    @functools.cached_property
    def whole(self) -> Any:
        """The dataset for functions of the script that iterate over it: it gives whole batches. A step takes slices
        from the dataset of slices instead.
        """

        def work(ticket: tickets.Tensors) -> Any:
            total = tf.reduce_max(tf.stack(self.batches.count_rows(ticket)))
            tensors = self.take(ticket, Slice(tf.zeros_like(total), total, total, contributes=True))
            tensors = [tf.ensure_shape(tensor, shape) for tensor, (_, shape) in zip(tensors, self.batch_specs)]
            return tickets.pack(self.spec, tensors)

        with tf.init_scope():  # functions that are traced later iterate over it, too
            dataset = tickets.map_dataset(self.batches.tickets, work, **self._map_options)
            dataset = dataset.with_options(self._options)
            batches.note_dealt(dataset._variant_tensor, batches.Dealt(self, self._slices._variant_tensor))
            return dataset

    def open(self, tensors: Sequence[Any]) -> TicketBatch:
        return TicketBatch(self, tensors)

    @functools.cached_property
    def _take_function(self) -> Any:
        """`take` as a ConcreteFunction: its calls are no steps."""
        ticket = [tf.TensorSpec(shape, dtype) for dtype, shape in self.specs[-self._ticket_size :]]
        numbers = [tf.TensorSpec([], tf.int64)] * 3

        def take(ticket: Any, first: Any, count: Any, total: Any) -> list[Any]:
            return self.take(ticket, Slice(first, count, total, contributes=True))

        return trace_own(take, input_signature=[ticket, *numbers])

    def prepare(self) -> None:
        """Trace the function that makes rows again, so that no measurement includes the tracing."""
        _ = self._take_function

    def make_again(self, ticket: Sequence[Any], batch_slice: Slice) -> list[Any]:
        """`take` in eager code."""
        numbers = (tf.constant(number, tf.int64) for number in batch_slice[:3])
        return list(self._take_function(list(ticket), *numbers))

    def work_whole(self) -> None:
        """Make whole batches ahead from now on."""
        self.rows_ahead.change(is_sliced=False)

    def work_on(self, ratios: Any) -> None:
        """Make this rank's slices ahead from now on. ratios: see `batches.find_slice`."""
        self.rows_ahead.change(is_sliced=True, ratios=ratios)


def _make_options(stages: Sequence[Any]) -> Any:
    """The options of the iterators of slices of a pipeline with these stages."""
    options = tf.data.Options()
    # TensorFlow's optimizer fails on some datasets that functions of pipelines make.
    options.experimental_optimization.map_and_batch_fusion = False
    options.experimental_optimization.inject_prefetch = options.experimental_optimization.noop_elimination = False
    # There is nothing to tune, and the tuning thread may sleep for a minute after the end.
    options.autotune.enabled = False
    if not any(map(pipelines.list_stateful, stages)):
        # The iterator can be saved, as in the script alone: `RowsAhead.variable`, which it reads, is no state of it.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    return options


def give_whole(dataset: Any) -> Any:
    """The dataset of whole batches for a function that iterates over it itself; from tickets, if ranks share it."""
    source = find_source(dataset)
    return filled_caches.use_filled_caches(dataset) if source is None else source.whole


def find_source(dataset: Any) -> Source | None:
    """The dataset as one whose batches ranks make in slices; None if none of its work can be shared."""
    if not hasattr(dataset._variant_tensor, "numpy"):
        return None  # it is made within a function
    with tf.init_scope():
        return tags.get_or_make_tag(dataset, "source of shares", lambda: _make_source(dataset))


def _make_source(dataset: Any) -> Source | None:
    """The `Source` of a dataset; None, with a line of `--explain`, if none of its work can be shared."""
    from tensorflow.python.data.ops import debug_mode

    if settings.is_asynchronous(settings.get_settings().strategy):
        return None  # ranks train whole batches in turn
    obstacle, deferred, causes_text = "", None, ""
    if debug_mode.DEBUG_MODE:
        obstacle = ": with enable_debug_mode() its functions are Python"
    elif conflict := changing_state.tell_conflict(dataset):
        obstacle = f": it has {conflict}"
    elif composites := advice.explain_composites(dataset.element_spec):  # before `find_batches`, which indexes files
        obstacle = f", because of {advice.explain_causes(dataset, composites)}"
    else:
        deferred = splitting.find_batches(dataset)
        causes_text = advice.explain_causes(dataset, deferred.causes)
        are_rows = find_components([shape for _, shape in tickets.flatten_specs(dataset.element_spec)])
        if not deferred.is_work or not any(are_rows) or are_rows != deferred.are_rows:
            obstacle = f", because of {causes_text}" if causes_text else ": it has no map of rows"
        elif not filled_caches.claim_for_tickets(dataset, deferred.caches):
            obstacle = f", because of {filled_caches.CONFLICT}"
    if obstacle or deferred is None:
        advice.explain(dataset, f"every rank runs it whole{obstacle}")
        return None
    in_order = f"; every rank runs, in the order of the script: {causes_text}" if causes_text else ""
    advice.explain(dataset, f"each rank reads and computes its rows of every batch{in_order}")
    return Source(dataset, deferred)
