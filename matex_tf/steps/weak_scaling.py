"""Weak scaling: the script's batch is each rank's own, so a global batch consists of one batch for each rank.

With 4 ranks, a step then takes 4 of the script's batches, and each rank's slice is one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf import settings, tags
from matex_tf.lazy import tf
from matex_tf.runtime import notes
from matex_tf.steps import slices
from matex_tf.world import world

_LOOP = "the loop of weak scaling"
UNEVEN = "rows of batches that a step of weak scaling joins have different sizes"
_training_calls = 0


def note_training_call() -> None:
    global _training_calls
    _training_calls += 1


def is_on() -> bool:
    return settings.get_settings().scaling == "weak" and world.is_active()


class _Loop:
    """The state of an iterator in eager code.

    calls: the number of training steps before its last batch; None before its first batch.
    trains: whether the loop over the iterator trains.
    """

    calls: int | None = None
    trains = False


def take_next(iterator: Any, pull: Callable[[], Any]) -> Any:
    """The next element of an iterator in eager code; from `pull`, which takes one batch.

    Once a step has trained between two of its batches, the loop trains: each element is then the concatenation of one
    batch for each rank.
    """
    loop = tags.get_or_make_tag(iterator, _LOOP, _Loop)
    if not loop.trains and loop.calls not in (None, _training_calls):
        loop.trains = True
        say_weak("the batches of loops that train are each rank's own")
    batches = [pull()]
    while loop.trains and len(batches) < world.get_world().trainers:
        try:
            batches.append(pull())
        except tf.errors.OutOfRangeError:
            break
    loop.calls = _training_calls
    if len(batches) == 1:
        return batches[0]
    return tf.nest.map_structure(lambda *parts: _join_batches(parts), *batches, expand_composites=False)


def say_weak(what: str) -> None:
    me = world.get_world()
    notes.print_note(f"weak scaling: {what}; a step computes {me.trainers} of them. Learning rates stay as they are")


def group_source(source: Any) -> Any:
    """A dataset whose batches are each the concatenation of one batch of `source` for each rank."""
    specs = tf.nest.flatten(getattr(source, "element_spec", None), expand_composites=False)
    if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        notes.print_note(
            "weak scaling: batches of generators, of Python objects, and of sparse or ragged tensors are trained on as "
            "they are, each by all ranks. Give fit arrays or a tf.data.Dataset of dense tensors"
        )
        return source
    say_weak("the batches of the dataset given to fit are each rank's own")

    def join(batches: Any) -> Any:
        """Join a component whose first axis counts the batches. One without rows: the first."""
        if batches.shape.rank == 1:
            return batches[0]
        if not isinstance(batches, tf.RaggedTensor):
            return tf.reshape(batches, [-1, *batches.shape[2:]])
        joined = batches.merge_dims(0, 1)
        if not isinstance(joined, tf.RaggedTensor):
            return joined
        whole = joined.to_tensor()
        return slices.require(tf.equal(tf.size(whole), tf.size(joined.flat_values)), [UNEVEN], whole)

    def join_all(*batches: Any) -> Any:
        return tf.nest.map_structure(join, batches if len(batches) > 1 else batches[0])

    return source.ragged_batch(world.get_world().trainers).map(join_all).prefetch(tf.data.AUTOTUNE)


def _join_batches(batches: Any) -> Any:
    """Concatenate a component of several batches."""
    if isinstance(batches[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(batches))
    return tf.concat(list(batches), 0) if batches[0].shape.rank else batches[0]
