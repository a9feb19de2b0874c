"""Records what the making of an item of a Python object may change: attributes of the object, and random generators."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import types
import weakref
from collections.abc import Callable
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np

from matex_tf import ops
from matex_tf.lazy import tf
from matex_tf.runtime import seeding


class State:
    """A record of the state that the making of an item may change: the attributes of an object, the random generators
    of the object and its classes' modules, and the global generators of Python, NumPy and TensorFlow.

    _values, _hashes: the attributes of the object, and a hash of each with all objects that it refers to.
    _generators, _states: the random generators, and their states.
    _spawned: the number of NumPy generators that the process has created without a seed.
    """

    def __init__(self, source: Any):
        self._source = source
        walk = _Walk(source)
        self._values = dict(vars(source))
        self._hashes = {name: walk.visit(value) for name, value in list(vars(source).items())}
        self._generators = list(walk.generators.values())
        self._states = list(map(_read_state, self._generators))
        self._spawned = seeding.count_spawned()

    def is_drawn_from(self) -> bool:
        """Whether random numbers have been drawn since the record was made."""
        states = list(map(_read_state, self._generators))  # compared as bytes, because states may contain arrays
        return pickle.dumps(states) != pickle.dumps(self._states) or seeding.count_spawned() != self._spawned

    def can_be_restored(self) -> bool:
        """Whether no value of an attribute was changed in place, so that `restore` restores all of them."""
        walk = _Walk(self._source)
        return all(walk.visit(value) == self._hashes[name] for name, value in self._values.items())

    def restore(self) -> None:
        """Restore the states of the generators, and the attributes of the object."""
        vars(self._source).clear()
        vars(self._source).update(self._values)
        for generator, state in zip(self._generators, self._states):
            _find_kind(generator).write(generator, state)
        seeding.spawn_from(self._spawned)

    def find_changed(self, later: State) -> str:
        """An attribute of the object that differs in a `later` state; empty if none does."""
        names = dict.fromkeys([*self._hashes, *later._hashes])
        return next((name for name in names if later._hashes.get(name) != self._hashes.get(name)), "")


class _Kind(NamedTuple):
    """A kind of random generators: its class, and functions that read and write the state of a generator."""

    type: type
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]


def _list_kinds() -> list[_Kind]:
    kinds = [
        _Kind(random.Random, methodcaller("getstate"), lambda generator, state: generator.setstate(state)),
        _Kind(np.random.RandomState, methodcaller("get_state"), lambda generator, state: generator.set_state(state)),
        _Kind(
            np.random.Generator,
            lambda generator: generator.bit_generator.state,
            lambda generator, state: setattr(generator.bit_generator, "state", state),
        ),
    ]
    keras_class = getattr(sys.modules.get("keras.random"), "SeedGenerator", None)
    kinds += [
        _Kind(kind, lambda generator: generator.state.numpy(), lambda generator, state: generator.state.assign(state))
        for kind in (tf.random.Generator, keras_class)
        if kind is not None
    ]
    return kinds


def _find_kind(generator: Any) -> _Kind:
    return next(kind for kind in _list_kinds() if isinstance(generator, kind.type))


def _read_state(generator: Any) -> Any:
    return _find_kind(generator).read(generator)


def _list_global(source: Any) -> list[Any]:
    """The global generators, and the generators in the modules of `source`'s classes."""
    from tensorflow.python.eager import context

    kinds = tuple(kind.type for kind in _list_kinds())
    modules = [sys.modules[base.__module__] for base in type(source).__mro__ if base.__module__ in sys.modules]
    generators = [random._inst, np.random.mtrand._rand, getattr(context.context(), "_rng", None)]
    return generators + [value for module in modules for value in vars(module).values() if isinstance(value, kinds)]


class _Walk:
    """A walk over objects and all objects that they refer to, except for code, modules and `source` itself.

    generators: the random generators among the objects, by id.
    """

    def __init__(self, source: Any):
        self.generators: dict[int, Any] = {}
        self._kinds = tuple(kind.type for kind in _list_kinds())
        self._seen: dict[int, Any] = {id(source): source}  # keeps the objects alive, so that ids stay unique
        for generator in _list_global(source):
            self.visit(generator)  # so that `generators` has it, too

    def visit(self, root: Any) -> int:
        """A hash of all objects that are reachable from `root` and were not visited before."""
        pending, result, remaining = [root], 0, _MAX_OBJECTS
        while pending and remaining:
            value, remaining = pending.pop(), remaining - 1
            if isinstance(value, weakref.ReferenceType):
                continue  # weak references own nothing
            if isinstance(value, _VALUES):
                result = hash((result, type(value), value))
            elif id(value) in self._seen or isinstance(value, _NOT_ENTERED):
                result = hash((result, id(value)))
            else:
                self._seen[id(value)] = value
                result = hash((result, self._hash(value)))
                pending += self._list_next(value)
        return result

    def _hash(self, value: Any) -> Any:
        is_small_array = isinstance(value, np.ndarray) and not value.dtype.hasobject and value.nbytes <= _MAX_BYTES
        return ops.hash_content(value) if is_small_array else id(value)

    def _list_next(self, value: Any) -> list[Any]:
        """The objects to visit from `value`."""
        if isinstance(value, self._kinds):
            self.generators[id(value)] = value
            return []
        return list(value.__closure__ or ()) if isinstance(value, types.FunctionType) else gc.get_referents(value)


_MAX_BYTES = 16 << 20
"""Larger arrays count as data: a change of their values is not detected."""
_MAX_OBJECTS = 50_000
"""The number of objects that are visited from an attribute, in some 0.1 s; further ones count as data."""
_VALUES = (str, bytes, int, float, complex, type(None))
"""Objects of these types are compared by value, others by identity and by the objects that they refer to."""
_NOT_ENTERED = (type, types.ModuleType, types.CodeType, types.FrameType, random.SystemRandom)
