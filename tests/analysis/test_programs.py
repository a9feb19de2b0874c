"""Two traces of a step, one for an open number of rows: does Python make the same in both?"""

from __future__ import annotations

import pytest
import tensorflow as tf

from matex_tf.analysis import declarations, programs
from matex_tf.analysis.placement import ROWS

MADE = {
    "a factor": lambda x, rows, scale: tf.reduce_mean(x**2.0) * scale,
    "a factor of the number of rows": lambda x, rows, scale: (
        tf.reduce_sum(x**2.0) / (tf.cast(rows, tf.float64) * scale)
    ),
    "a whole number beside one": lambda x, rows, scale: (
        tf.reduce_sum(x**2.0) / tf.cast(rows * int(scale), tf.float64) + 2.0 * tf.reduce_mean(x)
    ),
    "of rows that are chosen": lambda x, rows, scale: (
        tf.reduce_sum(x**2.0) / (tf.cast(tf.shape(tf.boolean_mask(x, x[:, 0] > 0))[0], tf.float64) + scale)
    ),
    "columns that are taken": lambda x, rows, scale: tf.reduce_mean(x[:, : int(scale)] ** 2.0),
    "how often they are": lambda x, rows, scale: tf.reduce_sum(tf.tile(x, [1, int(scale)]) ** 2.0),
    "rows but the last": lambda x, rows, scale: tf.reduce_sum(x[: rows - int(scale)] ** 2.0),
    "beside labels of zeros and ones": lambda x, rows, scale: tf.reduce_sum(
        tf.concat([x, x], 0)[:, 0] * labels(x) * scale
    ),
    "what one turn of a loop adds": lambda x, rows, scale: tf.while_loop(
        lambda turn, _: turn < 3, lambda turn, sum_: [turn + 1, sum_ + tf.cast(turn, x.dtype) * scale * x[0, 0]],
        [0, tf.constant(2.0, x.dtype)],
    )[1],
}  # fmt: skip


def labels(x):
    """Whole numbers of two batches below one another, which are constants where the number of rows is known."""
    kinds = tf.cast(x[:, 0] > 0, tf.int64)
    return tf.cast(tf.concat([tf.zeros_like(kinds), tf.ones_like(kinds)], 0), x.dtype)


def traced(made, rows, scale, is_python):
    """The graph of a step for so many `rows`, asked for by Python or by an op; None: any number."""

    @tf.function(autograph=False)
    def step(x):
        if rows is None:
            declarations.declare_placement(x, ROWS)
        return made(x, rows if is_python and rows else tf.shape(x)[0], scale)

    return step.get_concrete_function(tf.TensorSpec([rows, 3], tf.float64)).graph


@pytest.mark.parametrize("is_python", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_a_constant_that_python_switches_to_is_seen(name, is_python):
    own = programs.read_program(traced(MADE[name], 20, 1.0, is_python))
    for scale in (1.0, 2.0):
        found = programs.read_program(traced(MADE[name], None, scale, is_python), own)
        assert found.is_unlike(own) == (scale != 1.0)
