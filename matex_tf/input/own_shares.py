"""Iterators over tickets: each gives a rank its rows of the next batch, worked on ahead, and whole batches on demand.

What is given carries its ticket. So where another share is wanted than was worked on ahead (after a rank is lost, where
shares change, for code that sees the whole batch) it is made anew of the ticket; no state has to be the same on ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import tags
from matex_tf.input import tickets
from matex_tf.rewrite.sharing import Share
from matex_tf.sharding import pipelines, row_shares
from matex_tf.world import world

_AHEAD = 2
"""Batches that are worked on at a time, and as many that wait."""


class Bounds(NamedTuple):
    """Rows of a batch: the number of the first, how many, and whether they are the rank's own (see `Share`)."""

    first: int
    count: int
    contributes: bool


def find_bounds(total: int, shares: Any = None) -> Bounds:
    """This rank's rows of a batch of `total`; `shares`: as in `row_shares.deal_block`, default: equal ones."""
    me = world.get_world()
    start, stop, has_rows = row_shares.find_slice_bounds(total, me.rank, me.trainers if shares is None else shares)
    return Bounds(int(start), int(stop - start), bool(has_rows))


class Source:
    """A dataset whose batches ranks make by shares.

    spec: of its elements; batches: its tickets and work.
    """

    def __init__(self, dataset: Any, batches: tickets.Batches):
        import tensorflow as tf

        self.spec, self.batches = dataset.element_spec, batches
        self.specs = tickets.flatten_specs(self.spec)
        self.options = dataset.options()
        self.is_compared = False
        self.shares_eager: bool | None = None
        self._ticket_size = len(tickets.flatten_specs(batches.tickets.element_spec))
        with tf.init_scope():
            self._dealt = tf.Variable(self._deal(), trainable=False, shape=[None], name="matex_tf_shares")
        self._made = self._work_ahead()
        self._made_specs = tickets.flatten_specs(self._made.element_spec)
        self._again = tf.function(self._take, autograph=False, input_signature=self._list_inputs())
        self._whole = tf.function(self._take_whole, autograph=False)
        self._whole_function: Any = None

    def _deal(self) -> np.ndarray:
        """The rank, and the share of each."""
        me = world.get_world()
        return np.array([me.rank, *([1] * me.trainers), *([0] * me.servers)], np.int64)

    def _list_inputs(self) -> list[Any]:
        import tensorflow as tf

        given = [tf.TensorSpec(shape, dtype) for dtype, shape in self._made_specs[-self._ticket_size :]]
        return [given, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64)]

    def _take(self, ticket: Sequence[Any], first: Any, count: Any, total: Any) -> list[Any]:
        """The rows of a share, by the flat tensors of a ticket."""
        import tensorflow as tf

        share = Share(first, count, total, tf.constant(True), tf.constant(False))
        made = self.batches.take(list(ticket), share)
        for one, (_, shape), is_rows in zip(made, self.specs, self.batches.are_rows):
            one.set_shape([None, *shape[1:]] if is_rows else shape)
        return made

    def _work_ahead(self) -> Any:
        """The dataset of what iterators give: first, count, total, the share's rows, and the ticket."""
        import tensorflow as tf

        spec = self.batches.tickets.element_spec

        def work(*element: Any) -> Any:
            ticket = tickets.flatten_element(spec, element)
            counts = self.batches.count(ticket)
            total = counts[0]
            rank, shares = self._dealt[0], self._dealt[1:]
            start, stop, _ = row_shares.find_slice_bounds(total, rank, shares)
            is_whole = tf.equal(tf.size(shares), 0)
            for other in counts[1:]:  # rows that do not belong together: the batch is taken whole
                is_whole = tf.logical_or(is_whole, tf.not_equal(other, total))
            first = tf.where(is_whole, tf.zeros_like(start), start)
            count = tf.where(is_whole, tf.reduce_max(tf.stack(counts)), stop - start)
            return first, count, total, *self._take(ticket, first, count, total), *ticket

        # What a generator has given does not come again, and is read as far ahead as alone.
        reads_ahead = not any(map(pipelines.has_outside_state, row_shares.list_pipeline(self.batches.tickets)))
        parallel = {"num_parallel_calls": _AHEAD, "deterministic": True} if reads_ahead else {}
        made = tickets.map_dataset(self.batches.tickets, work, **parallel)
        return (made.prefetch(_AHEAD) if reads_ahead else made).with_options(self.options)

    def iterate(self, make_iterator: Any) -> Any:
        """An iterator of the whole batches, for all code; steps take shares of what it is made of."""
        shares = Shares(self, make_iterator(self._made))
        iterator = make_iterator(self._open(shares))
        tags.set_tag(iterator, _SHARES, shares)
        tags.set_tag(iterator._iterator_resource, _SHARES, shares)
        return iterator

    def _open(self, shares: Shares) -> Any:
        """The dataset of whole batches, of what an iterator of shares has still to give."""
        import tensorflow as tf
        from tensorflow.python.data.ops import dataset_ops

        if self._whole_function is None:
            with tf.init_scope():
                given = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.resource)
                self._whole_function = self._whole.get_concrete_function(*given)
        function = self._whole_function
        handle = shares.iterator._iterator_resource
        variant = tf.raw_ops.MapDataset(
            input_dataset=tf.data.Dataset.range(np.iinfo(np.int64).max)._variant_tensor,
            other_arguments=[handle, *function.captured_inputs],
            f=function,
            output_types=[dtype for dtype, _ in self.specs],
            output_shapes=[shape for _, shape in self.specs],
            preserve_cardinality=False,
        )
        return dataset_ops._VariantDataset(variant, self.spec)

    def _take_whole(self, _: Any, handle: Any) -> list[Any]:
        import tensorflow as tf

        taken = tf.raw_ops.IteratorGetNext(
            iterator=handle,
            output_types=[dtype for dtype, _ in self._made_specs],
            output_shapes=[shape for _, shape in self._made_specs],
        )
        first, count, total, *made = taken
        own, ticket = made[: len(self.specs)], made[len(self.specs) :]
        is_whole = tf.logical_and(tf.equal(first, 0), count >= total)
        whole = tf.cond(is_whole, lambda: own, lambda: self._take(ticket, tf.zeros_like(first), total, total))
        return [tf.ensure_shape(one, shape) for one, (_, shape) in zip(whole, self.specs)]

    def make_again(self, ticket: Sequence[Any], first: int, count: int, total: int) -> list[Any]:
        import tensorflow as tf

        return list(self._again(list(ticket), *(tf.constant(one, tf.int64) for one in (first, count, total))))

    def work_whole(self) -> None:
        """From now on whole batches are worked on ahead."""
        self._dealt.assign(self._dealt.read_value()[:1])

    def work_on(self, shares: Any) -> None:
        """From now on this rank's rows are worked on ahead; `shares`: see `find_bounds`."""
        wanted = self._deal()
        if shares is not None:
            wanted[1 : 1 + len(shares)] = shares
        self._dealt.assign(wanted)


