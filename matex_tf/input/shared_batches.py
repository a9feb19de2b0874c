"""Iterators over tickets: each gives a rank its slice of the next batch, worked on ahead, and whole batches on demand.

Each element carries its ticket. If another slice is needed than the one that was worked on (after a rank is lost, after
a change of slice ratios, or for the whole batch), it is computed again from the ticket. So no state has to match
between ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import settings, tags
from matex_tf.input import advice, batch_tickets, filled_caches, functions, iteration, pipelines, records, tickets
from matex_tf.lazy import tf
from matex_tf.ops import deal_rows
from matex_tf.rewrite.sharing import Slice
from matex_tf.rewrite.sources import find_components
from matex_tf.runtime import objects
from matex_tf.sharding import slice_bounds
from matex_tf.steps import batches
from matex_tf.world import world

_AHEAD = 2
"""The number of batches that are worked on concurrently; as many more may wait."""


class Source:
    """A dataset whose batches ranks make in slices.

    dataset: the script's. spec: of its elements. batches: its tickets and work.
    """

    def __init__(self, dataset: Any, made: batch_tickets.Batches):
        self.dataset, self.spec, self.batches = dataset, dataset.element_spec, made
        self.batch_specs = tickets.flatten_specs(self.spec)
        # TensorFlow's optimizer fails on some datasets that functions of pipelines make.
        options = tf.data.Options()
        options.experimental_optimization.map_and_batch_fusion = False
        options.experimental_optimization.inject_prefetch = options.experimental_optimization.noop_elimination = False
        # There is nothing to tune, and the tuning thread may sleep for a minute after the end.
        options.autotune.enabled = False
        self._is_free = not any(map(pipelines.has_outside_state, slice_bounds.list_pipeline(dataset)))
        self._as_alone = iteration.count_ahead_at_least(dataset)
        if not any(map(pipelines.list_stateful, slice_bounds.list_pipeline(dataset))):
            # An iterator can be saved, as alone: the variable that these pipelines read is no state.
            options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        self._options = dataset.options().merge(options)
        self.is_compared = False
        self._ticket_size = len(tickets.flatten_specs(made.tickets.element_spec))
        self._now = self._deal(None)
        self._dealt = tf.Variable(self._now, False, dtype=tf.int64, shape=[None], name="matex_tf_shares")
        self._made = self._work_ahead()
        self.specs = tickets.flatten_specs(self._made.element_spec)
        self.are_rows, self.pads = made.are_rows, made.pads
        shapes = [(dtype, None if shape.rank is None else tuple(shape.as_list())) for dtype, shape in self.specs]
        pads = [(at, repr(value)) for at, value in made.pads.items()]
        self.signature = tuple(shapes), tuple(made.are_rows), tuple(pads)

    def _deal(self, ratios: Any) -> list[int]:
        """Whether slices are worked on, the rank, and the slice ratio of each rank."""
        me = world.get_world()
        return [1, me.rank, *(ratios or [1] * me.trainers + [0] * me.servers)]

    def _list_inputs(self) -> list[Any]:
        given = [tf.TensorSpec(shape, dtype) for dtype, shape in self.specs[-self._ticket_size :]]
        return [given, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64)]

    def take(self, ticket: Sequence[Any], first: Any, count: Any, total: Any) -> list[Any]:
        """The rows of a slice, from the flat tensors of a ticket."""
        batch_slice = Slice(first, count, total, tf.constant(True), tf.constant(False))
        made = self.batches.take(list(ticket), batch_slice)
        for one, (_, shape) in zip(made, tickets.open_rows(self.batch_specs, self.batches.are_rows)):
            one.set_shape(shape)
        return made

    def _work_ahead(self) -> Any:
        """The dataset of the iterators: its elements are the parts of a `Batch`."""
        spec = self.batches.tickets.element_spec

        def work(*element: Any) -> Any:
            ticket = tickets.flatten_element(spec, element)
            counts = self.batches.count_rows(ticket)
            rows = deal_rows.deal_rows(tf.stack(counts), self._dealt)  # all rows, if components have different numbers
            digest = tf.bitcast(self.batches.digest(ticket), tf.int64)
            return *rows, digest, *self.take(ticket, *rows[:3]), *ticket

        options = self._read_ahead()
        made = tickets.map_dataset(self.batches.tickets, work, **options)
        ahead = _AHEAD if options else self._as_alone
        return (made.prefetch(ahead) if ahead else made).with_options(self._options)

    def iterate(self, make_iterator: Any) -> Any:
        """An iterator of whole batches for any code; steps take slices from the iterator beneath it."""
        for one in self.batches.files:
            records.make_tickets(one)  # of files that have changed since the last iteration
        shared = SharedBatches(self, make_iterator(self._made))
        iterator = make_iterator(self._open(shared))
        batches.note_shared_batches(iterator, shared)
        handle = shared.iterator._iterator_resource
        batches.note_dealt(iterator._iterator_resource, batches.Dealt(self, handle))
        return iterator

    @functools.cached_property
    def whole(self) -> Any:
        """The dataset for functions: steps take slices from the dataset beneath it, other functions work on whole
        batches.
        """
        spec = self.batches.tickets.element_spec

        def work(*element: Any) -> Any:
            ticket = tickets.flatten_element(spec, element)
            total = tf.reduce_max(tf.stack(self.batches.count_rows(ticket)))
            made = self.take(ticket, tf.zeros_like(total), total, total)
            return tickets.pack(
                self.spec, [tf.ensure_shape(one, shape) for one, (_, shape) in zip(made, self.batch_specs)]
            )

        with tf.init_scope():  # functions that are traced later iterate over it, too
            made = tickets.map_dataset(self.batches.tickets, work, **self._read_ahead()).with_options(self._options)
            batches.note_dealt(made._variant_tensor, batches.Dealt(self, self._made._variant_tensor))
            return made

    def _read_ahead(self) -> dict[str, Any]:
        """How maps of the tickets run. Elements of a generator do not come again, so these are read as alone."""
        return {"num_parallel_calls": _AHEAD, "deterministic": True} if self._is_free else {}

    def _open(self, shared: SharedBatches) -> Any:
        """The dataset of whole batches, from the remaining elements of an iterator of slices."""
        from tensorflow.python.data.ops import dataset_ops

        function = self._whole_function
        handle = shared.iterator._iterator_resource
        variant = tf.raw_ops.MapDataset(
            input_dataset=tf.data.Dataset.range(np.iinfo(np.int64).max)._variant_tensor,
            other_arguments=[handle, *function.captured_inputs],
            f=function,
            output_types=[dtype for dtype, _ in self.batch_specs],
            output_shapes=[shape for _, shape in self.batch_specs],
            preserve_cardinality=False,
        )
        options = tf.data.Options()  # reading ahead would take batches from steps
        options.autotune.enabled = options.experimental_optimization.apply_default_optimizations = False
        return dataset_ops._VariantDataset(variant, self.spec).with_options(options)

    @functools.cached_property
    def _whole_function(self) -> Any:
        """`_take_whole` as a ConcreteFunction."""
        with tf.init_scope():
            given = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.resource)
            return tf.function(self._take_whole, autograph=False).get_concrete_function(*given)

    def _take_whole(self, number: Any, handle: Any) -> list[Any]:
        made = tickets.take_next(handle, self.specs)
        whole = tf.py_function(self._make_whole, made, [dtype for dtype, _ in self.batch_specs])
        whole = whole if isinstance(whole, list) else [whole]
        for one, (_, shape) in zip(whole, self.batch_specs):
            one.set_shape(shape)
        return whole

    def _make_whole(self, *made: Any) -> list[Any]:
        """A whole batch from an element of the iterator, in eager code: a function of few ops is fast to create."""
        self.work_whole()
        return self.open(made).take_whole()

    def open(self, made: Sequence[Any]) -> Batch:
        return Batch(self, made)

    def pad_alike(self, rows: list[Any]) -> list[Any]:
        """This rank's rows after padding to the longest row of all ranks. Collective if components are padded."""
        pads = self.batches.pads
        if not pads:
            return rows
        everyone = objects.allgather([rows[at].shape.as_list()[1:] for at in pads], "the lengths of padded rows")
        for (at, value), sizes in zip(pads.items(), zip(*everyone)):
            own = rows[at].shape.as_list()
            more = [[0, 0], *([0, max(of_ranks) - size] for of_ranks, size in zip(zip(*sizes), own[1:]))]
            rows = [
                tf.pad(one, more, constant_values=value) if at == number else one for number, one in enumerate(rows)
            ]
        return rows

    @functools.cached_property
    def _again(self) -> Any:
        """`take` as a ConcreteFunction: its calls are no steps."""
        return tf.function(self.take, autograph=False, input_signature=self._list_inputs()).get_concrete_function()

    def prepare(self) -> None:
        """Trace the function that makes slices again, so that no measurement includes the tracing."""
        _ = self._again

    def make_again(self, ticket: Sequence[Any], first: int, count: int, total: int) -> list[Any]:
        return list(self._again(list(ticket), *(tf.constant(one, tf.int64) for one in (first, count, total))))

    def work_whole(self) -> None:
        """Work on whole batches ahead from now on."""
        self._work_as([0, *self._deal(None)[1:]])

    def work_on(self, ratios: Any) -> None:
        """Work on this rank's rows ahead from now on. ratios: see `batches.find_bounds`."""
        self._work_as(self._deal(ratios))

    def _work_as(self, dealt: list[int]) -> None:
        if dealt != self._now:
            self._now = dealt
            self._dealt.assign(np.array(dealt, np.int64))


