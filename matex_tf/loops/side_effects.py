"""What a call of a model does beside computing outputs from its arguments: what a sharded call could not do likewise.

The first call of each kind runs as the script alone makes it, and is watched: does its Python read values, draw random
numbers or set attributes, does it use tensors of the step that are none of its arguments, does it keep losses?
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np

from matex_tf.loops import step_arguments
from matex_tf.metrics import metrics

READS = "its Python reads the values of tensors"
DRAWS = "its Python draws random numbers"
KEEPS = "its Python sets attributes ({})"
GRADIENT = "it has a gradient function of its own (tf.custom_gradient), whose Python runs in each step"
USES = "it uses tensors of the step that are none of its batch arguments"
_SMALL = 16
_GLOBAL = 2
"""The generators of the modules `random` and `numpy.random` are the first of `_digest_states`."""

_state = threading.local()


def note_read(tensor: Any) -> None:
    """Python reads the values of an eager tensor.

    Libraries read shapes, sizes and conditions of loops, and a trace knows of these; it knows nothing of a model that
    looks at numbers where there are some.
    """
    watch = getattr(_state, "watch", None)
    is_number = not (tensor.dtype.is_integer or tensor.dtype.is_bool) or len(tensor.shape) > 1
    if watch is not None and is_number:
        watch.reads = True


def note_own_gradient() -> None:
    """A gradient function of the script's own will run on the way back, of which nobody sees what it does then."""
    watch = getattr(_state, "watch", None)
    while watch is not None:
        watch.has_own_gradient, watch = True, watch._outer


class Watch:
    """Around a call of `model` with `arguments`.

    After it `why` says what of it a sharded call could not do; `program`, in eager code, is a number by which another
    run of the same ops is known. Of calls that are not the first only what costs little is watched.
    """

    def __init__(self, model: Any, arguments: step_arguments.Arguments, is_first: bool):
        self._model, self._arguments, self._is_first = model, arguments, is_first
        self.reads = self.has_own_gradient = False
        self.program = 0
        self.why = ""

    def __enter__(self) -> Watch:
        import tensorflow as tf
        from tensorflow.python.framework import op_callbacks

        self._made: dict[int, Any] = {}
        self._foreign: dict[int, Any] = {}
        rows = zip(self._arguments.leaves, self._arguments.are_rows)
        self._own = {id(leaf): leaf for leaf, is_rows in rows if is_rows}
        self._before = _list_attributes(self._model) if self._is_first else {}
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self._graph is None:
            self._outer: Watch | None = getattr(_state, "watch", None)
            _state.watch = self
            self._generators = _list_generators() if self._is_first else []
            self._random = _digest_states(self._generators)
            self._profile = sys.getprofile()
            self._frames: list[FrameType] = self._outer._frames if self._outer else []
            if self._is_first and self._profile is None:
                sys.setprofile(_note_frame)
            op_callbacks.add_op_callback(self._note_op)
        else:
            self._begin = len(self._graph.get_operations())
        return self

    def __exit__(self, *error: Any) -> None:
        from tensorflow.python.framework import op_callbacks

        if self._graph is None:
            op_callbacks.remove_op_callback(self._note_op)
            if self._is_first and self._profile is None:
                sys.setprofile(None)
            _state.watch = self._outer
        if self._graph is not None:
            for op in self._graph.get_operations()[self._begin :]:
                self._made.update((id(tensor), tensor) for tensor in op.outputs)
                self._foreign.update((id(one), one) for one in op.inputs if id(one) not in self._made)
        self._foreign = {
            key: one for key, one in self._foreign.items() if key not in self._own and key not in self._made
        }
        if self.reads or self.has_own_gradient:
            self.why = READS if self.reads else GRADIENT
        elif self._is_first and error[0] is None:
            self.why = self._find_effect()
        self._made, self._own, self._frames = {}, {}, []

    def is_input_followed(self, tapes: Sequence[Any]) -> bool:
        """Whether `tapes`, which record, would take gradients with respect to a tensor that the call used and was not
        given as rows, or to a variable that is none of those that every tape watches.
        """
        from tensorflow.python.eager import record

        watched = [one for tape in tapes for one in tape.watched_variables() if not one.trainable]
        handles = {id(one.handle) for one in watched}
        plain = [one for one in self._foreign.values() if one.dtype.name not in ("resource", "variant")]
        return not handles.isdisjoint(self._foreign) or any(record.should_record_backprop([one]) for one in plain)

    def _find_effect(self) -> str:
        if self._graph is None and self._has_drawn():
            return DRAWS
        after = _list_attributes(self._model)
        changed = sorted(name for name in after if after[name] != self._before.get(name))
        return KEEPS.format(", ".join(changed[:3])) if changed else ""

    def _has_drawn(self) -> bool:
        """Whether a generator of random numbers was used, but for those that only other threads can have used.

        Such is a local variable of a Python generator from which a thread of tf.data draws rows meanwhile: no frame
        holds it that ran in this thread.
        """
        states = _digest_states(self._generators)
        drawn = [number for number, state in enumerate(states) if state != self._random[number]]
        if self._profile not in (None, _note_frame) or any(number < _GLOBAL for number in drawn):
            return bool(drawn)
        own = {id(frame) for frame in self._frames}
        for number in drawn:
            holders = gc.get_referrers(self._generators[number - _GLOBAL])
            frames = [getattr(one, "gi_frame", one) for one in holders if one is not self._generators]
            if not all(isinstance(one, FrameType) and id(one) not in own for one in frames):
                return True
        return False

    def _note_op(
        self, kind: str, inputs: Any, attrs: Any, outputs: Any, op_name: str | None = None, graph: Any = None
    ) -> None:  # as TensorFlow calls it
        if graph is not None:
            return
        given = []
        for one in inputs:
            if id(one) not in self._made:
                self._foreign[id(one)] = one
                if id(one) not in self._own:
                    given.append(_describe_constant(one))
        self._made.update((id(one), one) for one in outputs)
        named = [value for name, value in zip(attrs[::2], attrs[1::2]) if name not in ("seed", "seed2")]
        self.program = hash((self.program, kind, repr(named), repr(given)))


