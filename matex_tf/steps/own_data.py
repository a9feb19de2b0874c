"""Data of which each rank has rows of its own: arrays of `matex_tf.shard` and readers, and datasets of them.

The batch is the concatenation of the ranks' rows. Eager code that reads a batch sees the rows of all ranks. Within a
step the rows stay on their ranks (`rewrite.own_batches`). So iterators and datasets are marked for plans of steps, and
uses are refused that would compute one rank's rows as if all ranks had them.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np

from matex_tf import errors, tags
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite import own_batches
from matex_tf.runtime import notes
from matex_tf.sharding import exchange, shard_arrays, slice_bounds
from matex_tf.steps import capture, slices
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import world

# Names of tags (`tags`): `_OWN` of iterators and handles of datasets, `_TAKER` of iterators.
_OWN, _TAKER = "own rows", "whole batches of own rows"
_alone = ThreadFlag()


def compute_alone() -> contextlib.AbstractContextManager[None]:
    """Within the context, as in `async` training, this thread works alone: it shares no step and gathers no batch."""
    return _alone.set()


def is_alone() -> bool:
    return bool(_alone)


def note_constant(array: np.ndarray) -> None:
    """Print a note if a tensor is made from an array of this rank's own rows, since the tensor is not marked as such.

    Raises UnsupportedError in a graph, which would treat such a tensor as equal on all ranks.
    """
    # `keeps_rows`: the tensor is for a dataset, which is marked itself.
    if shard_arrays.keeps_rows or not world.is_active() or is_alone() or not shard_arrays.is_shard(array):
        return
    advice = (
        "Give the array itself to fit, a tf.function, a call of a model, feed_dict or tf.data.Dataset."
        "from_tensor_slices, or give every rank all of the data"
    )
    subject = "a tensor of each rank's own rows (matex_tf.shard, DataSet)"
    if not tf.executing_eagerly():
        raise errors.UnsupportedError(
            f"{subject} is made within a function or a graph, for which all ranks must have the same. {advice}"
        )
    notes.print_note(
        f"{subject} is made in eager code: each rank computes with its own, and no result is that of all. {advice}"
    )


def note_iterator(iterator: Any, dataset: Any) -> None:
    """Record that `iterator` gives batches of `dataset`, in eager code or in the trace of a function."""
    if world.is_active() and not is_alone() and shard_arrays.is_shard(dataset):
        note_dataset(dataset)
        tags.set_tag(iterator, _OWN, True)
        # An eager handle: a function may take it as an argument or capture it, without the iterator.
        if hasattr(iterator._iterator_resource, "numpy"):
            tags.set_tag(iterator._iterator_resource, _OWN, True)


def note_dataset(dataset: Any) -> None:
    """Mark the handles of `dataset`, so that functions which take or capture it know its rows as this rank's own."""
    _require_batches(dataset)
    for stage in slice_bounds.list_pipeline(dataset):
        if shard_arrays.is_shard(stage) and hasattr(stage._variant_tensor, "numpy"):
            tags.set_tag(stage._variant_tensor, _OWN, True)


def require_shared(source: Any) -> None:
    """Called as a function takes from `source` in its trace. Raises UnsupportedError if `source` gives own rows, and
    ranks do not share the function: each rank would compute its rows as if all ranks had them.
    """
    if world.is_active() and not is_alone() and not capture.tracing.is_on and is_own(source):
        raise errors.UnsupportedError(explain_obstacle("a function", "it is not traced as a step that ranks share"))


def explain_obstacle(place: str, why: str) -> str:
    return (
        f"{place} takes batches of each rank's own rows (matex_tf.shard, DataSet), and the ranks cannot compute it "
        f"together: {why}. Loop over the dataset in eager code and call a tf.function for each batch, or give every "
        "rank all of the data"
    )


def is_own(source: Any) -> bool:
    """Whether an iterator, a dataset, or an eager tensor that stands for one in a function, gives a rank's own rows."""
    is_shard = hasattr(source, "element_spec") and shard_arrays.is_shard(source)
    return is_shard or bool(tags.get_tag(source, _OWN, False))


def _require_batches(dataset: Any) -> None:
    """Raises UnsupportedError for a dataset that does not give batches of rows that ranks can combine."""
    try:
        if slice_bounds.is_batched(dataset) is False:
            raise own_batches.OwnRowsError("it gives single rows; put .batch(...) at its end")
        specs = tf.nest.flatten(dataset.element_spec, expand_composites=False)
        variant = tf.TensorSpec([], tf.variant)  # stands for a component that is no dense tensor
        components = [spec if isinstance(spec, tf.TensorSpec) else variant for spec in specs]
        own_batches.check_components([(spec.dtype, spec.shape) for spec in components])
    except own_batches.OwnRowsError as error:
        raise errors.UnsupportedError(
            f"a tf.data.Dataset of each rank's own rows ({dataset.element_spec}) cannot be iterated: {error}"
        ) from None


def take_whole(iterator: Any) -> Any:
    """The next batch of all ranks, from an iterator over this rank's own rows, in eager code. Collective.

    Raises tf.errors.OutOfRangeError on every rank, once no rank has a batch.
    """
    spec = iterator.element_spec
    name = f"{_TAKER} of {world.get_world().size} ranks"
    taker = tags.get_or_make_tag(iterator, name, lambda: _make_taker(name, repr(spec), tuple(tf.nest.flatten(spec))))
    return tf.nest.pack_sequence_as(spec, taker(iterator._iterator_resource))


@functools.lru_cache(maxsize=64)
def _make_taker(name: str, spec_text: str, specs: Any) -> Any:
    """A function that takes whole batches of these specs. name, spec_text: only parts of the cache's key, since equal
    flat specs may have another structure.
    """
    exchanger = RankExchanger("the next batch of each rank's own rows")
    make_own_slice = functools.partial(slices.make_own_slice, exchanger)

    def take(resource: Any) -> list[Any]:
        tensors, own_rows = own_batches.take_own_rows(make_own_slice, "IteratorGetNext", resource, specs)
        return own_batches.gather_rows(exchanger, tensors, own_rows.batch_slice)

    return trace_own(take, input_signature=[tf.TensorSpec([], tf.resource)])


def make_arrays_whole(arrays: Any, doing: str) -> Any:
    """The structure with the rows of all ranks in place of each array of own rows. Collective if it has such arrays.

    doing: names the call in messages.
    """
    leaves = tf.nest.flatten(arrays, expand_composites=False)
    are_shards = [isinstance(leaf, np.ndarray) and shard_arrays.is_shard(leaf) for leaf in leaves]
    if not any(are_shards) or not world.is_active() or is_alone():
        return arrays
    own_arrays = [leaf for leaf, is_shard in zip(leaves, are_shards) if is_shard]
    joined_arrays = iter(exchange.join_rows(own_arrays, f"the rows that {doing} is given"))
    whole_leaves = [next(joined_arrays) if is_shard else leaf for leaf, is_shard in zip(leaves, are_shards)]
    return tf.nest.pack_sequence_as(arrays, whole_leaves)
