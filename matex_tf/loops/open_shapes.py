"""The number of rows as the script's Python reads it off a tensor while a step is traced for any number of them.

Within `watch_rows` it is a tensor, `tf.shape(x)[0]`, in place of None.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from matex_tf.analysis import declarations, interpreter, verdict
from matex_tf.analysis.placement import SHARDED, UNKNOWN
from matex_tf.runtime import script_frames

COMPARED = "a shape of rows, of which there may be any number, is compared"
ASKED = "Python asks what kind of number a number of rows is"

_GENERIC = ("tensorflow", "keras", "tf_keras", "matex_tf")
"""Packages whose code gives the same for a size that is None as for one that is known. Any other is the script's."""

_CALLS_FOR_THE_SCRIPT = "tensorflow.python.autograph"

_lock = threading.Lock()
_here = threading.local()
_active = 0


@contextlib.contextmanager
def watch_rows(is_known: bool = True) -> Iterator[None]:
    """Within it, a number of rows that is open in a graph is a tensor to the script, if alone it `is_known`.

    Alone `x.shape[0]` is a number where the batch's is known. Here it would be None, and Python that compares it would
    go another way in silence. What can be computed with `tf.shape(x)[0]` is proved or not as anything else, and what
    needs a number fails, so that the step is computed whole.
    """
    if not is_known:
        yield
        return
    depth = getattr(_here, "depth", 0)
    _here.depth = depth + 1
    _install_shapes(1)
    try:
        yield
    finally:
        _here.depth = depth
        _install_shapes(-1)


def _install_shapes(count: int) -> None:
    global _active
    from tensorflow.python.framework import tensor

    _find_originals()
    with _lock:
        before, _active = _active, _active + count
        if not before:
            tensor.Tensor.shape = property(_get_shape)
            tensor.Tensor.get_shape, tensor.Tensor.set_shape = _get_shape, _set_shape
        elif not _active:
            tensor.Tensor.shape, tensor.Tensor.get_shape, tensor.Tensor.set_shape = _find_originals()


@functools.cache
def _find_originals() -> tuple[Any, Any, Any]:
    from tensorflow.python.framework import tensor

    return tensor.Tensor.shape, tensor.Tensor.get_shape, tensor.Tensor.set_shape


def _is_script(frame: FrameType | None) -> bool:
    """Whether the script asks; AutoGraph makes the script's calls for it."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_CALLS_FOR_THE_SCRIPT):
        frame = frame.f_back
    return frame is not None and script_frames.find_package(frame) not in _GENERIC


def _is_watched(reader: FrameType) -> bool:
    return bool(getattr(_here, "depth", 0)) and _is_script(reader)


def _get_shape(self: Any) -> Any:
    shape = _find_originals()[0].fget(self)
    return _open_sizes(self, shape) if _is_watched(sys._getframe(1)) else shape


def _set_shape(self: Any, shape: Any) -> None:
    import tensorflow as tf

    if _is_watched(sys._getframe(1)):
        known = _open_sizes(self, _find_originals()[0].fget(self))
        given = tf.TensorShape(shape)
        if given.rank is not None and any(given.as_list()[axis] is not None for axis in getattr(known, "open", ())):
            raise TypeError("a number of rows is set where there may be any number")
    _find_originals()[2](self, shape)


def _open_sizes(tensor: Any, shape: Any) -> Any:
    if shape.rank is None:
        return shape
    sizes = shape.as_list()
    known = [axis for axis, size in enumerate(sizes) if size is None and _is_known_alone(tensor, axis)]
    return _make_shape_class()(shape, {axis: (tensor, axis) for axis in known}) if known else shape


def _is_known_alone(tensor: Any, axis: int) -> bool:
    """Whether a size that is open is a number where the batch's number of rows is: not behind a mask, for example."""
    if not declarations.has_declared(tensor.graph):
        return True  # in a branch or loop; if it is not, the script's own `is None` differs, else nothing
    found = interpreter.find_placement(tensor)
    return found.kind == UNKNOWN or (found.kind == SHARDED and found.even and found.axis == axis)


def _compute_unit(tensor: Any, axis: int) -> Any:
    """How many times the rows a size is; equal for two only if they are."""
    found = interpreter.find_placement(tensor)
    return found.unit if found.kind == SHARDED and found.unit is not None else object()


@functools.cache
def _make_size_class(kind: Any) -> Any:
    """The class of tensors that are open sizes: they know when the script asks whether they are of another class."""

    class OpenSize(kind):
        # isinstance reads it where an object is not of the class that is asked for.
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            if _is_question(sys._getframe(1), isinstance):
                _refuse_size(self, ASKED)
            return kind

        def __int__(self) -> int:
            if _is_question(sys._getframe(1), int):
                _refuse_size(self, ASKED)
            raise TypeError(ASKED)

        __index__ = __int__

    return OpenSize


