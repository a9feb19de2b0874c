"""Whole batches for eager code: made in slices and gathered, if that is faster.

Each rank makes the first batch of a dataset whole, and all ranks compare it. The second one is made in slices and
gathered. The next two are made in the same ways and timed, and the ranks agree on the faster way.
"""

from __future__ import annotations

import math
import time
from typing import Any

from matex_tf import ops, tags
from matex_tf.input import advice, tickets
from matex_tf.input.shared_batches import Batch, SharedBatches
from matex_tf.lazy import tf
from matex_tf.rewrite.sharing import Request, Slice
from matex_tf.sharding import fingerprint
from matex_tf.steps import agreement, failures
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.world import world

_TIMED = 4
"""Batches until the choice; in the first two, functions run for the first time."""
_PLACE, _WAY = "the next batch of a dataset", "way of whole batches"


def take_whole(shared: SharedBatches) -> Any:
    """The next element of an iterator of whole batches. Collective if ranks make it in slices.

    Raises:
        tf.errors.OutOfRangeError: at the end of the data.
    """
    source = shared.source
    if not agreement.is_watched():
        return tickets.pack(source.spec, shared.take().take_whole())
    way = tags.get_or_make_tag(source, _WAY, Way)
    way.taken += 1
    with failures.fail_together(_PLACE):
        try:
            batch = shared.take()
        except tf.errors.OutOfRangeError as error:
            end = error
        else:
            return tickets.pack(source.spec, _take(batch, way))
    raise end


def _take(batch: Batch, way: Way) -> list[Any]:
    if way.is_open and batch.is_even:
        return _choose(batch, way)
    if way.is_shared and batch.is_even:
        return _put_together(batch)
    batch.source.work_whole()
    return batch.take_whole()


class Way:
    """The way in which batches of a dataset reach eager code.

    is_open: the choice is still to be made.
    is_shared: ranks gather slices.
    taken: how often a batch was taken. A batch that fails on one rank counts on all, so that ranks keep in step.
    seconds: of the last batch that a rank made whole, and of the last one that ranks gathered.
    """

    def __init__(self) -> None:
        self.is_open, self.is_shared, self.taken = True, True, 0
        self.seconds = [math.inf, math.inf]


def _choose(batch: Batch, way: Way) -> list[Any]:
    batch.source.prepare()
    _find_join(batch)
    is_gathered = way.taken % 2 == 0
    if is_gathered:
        # Ranks begin together. After an error of one rank, ranks continue from a sum, but not from a barrier.
        ops.allreduce(tf.zeros([]), "sum", _PLACE)
    began = time.perf_counter()
    found = _put_together(batch) if is_gathered else batch.take_whole()
    way.seconds[is_gathered] = time.perf_counter() - began
    if way.taken == 1 and not fingerprint.is_batch_of_all(batch.digest(), "the first batch of a dataset"):
        way.is_open = way.is_shared = False
    if is_gathered and way.taken >= _TIMED:
        everyone = ops.allgather(tf.constant([way.seconds], tf.float64), _PLACE).numpy()
        alone, gathered = everyone[:, 0].min(), everyone[:, 1].max()
        way.is_open, way.is_shared = False, bool(gathered < alone * (1 - 1 / world.get_world().trainers))
        chosen = "ranks make slices and gather them" if way.is_shared else "every rank makes all rows"
        times = f"a batch takes a rank {alone * 1e3:.3g} ms to make, and ranks {gathered * 1e3:.3g} ms to gather"
        advice.explain(batch.source.dataset, f"for batches in eager code {chosen}: {times}")
    return found


def _put_together(batch: Batch) -> list[Any]:
    """The rows of all ranks. Collective."""
    *own, first, count, total, contributes = batch.take_slice()
    digest = tf.constant(batch.ticket_digest, tf.int64)
    return list(_find_join(batch)(own, first, count, total, digest, contributes))


def _find_join(batch: Batch) -> Any:
    return tags.get_or_make_tag(batch.source, f"put together by {world.get_world().size}", lambda: _make_join(batch))


def _make_join(batch: Batch) -> Any:
    source = batch.source
    flags, exchanger = source.batches.are_rows, RankExchanger(_PLACE)

    def join(own: Any, first: Any, count: Any, total: Any, digest: Any, contributes: Any) -> list[Any]:
        batch_slice = Slice(first, count, total, contributes, tf.constant(world.get_world().rank == 0))
        ends = tf.stack([digest, -digest])
        (found,) = exchanger.exchange([Request("max", ends)], batch_slice.of_all())
        is_same = tf.debugging.Assert(tf.equal(found[0], -found[1]), [_OTHERS], summarize=1)
        with tf.control_dependencies([is_same] if is_same is not None else []):
            rows = [Request("gather", tf.identity(one)) for one, is_rows in zip(own, flags) if is_rows]
        whole = iter(exchanger.exchange(rows, batch_slice))
        made = [next(whole) if is_rows else one for one, is_rows in zip(own, flags)]
        return [tf.ensure_shape(one, shape) for one, (_, shape) in zip(made, source.batch_specs)]

    specs = [tf.TensorSpec(shape, dtype) for dtype, shape in tickets.open_rows(source.batch_specs, flags)]
    numbers = [tf.TensorSpec([], tf.int64)] * 4
    function = tf.function(join, autograph=False, input_signature=[specs, *numbers, tf.TensorSpec([], tf.bool)])
    return function.get_concrete_function()


_OTHERS = (
    "the ranks take different elements from a dataset, whose batches they make together: data or their order differ "
    "between ranks, for instance by deterministic=False or the order in which files are listed"
)