_SHARES = "shares of batches"


class Shares:
    """What an iterator of whole batches is made of.

    iterator: of the `Source`'s dataset of shares.
    """

    def __init__(self, source: Source, iterator: Any):
        self.source, self.iterator = source, iterator

    def take(self) -> Batch:
        """The next batch.

        Raises:
            tf.errors.OutOfRangeError: at the end.
        """
        import tensorflow as tf

        specs = self.source._made_specs
        made = tf.raw_ops.IteratorGetNext(
            iterator=self.iterator._iterator_resource,
            output_types=[dtype for dtype, _ in specs],
            output_shapes=[shape for _, shape in specs],
        )
        return Batch(self.source, made)


class Batch:
    """A batch of which this rank has made its rows; the others it makes when they are asked for.

    total: how many rows it has.
    is_even: whether all of its components have as many; if not, this rank has it whole.
    """

    def __init__(self, source: Source, made: Sequence[Any]):
        self.source = source
        first, count, total = (int(one) for one in made[:3])
        self.total, self._bounds = total, (first, count)
        end = 3 + len(source.specs)
        self._own, self.ticket = list(made[3:end]), list(made[end:])
        self.is_even = count <= total and len({one.shape[0] for one in self.list_rows(self._own)}) <= 1

    def list_rows(self, tensors: Sequence[Any]) -> list[Any]:
        return [one for one, is_rows in zip(tensors, self.source.batches.are_rows) if is_rows]

    def take(self, first: int, count: int) -> list[Any]:
        """The flat tensors of these rows."""
        if (first, count) == self._bounds or not self.is_even:
            return self._own
        return self.source.make_again(self.ticket, first, count, self.total)

    def take_whole(self) -> list[Any]:
        return self.take(0, self.total)


def find_shares(source: Any) -> Shares | None:
    """What an iterator, or the tensor that stands for it in a function, is made of; None of any other."""
    found: Shares | None = tags.get_tag(source, _SHARES)
    return found


def find_source(dataset: Any) -> Source | None:
    """The dataset as one whose batches ranks make by shares; None where nothing of its work can be shared."""
    return tags.get_or_make_tag(dataset, "source of shares", lambda: _find_source(dataset))


def _find_source(dataset: Any) -> Source | None:
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec, expand_composites=False)
    if not all(isinstance(one, tf.TensorSpec) for one in specs):
        return None
    batches = tickets.find_batches(dataset)
    rows = tickets.sources.find_components([shape for _, shape in tickets.flatten_specs(dataset.element_spec)])
    if not batches.is_work or not any(rows) or rows != batches.are_rows:
        return None
    return Source(dataset, batches)