class SharedBatches:
    """The source of an iterator of whole batches.

    iterator: of the `Source`'s dataset of slices.
    """

    def __init__(self, source: Source, iterator: Any):
        self.source, self.iterator = source, iterator

    def take(self) -> Batch:
        """The next batch.

        Raises:
            tf.errors.OutOfRangeError: at the end.
        """
        return Batch(self.source, tickets.take_next(self.iterator._iterator_resource, self.source.specs))


class Batch:
    """A batch of which this rank has made its rows; it makes others on demand. See `batches.Batch`.

    ticket_digest: a hash of its ticket.
    is_even: all of its components have equally many rows; if not, this rank has it whole.
    """

    def __init__(self, source: Source, made: Sequence[Any]):
        self.source = source
        first, count, self.total, has_rows, self.ticket_digest = (one.numpy().item() for one in made[: batches.NUMBERS])
        self._bounds, end = batches.Bounds(first, count, has_rows), batches.NUMBERS + len(source.batch_specs)
        self._numbers, self._own, self._ticket = made[:4], list(made[batches.NUMBERS : end]), list(made[end:])
        self._whole: list[Any] | None = None
        rows = {one.shape.as_list()[0] for one, is_rows in zip(self._own, source.batches.are_rows) if is_rows}
        self.is_even = len(rows) == 1 and count <= self.total
        self._error: Exception | None = None

    def take_slice(self, ratios: Any = None) -> list[Any]:
        if self._error is not None:
            raise self._error
        bounds = batches.find_bounds(self.total, ratios)
        is_made = bounds == self._bounds
        self.source.work_on(ratios)
        numbers = self._numbers if is_made else batches.make_numbers(bounds, self.total)
        return [*self.source.pad_alike(self._own if is_made else self._make(bounds)), *numbers]

    def _make(self, bounds: batches.Bounds) -> list[Any]:
        if self._bounds[:2] == (0, self.total):
            return batches.slice_rows(self._own, self.source.batches.are_rows, bounds)
        return self.source.make_again(self._ticket, bounds.first, bounds.number, self.total)

    def take_whole(self) -> list[Any]:
        is_made = not self.is_even or self._bounds[:2] == (0, self.total)
        if self._whole is None:
            self._whole = self._own if is_made else self._make(batches.Bounds(0, self.total, True))
        return self._whole

    def digest(self) -> tuple[int, int] | None:
        """For the first batch of a dataset, a hash of all of its rows, which this rank makes; otherwise a hash of its
        ticket.
        """
        if self.source.is_compared:
            return self.total, self.ticket_digest
        self.source.is_compared = True
        try:
            return self.total, batches.digest_tensors(self.take_whole())
        except tf.errors.OpError as error:
            self._error = error
            return None


