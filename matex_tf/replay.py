"""What eager code does with a batch, made once more as a graph for another number of rows.

Eager code cannot be traced again, but its ops can be seen as they run (TensorFlow's op callbacks). Those that the batch
goes into are made once more in a graph, for a number of rows that no other dimension has; what can be read from the
graph of a function (`meetings`, `reductions`) can then be read of an eager step, too. What cannot be made for other
rows, as a shape that was computed in Python, leaves the question open.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import meetings, reductions

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
# Which input is the shape that is wanted, and which is what it is wanted of.
_SHAPED = {"Reshape": (1, 0), "BroadcastTo": (1, 0), "Conv2DBackpropInput": (0, 2), "Conv3DBackpropInputV2": (0, 2)}
_PARTS = {"Split": 0, "SplitV": 2, "Unpack": None}  # which input is the axis
_MOST_OPS = 20_000
_SMALL = 64


class _Tensor(NamedTuple):
    """What is kept of an eager tensor, which itself may be large: its value where that is small, or a variable."""

    key: int
    dtype: Any
    shape: tuple
    value: Any = None

    @property
    def is_handle(self) -> bool:
        return self.dtype.name in ("resource", "variant")


class _Op(NamedTuple):
    kind: str
    inputs: tuple[_Tensor, ...]
    attrs: tuple
    outputs: tuple[_Tensor, ...]


class _CannotTellError(Exception):
    """Something cannot be made for another number of rows."""


class _RowsPartError(Exception):
    """A batch is parted into halves or single rows."""


class Recorder:
    """The eager ops of this thread that follow one another from a batch on."""

    def __init__(self) -> None:
        self._batch: list[_Tensor] = []
        self._rows = 0
        self._ops: list[_Op] = []
        self._targets: list[int] = []
        self._is_on = False
        self._outer: Recorder | None = None

    def begin(self, batch: Sequence[Any], rows: int) -> None:
        """Record anew, from the eager tensors `batch` on, which have `rows` rows."""
        from tensorflow.python.framework import op_callbacks

        global _current
        self._batch, self._rows, self._ops, self._targets = [_seen(tensor) for tensor in batch], rows, [], []
        if not self._is_on:
            self._is_on, self._outer, _current = True, _current, self
            op_callbacks.add_op_callback(self._note)

    def end(self) -> None:
        from tensorflow.python.framework import op_callbacks

        global _current
        if self._is_on:
            self._is_on = False
            if _current is self:
                _current = self._outer
            op_callbacks.remove_op_callback(self._note)

    def forget(self) -> None:
        self._batch, self._ops, self._targets = [], [], []

    def _note(self, kind, inputs, attrs, outputs, op_name=None, graph=None):  # as TensorFlow calls it
        if graph is None and not getattr(_paused, "depth", 0) and len(self._ops) < _MOST_OPS:
            kind = kind.decode() if isinstance(kind, bytes) else kind
            seen = tuple(_seen(tensor, with_value=True) for tensor in inputs)
            self._ops.append(_Op(kind, seen, tuple(attrs or ()), tuple(map(_seen, outputs))))

    def note_target(self, target: Any) -> None:
        """A tape is asked for the gradients of `target`."""
        import tensorflow as tf

        self._targets += [_seen(part).key for part in tf.nest.flatten(target) if hasattr(part, "_numpy_internal")]

    def rows_meet(self, rows: int) -> bool:
        """Whether rows meet in what was recorded, made once more for `rows` rows; False where that cannot be told."""
        try:
            graph, made = self._as_graph(rows)
        except _CannotTellError:
            return False
        except _RowsPartError:
            return True
        if meetings.knows_rows(graph) or meetings.rows_meet(graph, rows, set()):
            return True
        return any(_is_beyond_eager(reductions.analyse(made[target])) for target in self._targets if target in made)

    def _as_graph(self, rows: int) -> tuple[Any, dict[int, Any]]:
        """The graph, and what in it stands for eager tensors, by their keys."""
        import tensorflow as tf
        from tensorflow.python.framework import func_graph

        if len(self._ops) >= _MOST_OPS:
            raise _CannotTellError
        graph, made = func_graph.FuncGraph("matex_tf_replay"), {}
        with graph.as_default():
            maker = _Maker(graph, made, self._rows, rows)
            for tensor in self._batch:
                made[tensor.key] = maker.of_rows(tensor)
            for op in self._ops:
                if maker.is_to_be_made(op):
                    try:
                        maker.make(op)
                    except (
                        ArithmeticError,
                        AttributeError,
                        LookupError,
                        TypeError,
                        ValueError,
                        tf.errors.OpError,
                    ) as error:
                        raise _CannotTellError from error
            for target in self._targets:
                if target in made:
                    tf.identity(made[target])  # it is used
        return graph, made


_KEY = "_matex_key"
_keys = itertools.count(1)


def _seen(tensor: Any, with_value: bool = False) -> _Tensor:
    key = getattr(tensor, _KEY, None)
    if key is None:
        key = next(_keys)
        setattr(tensor, _KEY, key)
    found = _Tensor(key, tensor.dtype, tuple(tensor.shape))
    if found.is_handle:
        return found._replace(value=tensor)
    if with_value and (not found.shape or not tensor.dtype.is_floating) and tensor.shape.num_elements() <= _SMALL:
        return found._replace(value=np.array(tensor._numpy_internal()))  # as it is on this rank
    return found


_current: Recorder | None = None
_paused = threading.local()


def current() -> Recorder | None:
    return _current


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """What runs within it in this thread is not recorded."""
    _paused.depth = getattr(_paused, "depth", 0) + 1
    try:
        yield
    finally:
        _paused.depth -= 1


def _is_beyond_eager(found: reductions.Analysis) -> bool:
    """Whether the parts of a loss that eager code makes of slices cannot be put together."""
    return found.products or found.uneven or bool(found.ratios and found.denominator is None)


class _Maker:
    """Makes ops that have run eagerly in a graph, for `given` rows in place of `rows`."""

    def __init__(self, graph: Any, made: dict[int, Any], rows: int, given: int):
        self._graph, self._made, self._rows, self._given = graph, made, rows, given
        self._of_batch: set[int] = set()

    def is_to_be_made(self, op: _Op) -> bool:
        """Whether `op` is of the batch or of variables; but for random numbers of a shape that is of neither."""
        if self._is_of_batch(op) or op.kind == _READS[0]:
            return True
        return "Random" not in op.kind and any(tensor.key in self._made for tensor in op.inputs)

    def _is_of_batch(self, op: _Op) -> bool:
        return any(tensor.key in self._of_batch for tensor in op.inputs)

    def of_rows(self, tensor: Any) -> Any:
        """A tensor of the graph that stands for an eager one of the batch."""
        import tensorflow as tf

        inner = tf.compat.v1.placeholder(tensor.dtype, [self._given, *tensor.shape[1:]])
        self._graph.inputs.append(inner)
        self._of_batch.add(tensor.key)
        return inner

    def make(self, op: _Op) -> None:
        from tensorflow.python.framework import op_def_registry

        if op.kind.startswith("Matex"):
            for tensor in op.inputs:
                if tensor.key in self._made:
                    meetings.made_global(self._made[tensor.key])
            return  # what comes of it is the same on all ranks
        if op.kind in _PARTS and self._parts_rows(op):
            raise _RowsPartError
        definition = op_def_registry.get(op.kind)
        handles = any(tensor.is_handle for tensor in (*op.inputs, *op.outputs))
        if handles and definition is not None and op.kind not in _READS:
            if not all(tensor.is_handle for tensor in op.outputs):
                raise _CannotTellError
            return  # a variable is given a value
        inputs = [self._input(op, index) for index in range(len(op.inputs))]
        made = self._called(op.kind, inputs) if definition is None else self._applied(op, definition, inputs)
        self._note_made(op, made)

    def _note_made(self, op: _Op, parts: list[Any]) -> None:
        if len(parts) != len(op.outputs):
            raise _CannotTellError
        for eager, inner in zip(op.outputs, parts):
            if inner.shape.rank is None and eager.shape:
                raise _CannotTellError
            self._made[eager.key] = inner
            if self._is_of_batch(op):
                self._of_batch.add(eager.key)

    def _called(self, name: str, inputs: list[Any]) -> list[Any]:
        """What the function called `name` gives, its ops made one by one."""
        import tensorflow as tf
        from tensorflow.python.eager import context
        from tensorflow.python.framework import function_def_to_graph

        definition = context.context().get_function_def(name)
        if definition is None:
            raise _CannotTellError
        shapes = [tensor.shape for tensor in inputs]
        inside = function_def_to_graph.function_def_to_graph(definition, input_shapes=shapes)
        given = {inner.name: tensor for inner, tensor in zip(inside.inputs, inputs)}
        wanted = [tensor.name for tensor in inside.outputs]
        return tf.graph_util.import_graph_def(inside.as_graph_def(), given, wanted, name="matex_tf_called")

    def _applied(self, op: _Op, definition: Any, inputs: list[Any]) -> list[Any]:
        from tensorflow.python.framework import op_def_library

        attributes = dict(zip(op.attrs[::2], op.attrs[1::2]))
        arguments: dict[str, Any] = {}
        inferred: set[str] = set()
        at = 0
        for argument in definition.input_arg:
            inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
            if argument.number_attr or argument.type_list_attr:
                of_list = attributes[argument.number_attr or argument.type_list_attr]
                count = int(of_list) if argument.number_attr else len(of_list)
                arguments[argument.name] = inputs[at : at + count]
            else:
                count = 1
                arguments[argument.name] = inputs[at]
            at += count
        for attribute in definition.attr:
            if attribute.name not in inferred and attribute.name in attributes:
                arguments[attribute.name] = attributes[attribute.name]
        return _flat(op_def_library.apply_op(op.kind, **arguments))

    def _parts_rows(self, op: _Op) -> bool:
        """Whether `op` parts a tensor so that its parts are not whole batches."""
        attributes = dict(zip(op.attrs[::2], op.attrs[1::2]))
        which = _PARTS[op.kind]
        tensor = op.inputs[1 if op.kind == "Split" else 0]
        axis = attributes["axis"] if which is None else int(op.inputs[which].value)
        if tensor.key not in self._made or axis % len(tensor.shape) != 0:
            return False
        return self._made[tensor.key].shape[0] % self._given == 0 and any(
            not part.shape or part.shape[0] % self._rows for part in op.outputs
        )

    def _input(self, op: _Op, index: int) -> Any:
        """What stands in the graph for an input of `op`."""
        import tensorflow as tf

        tensor = op.inputs[index]
        if tensor.key in self._made:
            return self._made[tensor.key]
        if tensor.is_handle:
            return self._graph.capture(tensor.value)
        shape = tensor.shape
        wanted, of = _SHAPED.get(op.kind, (None, None))
        if wanted == index and op.inputs[of].key in self._made:
            return tf.constant(self._wanted(op.kind, tensor.value, op.inputs[of]), tensor.dtype)
        if shape and shape[0] == self._rows and (tensor.dtype.is_floating or self._rows > 4):
            self._made[tensor.key] = self.of_rows(tensor)  # noise, or a mask
            return self._made[tensor.key]
        if shape and tensor.dtype.is_floating:  # what was read of a variable, not always by an op of its own
            handle = tf.raw_ops.VarHandleOp(dtype=tensor.dtype, shape=shape)
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tensor.dtype)
        return tf.zeros(shape, tensor.dtype) if tensor.value is None else tf.constant(tensor.value, tensor.dtype)

    def _wanted(self, kind: str, shape: np.ndarray, of: _Tensor) -> np.ndarray:
        """The `shape` that Python named for something of `rows` rows, for as many of `given`."""
        old, new = of.shape, self._made[of.key].shape
        if not (old and new.rank and old[0] and new[0] and old[0] % self._rows == 0) or old[0] == new[0]:
            return shape
        for index, size in enumerate(shape):
            if size > 0 and size % self._rows == 0:
                changed = shape.copy()
                changed[index] = size // self._rows * self._given
                if kind != "Reshape" or -1 in shape or np.prod(changed) == new.num_elements():
                    return changed
        return shape


def _flat(result: Any) -> list[Any]:
    from tensorflow.python.framework import ops

    if result is None or isinstance(result, ops.Operation):
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]
