"""A batch that a step takes from an iterator by itself, maybe in a function that it calls, is sharded."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

from matex_tf.rewrite.placement import PARTIAL, REPLICATED, WHOLE
from matex_tf.rewrite.propagate import read_program


def _take(iterator):
    return tf.reduce_sum(next(iterator), 0)


@pytest.mark.parametrize("step", [_take, lambda iterator: tf.function(_take)(iterator)], ids=["itself", "in a call"])
def test_what_an_iterator_gives_has_the_placement_of_its_source(step):
    iterator = iter(tf.data.Dataset.from_tensor_slices(tf.ones([4, 3])).batch(4))
    graph = tf.function(step, autograph=False).get_concrete_function(iterator).graph
    placements = [WHOLE] * len(graph.inputs)
    assert read_program(graph, placements).outputs[0].placement.kind == PARTIAL
    assert read_program(graph, placements, takes_batches=False).outputs[0].placement.kind == REPLICATED
