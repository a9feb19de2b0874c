"""Random numbers within a training step: each rank draws its own for its slice.

Keras 3 draws by a `SeedGenerator`, whose state advances on all ranks alike; what it gives for a sliced step is folded
with the rank. Rank 0, whole batches and the functions of a data pipeline draw as the script alone does.
"""

from __future__ import annotations

import threading
from typing import Any

from matex_tf.loops.parts import draws
from matex_tf.runtime.hooks import Table
from matex_tf.sharding import step_weight
from matex_tf.world import world

HOOKS = Table()

_STRIDE = 0x3C6EF372  # far apart, so that seeds of neighbouring layers do not meet those of neighbouring ranks
_pipelines = threading.local()


@HOOKS.replace(
    "tensorflow.python.data.ops.structured_function",
    "StructuredFunctionWrapper.__init__",
    "ranks draw different numbers in a pipeline",
)
def _wrap_pipeline_function(original: Any) -> Any:
    def __init__(self, *args, **kwargs):
        depth = getattr(_pipelines, "depth", 0)
        _pipelines.depth = depth + 1
        try:
            original(self, *args, **kwargs)
        finally:
            _pipelines.depth = depth

    return __init__


@HOOKS.replace(
    "keras.src.random.seed_generator",
    "SeedGenerator.next",
    "ranks draw the same for their slices",
    since="3",
    early=True,
)
def _wrap_next(original: Any) -> Any:
    def next(self, *args, **kwargs):
        return draws.draw_seed(lambda: of_rank(original(self, *args, **kwargs)))

    def of_rank(seed):
        if not world.is_active() or getattr(_pipelines, "depth", 0) > 0 or step_weight.is_in_session_graph():
            return seed
        import tensorflow as tf

        if not isinstance(seed, tf.Tensor):
            return seed
        fold = tf.constant((world.get_world().rank * _STRIDE) % 0x7FFFFFFF, tf.int64)
        if not step_weight.is_alone():
            fold = tf.where(step_weight.read_numbers()[3] > 0, fold, tf.zeros_like(fold))
        return seed + tf.cast(tf.stack([fold, tf.zeros_like(fold)]), seed.dtype)

    return next
