"""Whole batches for eager code, for instance a training loop of the script: made in slices and gathered, if faster.

The ranks make the first four batches of a dataset in both ways in turn, time them, and agree on the faster way. Each
rank makes batches 1 and 3 whole; batches 2 and 4 are made in slices and gathered. The times of batches 1 and 2 do not
count, because functions run for the first time. The ranks also compare their batches 1.
"""

from __future__ import annotations

import time
from typing import Any

from matex_tf import ops, tags
from matex_tf.input import advice, tickets
from matex_tf.input.choices import Choice
from matex_tf.input.ticket_batches import TicketBatch, TicketBatches
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite.sharing import Request, Slice
from matex_tf.sharding import fingerprint
from matex_tf.steps import agreement, failures
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.world import world

_BATCHES_UNTIL_CHOICE = 4
_PLACE, _CHOICE = "the next batch of a dataset", "choice of whole or gathered batches"


def take_whole(shared: TicketBatches) -> Any:
    """The next element of an iterator of whole batches. At the end: tf.errors.OutOfRangeError.

    Collective while ranks choose between the ways, and if they have chosen to gather slices.
    """
    source = shared.source
    if not agreement.is_watched():  # in another thread, or for data of this rank alone: ranks are not in step
        return tickets.pack(source.spec, shared.take().take_whole())
    choice = tags.get_or_make_tag(source, _CHOICE, Choice)
    choice.batch_count += 1  # also if the batch fails on a rank: all ranks choose at the same batch
    with failures.fail_together(_PLACE):
        try:
            batch = shared.take()
        except tf.errors.OutOfRangeError as error:
            end = error
        else:
            return tickets.pack(source.spec, _take(batch, choice))
    raise end  # outside of `fail_together`, because the end of the data is no failure


def _take(batch: TicketBatch, choice: Choice) -> list[Any]:
    """The flat tensors of a batch, made in the way whose turn it is, or in the chosen way.

    If the components of the batch have different numbers of rows (not `is_even`), each rank makes it whole.
    """
    if choice.is_shared is False or not batch.is_even:
        batch.source.work_whole()  # from now on, the iterator makes whole batches ahead
        return batch.take_whole()
    return _gather_rows(batch) if choice.is_shared else _take_timed(batch, choice)


def _take_timed(batch: TicketBatch, choice: Choice) -> list[Any]:
    """Take one of the first batches; choose the way after the last of them. Collective."""
    batch.source.prepare()  # this and the next line trace functions, which is not to be timed
    _get_gather_function(batch)
    is_gathered = choice.batch_count % 2 == 0  # batches 1 and 3: whole
    if is_gathered:
        # Ranks begin together. After an error of one rank, ranks continue from a sum, but not from a barrier.
        ops.allreduce(tf.zeros([]), "sum", _PLACE)
    began = time.perf_counter()
    tensors = _gather_rows(batch) if is_gathered else batch.take_whole()
    choice.seconds[is_gathered] = time.perf_counter() - began
    if is_gathered and choice.batch_count >= _BATCHES_UNTIL_CHOICE:
        alone, shared = choice.choose(_PLACE)
        chosen_way = "ranks make slices and gather them" if choice.is_shared else "every rank makes all rows"
        times = f"a batch takes a rank {alone * 1e3:.3g} ms to make, and ranks {shared * 1e3:.3g} ms to gather"
        advice.explain(batch.source.dataset, f"for batches in eager code {chosen_way}: {times}")
    # After different first batches each rank makes its own batches, without a choice.
    if choice.batch_count == 1 and not fingerprint.is_batch_of_all(batch.digest(), "the first batch of a dataset"):
        choice.is_shared = False
    return tensors


def _gather_rows(batch: TicketBatch) -> list[Any]:
    """The flat tensors with the rows of all ranks. Collective."""
    *own_tensors, first, count, total, contributes = batch.take_slice()
    digest = tf.constant(batch.element.digest, tf.int64)
    return list(_get_gather_function(batch)(own_tensors, first, count, total, digest, contributes))


def _get_gather_function(batch: TicketBatch) -> Any:
    tag = f"gathered by {world.get_world().size}"
    return tags.get_or_make_tag(batch.source, tag, lambda: _make_gather_function(batch))


def _make_gather_function(batch: TicketBatch) -> Any:
    """A ConcreteFunction that gathers the rows of all ranks, after a comparison of the digests of their tickets."""
    source = batch.source
    are_rows, exchanger = source.are_rows, RankExchanger(_PLACE)

    def gather(own_tensors: Any, first: Any, count: Any, total: Any, digest: Any, contributes: Any) -> list[Any]:
        batch_slice = Slice(first, count, total, contributes, tf.constant(world.get_world().rank == 0))
        # All digests are equal if the largest one equals the smallest one, which is -max(-digest).
        (largest,) = exchanger.exchange([Request("max", tf.stack([digest, -digest]), owned=True)], batch_slice)
        is_same = tf.debugging.Assert(tf.equal(largest[0], -largest[1]), [_DIFFERENT_ELEMENTS], summarize=1)
        with tf.control_dependencies([is_same]):
            requests = [
                Request("gather", tf.identity(own_tensor))
                for own_tensor, is_row in zip(own_tensors, are_rows)
                if is_row
            ]
        gathered = iter(exchanger.exchange(requests, batch_slice))
        tensors = [next(gathered) if is_row else own_tensor for own_tensor, is_row in zip(own_tensors, are_rows)]
        return [tf.ensure_shape(tensor, shape) for tensor, (_, shape) in zip(tensors, source.batch_specs)]

    specs = [tf.TensorSpec(shape, dtype) for dtype, shape in tickets.open_rows(source.batch_specs, are_rows)]
    numbers = [tf.TensorSpec([], tf.int64)] * 4
    return trace_own(gather, input_signature=[specs, *numbers, tf.TensorSpec([], tf.bool)])


_DIFFERENT_ELEMENTS = (
    "the ranks take different elements from a dataset, whose batches they make together: data or their order differ "
    "between ranks, for instance by deterministic=False or the order in which files are listed"
)
