"""Equal random numbers on all ranks for scripts without seeds: for initial weights, the order of data, and other draws.

`agree_on_seeds` gives all ranks the states of rank 0's Python and NumPy generators, and a random number of rank 0, the
entropy. From the entropy come the global seed of TensorFlow, and a child seed for each call of `default_rng()`. The
ranks have to make these calls in the same order. What a script seeds itself is equal on all ranks already.
"""

from __future__ import annotations

import random
import secrets
from typing import Any

import numpy as np

from matex_tf.lazy import tf
from matex_tf.runtime import objects
from matex_tf.runtime.hooks import Table, call_when_imported

HOOKS = Table()

_roots: list[np.random.SeedSequence] = []
"""One seed sequence, of which each NumPy generator without a seed gets a child; none before the ranks have agreed."""


class _AgreedSeed(int):
    """The global TensorFlow seed on which ranks have agreed. A seed that the script sets has another class."""


def agree_on_seeds(entropy: int | None = None) -> int:
    """Copy the states of rank 0's Python and NumPy generators, and the entropy, to all ranks. Returns the entropy, from
    which TensorFlow and NumPy generators without a seed are seeded. Collective.

    Without seeds in the script, each new run draws other numbers, as the script alone does.

    `entropy`: the entropy of a run that is resumed, which repeats its draws; None for a new run, which draws one.
    """
    own_states = (random.getstate(), np.random.get_state(), secrets.randbits(128) if entropy is None else entropy)
    python_state, numpy_state, entropy = objects.broadcast(own_states, "sending the states of random generators")
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    call_when_imported("tensorflow", lambda _: _seed_tensorflow(_AgreedSeed(entropy % (1 << 31))))
    _roots[:] = [np.random.SeedSequence(entropy)]
    HOOKS.install()
    return entropy


def count_spawned() -> int:
    """The number of NumPy generators that this process has created without a seed so far."""
    return _roots[0].n_children_spawned if _roots else 0


def spawn_from(number: int) -> None:
    """Count the next NumPy generator without a seed as number `number`, from 0. With an earlier result of
    `count_spawned`, the generators after it repeat.
    """
    _roots[:] = [
        np.random.SeedSequence(root.entropy, spawn_key=root.spawn_key, n_children_spawned=number) for root in _roots
    ]


def _seed_tensorflow(seed: int) -> None:
    """Seed TensorFlow, unless the script has: it may have imported TensorFlow before `matex_tf`."""
    from tensorflow.python.eager import context

    if context.global_seed() is None:
        context.set_global_seed(seed)


@HOOKS.replace(
    "tensorflow.python.framework.random_seed", "get_seed", "random ops with a seed of their own draw other numbers"
)
def _wrap_get_seed(original: Any) -> Any:
    """If the script sets no global seed, let an op with a seed of its own draw the numbers of the script alone.

    There TensorFlow combines the op's seed with its default global seed, so the op draws the same numbers in every run.
    For such an op, this hook replaces the agreed global seed by the default one.
    """

    def get_seed(op_seed: int | None) -> Any:
        from tensorflow.python.eager import context
        from tensorflow.python.framework import random_seed

        seed = context.global_seed() if tf.executing_eagerly() else tf.compat.v1.get_default_graph().seed
        if op_seed is not None and isinstance(seed, _AgreedSeed):
            return random_seed.DEFAULT_GRAPH_SEED, random_seed._truncate_seed(op_seed)
        return original(op_seed)

    return get_seed


@HOOKS.replace("numpy.random", "default_rng", "ranks draw different numbers without a seed", later=True)
def _wrap_default_rng(original: Any) -> Any:
    """Without a seed, the original uses the operating system's entropy; ranks use the agreed one."""

    def default_rng(seed: Any = None) -> np.random.Generator:
        return original(_roots[0].spawn(1)[0] if seed is None else seed)

    return default_rng
