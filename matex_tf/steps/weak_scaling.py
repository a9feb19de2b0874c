"""Weak scaling: a global batch is the concatenation of several of the script's batches, one for each rank.

With 4 ranks, a step takes 4 of the script's batches, and each rank's slice is one of them.
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
_trained_steps = 0
"""The number of calls of shared training steps until now. `take_next` finds by it whether a loop trains."""


def note_training_call() -> None:
    global _trained_steps
    _trained_steps += 1


def is_on() -> bool:
    return settings.get_settings().scaling == "weak" and world.is_active()


class _Loop:
    """The state of a loop of the script over an iterator, in eager code.

    steps_before: the value of `_trained_steps` when the loop took its last batch; None before the first batch.
    trains: a step has trained between two batches of the loop.
    """

    steps_before: int | None = None
    trains = False


def take_next(iterator: Any, pull: Callable[[], Any]) -> Any:
    """The next element of an iterator in eager code. `pull` takes one batch of the script from the iterator.

    Loops that do not train, for example to evaluate, get the script's batches. Once a step has trained between two
    batches of a loop, each further element is the concatenation of one batch for each rank.
    """
    loop = tags.get_or_make_tag(iterator, _LOOP, _Loop)
    has_trained = loop.steps_before is not None and loop.steps_before != _trained_steps
    if has_trained and not loop.trains:
        loop.trains = True
        say_weak("the batches of loops that train are each rank's own")
    batches = [pull()]
    while loop.trains and len(batches) < world.get_world().trainers:
        try:
            batches.append(pull())
        except tf.errors.OutOfRangeError:  # the last element consists of the batches that are left
            break
    loop.steps_before = _trained_steps
    if len(batches) == 1:
        return batches[0]
    return tf.nest.map_structure(_join_batches, *batches, expand_composites=False)


def say_weak(subject: str) -> None:
    me = world.get_world()
    notes.print_note(f"weak scaling: {subject}; a step computes {me.trainers} of them. Learning rates stay as they are")


def say_steps_decide() -> None:
    notes.print_note(
        "weak scaling: fit has steps_per_epoch and no batch_size, so the number of steps stays, and ranks divide each "
        "step's rows. Give batch_size in place of it for a batch of each rank's own"
    )


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

    # `ragged_batch` below puts one batch for each rank on a new axis 0. It does not need batches of equally many rows:
    # the last batch of an epoch may have fewer. If all shapes are fixed, the result is a dense tensor.
    def join_component(batches: Any) -> Any:
        """Concatenate a component of the batches, given with the added axis 0: from (ranks, rows, ...) to (rows, ...).

        A component without rows, such as one number for each batch, cannot be concatenated: the result is the component
        of the first batch.
        """
        if batches.shape.rank == 1:
            return batches[0]
        if not isinstance(batches, tf.RaggedTensor):
            return tf.reshape(batches, [-1, *batches.shape[2:]])
        joined_rows = batches.merge_dims(0, 1)
        if not isinstance(joined_rows, tf.RaggedTensor):
            return joined_rows
        # The joined tensor remains ragged if sizes of a row may differ. `to_tensor` pads where they do differ; the
        # script's step would compute the padding, so this is an error.
        dense_tensor = joined_rows.to_tensor()
        return slices.require(tf.equal(tf.size(dense_tensor), tf.size(joined_rows.flat_values)), [UNEVEN], dense_tensor)

    def join_element(*components: Any) -> Any:
        return tf.nest.map_structure(join_component, components if len(components) > 1 else components[0])

    return source.ragged_batch(world.get_world().trainers).map(join_element).prefetch(tf.data.AUTOTUNE)


def _join_batches(*batches: Any) -> Any:
    """Concatenate a component of several batches, as `join_component` does for `fit`."""
    if isinstance(batches[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(batches))
    return tf.concat(list(batches), 0) if batches[0].shape.rank else batches[0]
