"""How far a pipeline of the library's reads ahead: where that shows, as far as the script's own.

What a generator, a `PyDataset` or another Python object has given does not come again. An iterator that ends before its
data do loses what it has read ahead: the next one begins behind that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matex_tf.analysis import pipeline_shapes
from matex_tf.sharding import row_shares


def read_alike(dataset: Any, make: Callable[[Any], Any]) -> Any:
    """The dataset that `make` gives for `dataset`, read as far ahead as the script alone reads `dataset`.

    `make` gets the dataset without the `prefetch` that is its last step, which comes after what it makes, and may not
    itself read ahead. TensorFlow lets the number of elements grow from 1 on where a script leaves it the choice; here
    it stays 1, on all ranks alike. A pipeline that gives the same in each iteration is read ahead as it suits.
    """
    import tensorflow as tf

    if not any(map(pipeline_shapes.has_outside_state, row_shares.list_pipeline(dataset))):
        return make(dataset).prefetch(tf.data.AUTOTUNE)
    last, _ = pipeline_shapes.skip_kinds(dataset, ("OptionsDataset",))
    if pipeline_shapes.name_kind(last) == "PrefetchDataset":
        ahead = int(last._buffer_size)
        result = make(last._input_dataset.with_options(dataset.options()))
    else:
        ahead = tf.data.AUTOTUNE if _adds_prefetch(last, dataset.options()) else 0
        result = make(dataset)
    ahead = 1 if ahead == tf.data.AUTOTUNE else ahead
    return result.prefetch(ahead) if ahead else result


def _adds_prefetch(last: Any, options: Any) -> bool:
    """Whether TensorFlow adds a `prefetch` to a pipeline of which `last` is the last step."""
    is_off = options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False
    return not is_off and not pipeline_shapes.name_kind(last).startswith("Parallel")