def give_whole(dataset: Any) -> Any:
    """The dataset for functions that iterate over it by themselves: made of the tickets, so that
    their order goes on.
    """
    source = find_source(dataset)
    return filled_caches.use_filled_caches(dataset) if source is None else source.whole


def find_source(dataset: Any) -> Source | None:
    """The dataset as one whose batches ranks make in slices; None if none of its work can be shared."""
    if not hasattr(dataset._variant_tensor, "numpy"):
        return None  # it is made within a function
    with tf.init_scope():
        return tags.get_or_make_tag(dataset, "source of shares", lambda: _find_source(dataset))


def _find_source(dataset: Any) -> Source | None:
    from tensorflow.python.data.ops import debug_mode

    if settings.is_asynchronous(settings.get_settings().strategy):
        return None  # ranks train whole batches in turn
    if composites := advice.name_composites(dataset.element_spec):
        advice.explain(dataset, f"every rank runs it whole, because of {advice.explain_kept(dataset, composites)}")
        return None
    if debug_mode.DEBUG_MODE:
        advice.explain(dataset, "every rank runs it whole: with enable_debug_mode() its functions are Python")
        return None
    if conflict := functions.tell_conflict(dataset):
        advice.explain(dataset, f"every rank runs it whole: it has {conflict}")
        return None
    made = batch_tickets.find_batches(dataset)
    kept = advice.explain_kept(dataset, made.kept)
    rows = find_components([shape for _, shape in tickets.flatten_specs(dataset.element_spec)])
    if not made.is_work or not any(rows) or rows != made.are_rows:
        why = f", because of {kept}" if kept else ": it has no map of rows"
        advice.explain(dataset, f"every rank runs it whole{why}")
        return None
    if not filled_caches.claim_for_tickets(dataset, made.caches):
        advice.explain(dataset, f"every rank runs it whole, because of {filled_caches.CONFLICT}")
        return None
    whole = f"; every rank runs, in the order of the script: {kept}" if kept else ""
    advice.explain(dataset, f"each rank reads and computes its rows of every batch{whole}")
    return Source(dataset, made)
