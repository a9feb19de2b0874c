"""Checks whether an item of a Python object is a function of its number, on any rank, and after any other items.

Keras makes the first two items of a `PyDataset` before training, to learn their shapes. Here rank 0 makes them in that
order and the other ranks in the reverse order, so an item that depends on earlier items differs between ranks. An item
is no function of its number, either, if making it draws random numbers or changes the object.
"""

from __future__ import annotations

import gc
import pickle
import random
import sys
import time
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors, ops
from matex_tf.lazy import tf
from matex_tf.runtime import objects, seeding
from matex_tf.sharding import fingerprint
from matex_tf.world import world

FIRST = (0, 1)
"""The numbers of the items that are compared."""


class Found(NamedTuple):
    """The result of the comparison of the items `FIRST`.

    made: these items.
    why: the reason why an item is no function of its number; empty if none was found.
    seconds: the time to make one, on the fastest rank.
    """

    made: list[Any]
    why: str
    seconds: float


def compare_items(source: Any, name: str) -> Found:
    """Compare the items `FIRST` of `source` between all ranks. Collective.

    If an item draws random numbers or sets attributes of `source`, these have the script's own values afterwards.

    Args:
        source: gives items by number.
        name: of the source, in messages.

    Raises:
        RankError: another rank cannot make an item. If this rank cannot, it raises its own error.
    """
    me = world.get_world()
    made, draws, changed, seconds, failed = {}, False, "", 0.0, None
    try:
        first = before = State(source)
        for number in FIRST if me.rank == 0 else reversed(FIRST):
            began = time.perf_counter()
            made[number] = source[number]
            seconds = time.perf_counter() - began
            now = State(source)
            draws, changed = before.is_drawn_from() or draws, before.find_changed(now)
            before = now  # the first item may have opened a file
        if (draws or changed) and me.rank > 0 and first.can_be_put_back():
            first.put_back()
            made = {number: source[number] for number in FIRST}
    except Exception as error:
        failed = error
    what = f"items {FIRST[0]} and {FIRST[1]} of {name}"
    digests = [] if failed else [source.num_batches, *(_digest(made[number]) for number in FIRST)]
    told = f"{type(failed).__name__}: {failed}" if failed else ""
    everyone = objects.allgather((digests, draws, changed, seconds, told), f"comparing {what}")
    if failed:
        raise failed
    for rank, (*_, text) in enumerate(everyone):
        if text:
            raise errors.RankError(f"rank {rank} ({me.hosts[rank]}) cannot make {what}: {text}")
    other = next((rank for rank, one in enumerate(everyone) if one[0] != everyone[0][0]), 0)
    attribute = next((one[2] for one in everyone if one[2]), "")
    why = f"ranks 0 and {other} made different items of the same number" if other else ""
    why = f"the making of an item changes its attribute {attribute!r}" if attribute else why
    why = "the making of an item draws random numbers" if any(one[1] for one in everyone) else why
    return Found([made[number] for number in FIRST], why, min(one[3] for one in everyone))


def _digest(item: Any) -> int:
    total = 0
    for leaf in tf.nest.flatten(item):
        total = fingerprint.digest_value(leaf, total)
    return total


class State:
    """State that making an item may change: an object, its random generators and those of its classes' modules, and the
    global generators of Python, NumPy and TensorFlow.
    """

    def __init__(self, holder: Any):
        self._holder = holder
        walk = _Walk(holder)
        for one in _list_global(holder):
            walk.visit(one)
        self._values = dict(vars(holder))
        self._attributes = {name: walk.visit(value) for name, value in list(vars(holder).items())}
        self._generators = list(walk.generators.values())
        self._states = [_kind_of(one).get(one) for one in self._generators]
        self._spawned = seeding.count_spawned()

    def is_drawn_from(self) -> bool:
        """Whether random numbers have been drawn since."""
        now = [_kind_of(one).get(one) for one in self._generators]
        return pickle.dumps(now) != pickle.dumps(self._states) or seeding.count_spawned() != self._spawned

    def can_be_put_back(self) -> bool:
        """Whether no attribute value was changed in place; then restoring the references suffices."""
        walk = _Walk(self._holder)
        for one in _list_global(self._holder):
            walk.visit(one)
        return all(walk.visit(value) == self._attributes[name] for name, value in self._values.items())

    def put_back(self) -> None:
        """Restore the states of the generators, and the attributes of the object."""
        vars(self._holder).clear()
        vars(self._holder).update(self._values)
        for one, state in zip(self._generators, self._states):
            _kind_of(one).put(one, state)
        seeding.spawn_from(self._spawned)

    def find_changed(self, later: State) -> str:
        """An attribute of the object that differs in a `later` state; empty if none does."""
        now = later._attributes
        names = [*self._attributes, *(name for name in now if name not in self._attributes)]
        return next((name for name in names if now.get(name) != self._attributes.get(name)), "")