def _is_question(frame: FrameType, question: Any) -> bool:
    """Whether the script calls the built-in `question` in `frame`, itself or through AutoGraph."""
    while script_frames.find_package(frame) in sys.stdlib_module_names and frame.f_back is not None:
        frame = frame.f_back  # abc and typing answer isinstance for others
    if frame.f_globals.get("__name__", "").startswith(_CALLS_FOR_THE_SCRIPT):
        return frame.f_locals.get("f") is question and _is_script(frame)
    return _is_script(frame)


def _refuse_size(size: Any, why: str) -> Any:
    """Have the step computed whole, also where the script catches the error."""
    verdict.note_failure(size.graph, verdict.Reason(why, size.op))
    raise TypeError(why)


@functools.cache
def _make_shape_class() -> type:
    """The class of shapes with open sizes; made once TensorFlow is imported."""
    import tensorflow as tf
    from tensorflow.python.framework import tensor_conversion_registry

    class OpenShape(tf.TensorShape):
        """A shape of which some sizes are those of tensors, `open`: by index the tensor and its axis."""

        __slots__ = ("open",)

        def __init__(self, dims: Any, known: dict[int, tuple[Any, int]]):
            super().__init__(dims)
            self.open = known

        def _values(self) -> list[Any]:
            values = tf.TensorShape(self._dims).as_list()
            for index, (tensor, axis) in self.open.items():
                values[index] = tf.shape(tensor)[axis]
                values[index].__class__ = _make_size_class(type(values[index]))  # type: ignore[arg-type]
            return values

        def as_list(self) -> list[Any]:
            return self._values() if _is_script(sys._getframe(1)) else super().as_list()

        def __iter__(self) -> Iterator[Any]:
            return iter(self._values()) if _is_script(sys._getframe(1)) else super().__iter__()

        def __getitem__(self, key: Any) -> Any:
            if not _is_script(sys._getframe(1)):
                return super().__getitem__(key)
            if not isinstance(key, slice):
                return self._values()[key]
            places = range(self.rank)[key]
            return _made(tf.TensorShape([self._dims[place] for place in places]),
                         {new: self.open[old] for new, old in enumerate(places) if old in self.open})  # fmt: skip

        def concatenate(self, other: Any) -> Any:
            theirs = getattr(other, "open", {})
            return _made(super().concatenate(other), self.open | _moved(theirs, self.rank))

        def __radd__(self, other: Any) -> Any:
            return _made(super().__radd__(other), _moved(self.open, len(tf.TensorShape(other))))

        @property
        def dims(self) -> Any:
            if _is_script(sys._getframe(1)):
                raise TypeError(COMPARED)
            return tf.TensorShape(self._dims).dims

        def is_compatible_with(self, other: Any) -> bool:
            if _is_script(sys._getframe(1)):
                raise TypeError(COMPARED)
            return super().is_compatible_with(other)

        def with_rank(self, rank: Any) -> Any:
            return _made(super().with_rank(rank), self.open)

        def merge_with(self, other: Any) -> Any:
            return _made(super().merge_with(other), self.open)

        def num_elements(self) -> Any:
            return math.prod(self._values()) if _is_script(sys._getframe(1)) else super().num_elements()

        def is_fully_defined(self) -> bool:
            return None not in self._values() if _is_script(sys._getframe(1)) else super().is_fully_defined()

        def __eq__(self, other: Any) -> bool:
            return _is_equal(self, other) if _is_script(sys._getframe(1)) else super().__eq__(other)

        def __ne__(self, other: Any) -> bool:
            return not (_is_equal(self, other) if _is_script(sys._getframe(1)) else super().__eq__(other))

        __hash__ = tf.TensorShape.__hash__

    def _is_equal(one: OpenShape, other: Any) -> bool:
        mine, theirs = tf.TensorShape(one._dims).as_list(), tf.TensorShape(other)
        if theirs.rank != len(mine):
            return False
        if any(a != b for index, (a, b) in enumerate(zip(mine, theirs.as_list())) if index not in one.open):
            return False
        known = getattr(other, "open", {})
        if known.keys() != one.open.keys() or any(
            _compute_unit(*known[at]) != _compute_unit(*one.open[at]) for at in known
        ):
            raise TypeError(COMPARED)
        return True

    def _moved(known: dict[int, tuple[Any, int]], places: int) -> dict[int, tuple[Any, int]]:
        return {index + places: one for index, one in known.items()}

    def _made(shape: Any, known: dict[int, tuple[Any, int]]) -> Any:
        return OpenShape(shape, known) if known else shape

    def _as_tensor(shape: Any, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
        return tf.stack([tf.cast(value, dtype or tf.int32) for value in shape._values()], name=name or "shape")

    tensor_conversion_registry.register_tensor_conversion_function(OpenShape, _as_tensor, priority=10)
    return OpenShape