def _note_frame(frame: FrameType, event: str, _: Any) -> None:
    """The profiler of a thread while it makes a first call."""
    if event == "call":
        _state.watch._frames.append(frame)


def _describe_constant(tensor: Any) -> Any:
    """By what a constant of a model's call is known: small whole numbers, such as axes, by their values."""
    if tensor.dtype.is_integer and tensor.shape.rank is not None and tensor.shape.num_elements() <= _SMALL:
        return tensor.dtype, tensor._numpy_internal().tolist()
    return tensor.dtype, tensor.shape.rank and tensor.shape.as_list()


def _list_attributes(model: Any) -> dict[str, Any]:
    """What the attributes of the script's own layers in a model hold, by their names: identities, lengths, numbers."""
    found = {}
    for layer in metrics.list_layers(model) or [model]:
        if type(layer).__module__.partition(".")[0] in ("keras", "tf_keras"):
            continue
        own = _list_keras_attributes(type(layer))
        for name, value in vars(layer).items():
            if name not in own:
                found[f"{layer.name}.{name}"] = _identify_value(value)
    return found


def _identify_value(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, set)):
        return id(value), len(value)
    if isinstance(value, dict):
        return id(value), len(value), [id(part) for part in value.values()]
    return id(value)


_of_keras: dict[Any, set[str]] = {}


def _list_keras_attributes(kind: type) -> set[str]:
    """The names of the attributes that every layer, or model, of Keras has: in those Keras keeps its own books."""
    base = next(one for one in kind.__mro__ if one.__name__ in ("Model", "Layer"))
    if base not in _of_keras:
        _of_keras[base] = set(vars(base()))
    return _of_keras[base]


def _list_generators() -> list[Any]:
    """The generators of Python and NumPy that are anyone's. A search of all objects: a tenth of a second and more."""
    kinds = (np.random.Generator, np.random.RandomState, random.Random)
    return [one for one in gc.get_objects() if type(one) in kinds]


def _digest_states(generators: Sequence[Any]) -> list[str]:
    """The states of `generators` and of the global ones."""
    own = [one.bit_generator.state if isinstance(one, np.random.Generator) else _read_state(one) for one in generators]
    return [repr(state) for state in (random.getstate(), np.random.get_state(), *own)]


def _read_state(generator: Any) -> Any:
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()