class _Kind(NamedTuple):
    type: type
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], object]


def _list_kinds() -> list[_Kind]:
    kinds = [
        _Kind(random.Random, lambda one: one.getstate(), lambda one, state: one.setstate(state)),
        _Kind(np.random.RandomState, lambda one: one.get_state(), lambda one, state: one.set_state(state)),
        _Kind(np.random.Generator, lambda one: one.bit_generator.state, _put_state_of_bits),
        _Kind(tf.random.Generator, lambda one: one.state.numpy(), lambda one, state: one.state.assign(state)),
    ]
    of_keras = getattr(sys.modules.get("keras.random"), "SeedGenerator", None)
    if of_keras is not None:
        kinds.append(_Kind(of_keras, lambda one: one.state.numpy(), lambda one, state: one.state.assign(state)))
    return kinds


def _put_state_of_bits(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


def _kind_of(one: Any) -> _Kind:
    return next(kind for kind in _list_kinds() if isinstance(one, kind.type))


def _list_global(holder: Any) -> list[Any]:
    """The global generators, and those of the modules of the classes of `holder`."""
    from tensorflow.python.eager import context

    kinds = tuple(kind.type for kind in _list_kinds())
    modules = [sys.modules[one.__module__] for one in type(holder).__mro__ if one.__module__ in sys.modules]
    found = [random._inst, np.random.mtrand._rand, getattr(context.context(), "_rng", None)]
    return found + [one for module in modules for one in vars(module).values() if isinstance(one, kinds)]


class _Walk:
    """A walk over all objects that an object refers to, except for code and modules. generators: those found, by id.

    It does not go through `holder` itself.
    """

    def __init__(self, holder: Any):
        self.generators: dict[int, Any] = {}
        self._kinds = tuple(kind.type for kind in _list_kinds())
        self._seen: dict[int, Any] = {id(holder): holder}  # keeps the objects alive, so that ids stay unique

    def visit(self, root: Any) -> int:
        """A hash of all objects that are reachable from `root` and were not visited before."""
        pending, found, left = [root], 0, _MOST_OBJECTS
        while pending and left:
            one, left = pending.pop(), left - 1
            if isinstance(one, weakref.ReferenceType):
                continue  # weak references own nothing
            if isinstance(one, _VALUES):
                found = hash((found, type(one), one))
            elif id(one) in self._seen or isinstance(one, _NOT_ENTERED):
                found = hash((found, id(one)))
            else:
                self._seen[id(one)] = one
                found = hash((found, self._hash(one)))
                pending += self._list_next(one)
        return found

    def _hash(self, one: Any) -> Any:
        is_content = isinstance(one, np.ndarray) and not one.dtype.hasobject and one.nbytes <= _MOST_BYTES
        return ops.hash_content(one) if is_content else id(one)

    def _list_next(self, one: Any) -> list[Any]:
        if isinstance(one, self._kinds):
            self.generators[id(one)] = one
            return []
        return list(one.__closure__ or ()) if isinstance(one, types.FunctionType) else gc.get_referents(one)


_MOST_BYTES = 16 << 20
"""Larger arrays count as data: writes of an item to them are not detected."""
_MOST_OBJECTS = 50_000
"""The most objects that are visited from an attribute, in some 0.1 s; further ones count as data."""
_VALUES = (str, bytes, int, float, complex, type(None))
_NOT_ENTERED = (type, types.ModuleType, types.CodeType, types.FrameType, random.SystemRandom)
