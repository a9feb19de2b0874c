"""The same random numbers on all ranks where the script draws them for everybody: initial weights, the order of data.

A script that seeds itself has them already and is left alone; `agree_on_seeds` is for one that does not.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import secrets
from typing import Any

import numpy as np

from matex_tf.runtime import objects
from matex_tf.runtime.hooks import Table, call_when_imported
from matex_tf.world import world

HOOKS = Table()

_roots: list[np.random.SeedSequence] = []
"""What NumPy's generators without a seed are made of."""


class _AgreedSeed(int):
    """The global seed of TensorFlow that ranks have agreed on, while the script has set none."""


def agree_on_seeds(entropy: int | None = None) -> int:
    """Give every rank the generator states of rank 0, where they differ; what all else is drawn from is returned.

    Those of Python's, NumPy's and TensorFlow's generators are as random as the script's own would have been.

    `entropy` is that of a run which goes on: it draws what it drew before.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    digest = hashlib.sha256(pickle.dumps((python_state, numpy_state))).hexdigest()
    if entropy is None:
        entropy = secrets.randbits(128) if world.get_world().rank == 0 else 0
    if len(set(objects.allgather(digest, "comparing the states of random generators"))) > 1:
        states = objects.broadcast((python_state, numpy_state), "sending those of rank 0")
        random.setstate(states[0])
        np.random.set_state(states[1])
    entropy = objects.broadcast(entropy, "sending what random numbers are drawn from")
    call_when_imported("tensorflow", lambda _: _seed_tensorflow(_AgreedSeed(entropy % (1 << 31))))
    _roots[:] = [np.random.SeedSequence(entropy)]
    HOOKS.install()
    return entropy


def count_spawned() -> int:
    """How many generators NumPy has made without a seed."""
    return _roots[0].n_children_spawned if _roots else 0


def spawn_from(number: int) -> None:
    """The next generator without a seed is this one of those that NumPy makes, counted from 0."""
    _roots[:] = [
        np.random.SeedSequence(one.entropy, spawn_key=one.spawn_key, n_children_spawned=number) for one in _roots
    ]


def _seed_tensorflow(seed: int) -> None:
    """Seed TensorFlow, unless the script has: it may have imported it before `matex_tf`."""
    from tensorflow.python.eager import context

    if context.global_seed() is None:
        context.set_global_seed(seed)


@HOOKS.replace(
    "tensorflow.python.framework.random_seed", "get_seed", "random ops with a seed of their own draw other numbers"
)
def _wrap_get_seed(original: Any) -> Any:
    """An op with a seed draws the same in every run of a script that sets no global seed."""

    def get_seed(op_seed: int | None) -> Any:
        import tensorflow as tf
        from tensorflow.python.eager import context
        from tensorflow.python.framework import random_seed

        seed = context.global_seed() if tf.executing_eagerly() else tf.compat.v1.get_default_graph().seed
        if op_seed is not None and isinstance(seed, _AgreedSeed):
            return random_seed.DEFAULT_GRAPH_SEED, random_seed._truncate_seed(op_seed)
        return original(op_seed)

    return get_seed


@HOOKS.replace("numpy.random", "default_rng", "ranks draw different numbers without a seed", later=True)
def _wrap_default_rng(original: Any) -> Any:
    """Without a seed it takes the operating system's entropy; ranks take rank 0's."""

    def default_rng(seed: Any = None) -> np.random.Generator:
        return original(_roots[0].spawn(1)[0] if seed is None else seed)

    return default_rng
