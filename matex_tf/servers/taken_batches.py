"""The batches that this rank takes of a pipeline: whole ones, by their place in it. Every rank runs the pipeline."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from matex_tf.analysis import pipeline_shapes
from matex_tf.servers import store
from matex_tf.sharding import fingerprint, iteration, py_functions

Taken = collections.namedtuple("Taken", ["place", "data"])
"""A whole batch, which this rank trains by itself, and its place in the pipeline."""


def take_batches(dataset: Any, are_arrays: bool, on_first: Callable[[tuple[int, int]], None]) -> Any:
    """A dataset of `Taken`: of the batches of `dataset` those at the places that this rank wants when it asks.

    `are_arrays`: it is Keras' pipeline over arrays, of which the batches of others are left out before their rows are
    gathered. `on_first` is called with (rows, hash) of the first batch of each iteration, or of its indices.
    """
    import tensorflow as tf

    parts = pipeline_shapes.match_arrays(dataset) if are_arrays else None
    if parts is None:
        made = _select_wanted(dataset, on_first)
    else:
        indices, data, grab = parts
        made = tf.data.Dataset.zip((_select_wanted(indices, on_first), data)).map(
            lambda mine, arrays: Taken(_prevent_read_ahead(mine.place), grab(mine.data, arrays))
        )
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # what is wanted shows when it is asked for
    return iteration.exempt_dataset(made.with_options(options))


def _prevent_read_ahead(place: Any) -> Any:
    """`place`, by an op with a state: else tf.data makes the map around it a parallel one, which reads ahead."""
    import tensorflow as tf

    with tf.control_dependencies([store.is_wanted(place)]):
        return tf.identity(place)


def _select_wanted(dataset: Any, on_first: Callable[[tuple[int, int]], None]) -> Any:
    import tensorflow as tf

    spec = dataset.element_spec

    def show(*parts: Any) -> bool:
        on_first(fingerprint.digest_batch(tf.nest.pack_sequence_as(spec, parts, expand_composites=True)))
        return True

    def is_wanted(one: Taken) -> Any:
        parts = tf.nest.flatten(one.data, expand_composites=True)
        shown = tf.cond(one.place == 0, lambda: tf.py_function(show, parts, tf.bool), lambda: tf.constant(True))
        with tf.control_dependencies([shown]):
            return store.is_wanted(one.place)

    return py_functions.hold_py_functions(lambda: dataset.enumerate().map(Taken).filter(is_wanted))
