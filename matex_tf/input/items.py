"""Is an item of a Python object a function of its number, whichever rank makes it, and after whichever other items?

Keras makes the first two items of a `PyDataset` before training, to learn their shapes. Here rank 0 makes them in that
order and the others the other way round. An item that depends on what was made before then differs between ranks.
"""

from __future__ import annotations

import gc
import pickle
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from matex_tf.runtime import objects, seeding
from matex_tf.sharding import fingerprint
from matex_tf.world import world

FIRST = (0, 1)
"""The numbers of the items that are compared."""


class Found(NamedTuple):
    """What ranks have found of the items `FIRST`.

    made: these items.
    why: why an item is no function of its number; empty if nothing speaks against it.
    seconds: what making one took, on the rank that was fastest.
    """

    made: list[Any]
    why: str
    seconds: float


def compare_items(source: Any, name: str) -> Found:
    """The items `FIRST` of `source`, compared on all ranks. Collective.

    Where an item draws random numbers, all generators are afterwards where the script alone would have them.

    Args:
        source: gives items by number.
        name: of the source, in messages.

    Raises:
        RankError: where another rank cannot make an item; this rank's own error if it cannot.
    """
    me = world.get_world()
    made, moved, seconds, failed = {}, False, 0.0, None
    before = Generators(source)
    try:
        for number in FIRST if me.rank == 0 else reversed(FIRST):
            watched, began = Generators(source), time.perf_counter()
            made[number] = source[number]
            seconds = time.perf_counter() - began
            moved = watched.are_moved() or moved
        if moved and me.rank > 0:
            before.put_back()
            made = {number: source[number] for number in FIRST}
    except Exception as error:
        failed = error
    what = f"items {FIRST[0]} and {FIRST[1]} of {name}"
    digests = [] if failed else [_digest(made[number]) for number in FIRST]
    told = f"{type(failed).__name__}: {failed}" if failed else ""
    everyone = objects.allgather((digests, moved, seconds, told), f"comparing {what}")
    if failed:
        raise failed
    for rank, (_, _, _, text) in enumerate(everyone):
        if text:
            raise world.RankError(f"rank {rank} ({me.hosts[rank]}) cannot make {what}: {text}")
    other = next((rank for rank, one in enumerate(everyone) if one[0] != everyone[0][0]), 0)
    why = f"ranks 0 and {other} made different items of the same number" if other else ""
    if any(one[1] for one in everyone):
        why = "the making of an item draws random numbers"
    return Found([made[number] for number in FIRST], why, min(one[2] for one in everyone))


def _digest(item: Any) -> int:
    import tensorflow as tf

    total = 0
    for leaf in tf.nest.flatten(item):
        total = fingerprint.digest_value(leaf, total)
    return total


class Generators:
    """The states of random generators: the global ones of Python, NumPy and TensorFlow, and those that an object, or a
    module of its classes, holds.
    """

    def __init__(self, holder: Any):
        self._found = list({id(one): one for one in _list_generators(holder)}.values())
        self._states = [_kind_of(one).get(one) for one in self._found]
        self._spawned = seeding.count_spawned()

    def are_moved(self) -> bool:
        """Whether numbers have been drawn since."""
        now = [_kind_of(one).get(one) for one in self._found]
        return pickle.dumps(now) != pickle.dumps(self._states) or seeding.count_spawned() != self._spawned

    def put_back(self) -> None:
        for one, state in zip(self._found, self._states):
            _kind_of(one).put(one, state)
        seeding.spawn_from(self._spawned)


class _Kind(NamedTuple):
    type: type
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], object]


def _list_kinds() -> list[_Kind]:
    import tensorflow as tf

    kinds = [
        _Kind(random.Random, lambda one: one.getstate(), lambda one, state: one.setstate(state)),
        _Kind(np.random.RandomState, lambda one: one.get_state(), lambda one, state: one.set_state(state)),
        _Kind(np.random.Generator, lambda one: one.bit_generator.state, _put_state_of_bits),
        _Kind(tf.random.Generator, lambda one: one.state.numpy(), lambda one, state: one.state.assign(state)),
    ]
    of_keras = getattr(sys.modules.get("keras.random"), "SeedGenerator", None)
    if of_keras is not None:
        kinds.append(_Kind(of_keras, lambda one: np.array(one.state), lambda one, state: one.state.assign(state)))
    return kinds


def _put_state_of_bits(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


def _kind_of(one: Any) -> _Kind:
    return next(kind for kind in _list_kinds() if isinstance(one, kind.type))


def _list_generators(holder: Any) -> Iterator[Any]:
    from tensorflow.python.eager import context

    kinds = tuple(kind.type for kind in _list_kinds())
    modules = [sys.modules[one.__module__] for one in type(holder).__mro__ if one.__module__ in sys.modules]
    pending = [random._inst, np.random.mtrand._rand, getattr(context.context(), "_rng", None), holder]
    pending += [one for module in modules for one in vars(module).values() if isinstance(one, kinds)]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if id(one) in seen or isinstance(one, (*_NOT_ENTERED, random.SystemRandom)):
            continue
        seen.add(id(one))
        if isinstance(one, kinds):
            yield one
        elif isinstance(one, types.FunctionType):
            pending += one.__closure__ or ()
        else:
            pending += gc.get_referents(one)


_NOT_ENTERED = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.CodeType, types.FrameType)
