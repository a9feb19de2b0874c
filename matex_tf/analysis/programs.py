"""What Python made of a step while it was traced: a trace for any number of rows must be made as the step's own was.

The ops that work on data are compared one by one, in the order in which Python made them: their types, attributes, and
what each input comes from (`_is_input_unlike`). Ops of `FORMS` and arithmetic of sizes are looked through.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from matex_tf.analysis import declarations, graph_ops, interpreter
from matex_tf.analysis.placement import SHARDED

_ORDER = set("Cast ConcatV2 ExpandDims Pack Slice Squeeze StridedSlice Tile Transpose Unpack".split())
"""Forms that are work where they are of data: which entries they take, and where these go, has to be the same."""
FORMS = {"BroadcastTo", "EnsureShape", "Fill", "Identity", "IdentityN", "OnesLike", "ReadVariableOp", "Reshape",
         "ZerosLike", *_ORDER}  # fmt: skip
"""Ops that make no number anew. Where sizes are open there may be more of them, or fewer."""
_SIZES = {"Shape", "ShapeN", "Size", "Rank"}
_OF_ALL = {"IdentityN": None, "Pack": None, "ConcatV2": -1}
"""Forms of more than their first input: where their inputs end. All others are of the first, `Fill` of the second."""
_MOST = 64

Atom = tuple[Any, ...]
"""What a tensor comes from: a "work" op, an "input", something "external", one of "ours", a "figure", a "number" or a
"size"."""
_DATA = {"work", "input", "external", "ours"}
_OURS, _SIZE = ("ours",), ("size",)
_ours: weakref.WeakKeyDictionary[Any, list[tuple[range, bool]]] = weakref.WeakKeyDictionary()
"""Of each graph numbers of ops, those within others first, and whether these are not the script's."""
_stands_for: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


class Work(NamedTuple):
    """An op that works on data, its attributes, what its inputs come from, and the values of those of no data."""

    type: str
    attributes: tuple[tuple[str, bytes], ...] = ()
    inputs: tuple[tuple[Atom, ...], ...] = ()
    values: tuple[Any, ...] = ()

    def is_unlike(self, own: Work) -> bool:
        if self[:2] != own[:2] or len(self.inputs) != len(own.inputs):
            return True
        return any(map(_is_input_unlike, self.inputs, own.inputs, self.values, own.values))


class Program(NamedTuple):
    figures: frozenset[Any]
    """The floating constants."""
    work: tuple[Work, ...]
    sizes: tuple[Any, ...] = ()
    """The shapes of the inputs of its graph, None where one is not known as a whole."""

    def is_unlike(self, own: Program) -> bool:
        """Whether it does something else than `own`, where sizes are fixed and their constants are."""
        if self.figures - own.figures or len(self.work) != len(own.work):
            return True
        return any(mine.is_unlike(other) for mine, other in zip(self.work, own.work))


def _is_input_unlike(mine: tuple[Atom, ...], own: tuple[Atom, ...], value: Any, of_own: Any) -> bool:
    """Whether two inputs come from something else.

    What is made of sizes and constants is what it gives. Where that is not known, no constant may have come in that is
    not among the step's own.
    """
    if value is not None and of_own is not None:
        return not _are_equal(value, of_own)
    if _SIZE not in mine:
        return mine != own
    return _select_data(mine) != _select_data(own) or not set(mine) <= {*own, _SIZE}


def _select_data(atoms: tuple[Atom, ...]) -> list[Atom]:
    return [one for one in atoms if one[0] in _DATA]


def _are_equal(value: Any, own: Any) -> bool:
    """Whether two arrays are equal but for the rounding of Python's numbers and of TensorFlow's."""
    if value.dtype.kind not in "fc":
        return bool(np.array_equal(value, own))
    near = 1e-9 if value.dtype.itemsize >= 8 else 1e-5 if value.dtype.itemsize == 4 else 1e-2
    return value.shape == own.shape and bool(np.allclose(value, own, rtol=near, atol=0.0, equal_nan=True))


@contextlib.contextmanager
def mark_ours(are: bool = True) -> Iterator[None]:
    """Around what is added to the graph being built that the script's Python does not make: `read_program` leaves it
    out.

    are: False around what, within that, the script's Python makes after all.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    start = graph.version  # how many ops it has
    try:
        yield
    finally:
        _ours.setdefault(graph, []).append((range(start, graph.version), are))


def _find_left_out(graph: Any) -> set[int]:
    found: set[int] = set()
    for numbers, are in reversed(_ours.get(graph, [])):
        (found.update if are else found.difference_update)(numbers)
    return found


def stand_for(tensor: Any, plain: Any) -> None:
    """State that the tensor of a graph, one of ours, is where the script has `plain`."""
    _stands_for.setdefault(tensor.graph, {})[tensor.name] = plain


def read_program(graph: Any, like: Program | None = None) -> Program:
    """What Python made of `graph` and of the functions that it calls.

    like: that of a graph in which sizes are known that are open in this one.
    """
    reader = _Reader(_find_row_count(graph, like))
    reader.read_graph(graph, {}, {})
    sizes = tuple(map(_list_sizes, getattr(graph, "inputs", ())))
    return Program(frozenset(reader.figures), tuple(reader.work), sizes)


def _list_sizes(tensor: Any) -> tuple[int | None, ...]:
    return () if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _find_row_count(graph: Any, like: Program | None) -> int | None:
    """The number of rows where it is open in `graph` and known in `like`; None if none is, or several are."""
    inputs = list(getattr(graph, "inputs", ()))
    if like is None or len(inputs) > len(like.sizes):
        return None
    found = {
        known[axis]
        for tensor, known in zip(inputs, like.sizes)
        for axis, size in enumerate(_list_sizes(tensor))
        if size is None and len(known) == tensor.shape.rank
    }
    return found.pop() if len(found) == 1 else None


class _Reader:
    """Reads graphs in which an open number of rows is taken for `rows`, if that is not None."""

    def __init__(self, rows: int | None) -> None:
        self.figures: set[Any] = set()
        self.work: list[Work] = []
        self._rows = rows
        self._seen: set[str] = set()

    def read_graph(self, graph: Any, given: dict[str, tuple[Atom, ...]], values: dict[str, Any]) -> None:
        """Read a graph of which the inputs in `given`, by name, come from these, and have these `values`."""
        atoms, values = dict(given), dict(values)
        for number, tensor in enumerate(getattr(graph, "inputs", ())):
            atoms.setdefault(tensor.name, (("input", number),))
        for external, tensor in getattr(graph, "captures", ()):
            if tensor.name not in given:
                is_handle = tensor.dtype.name == "resource"
                atoms[tensor.name] = (("external", id(external) if is_handle else (tensor.dtype, str(tensor.shape))),)
        left_out = _find_left_out(graph)
        aliases = _stands_for.get(graph, {})
        for number, op in enumerate(graph.get_operations()):
            if number in left_out or op.type.startswith("Matex"):
                for made in op.outputs:
                    plain = aliases.get(made.name)
                    atoms.setdefault(made.name, (_OURS,) if plain is None else atoms.get(plain.name, (_OURS,)))
                    if plain is not None and plain.name in values:
                        values[made.name] = values[plain.name]
            elif not (op.outputs and all(made.name in atoms for made in op.outputs)):
                self._read_op(graph, op, atoms, values)

    def _read_op(self, graph: Any, op: Any, atoms: dict[str, tuple[Atom, ...]], values: dict[str, Any]) -> None:
        inputs = [atoms.get(part.name, ()) for part in op.inputs]
        functions = graph_ops.list_functions(op.node_def)
        for name in functions:
            # What a loop begins with is no constant in its turns.
            given = [] if op.type.endswith("While") else [values.get(part.name) for part in op.inputs]
            self._read_function(graph, name, inputs, given)
        if op.type == "Const":
            found = [self._read_constant(op)]
        elif op.type in _SIZES:
            found = [(_SIZE,)] * len(op.outputs)
        elif op.type in FORMS and (
            op.type not in _ORDER or _is_identity_transpose(op, values) or not any(map(_select_data, inputs))
        ):
            found = [self._read_form(op, inputs)] * len(op.outputs)
        elif any(part.dtype.name == "variant" for part in (*op.inputs, *op.outputs)):
            # A list, as of a loop's turns: it is made for sizes, and holds more where a gradient is taken.
            found = [tuple(_select_data(_join_atoms(inputs)))] * len(op.outputs)
        elif functions or not self._is_work(op, inputs):
            found = [_join_atoms(inputs)] * len(op.outputs)
        else:
            known = tuple(values.get(part.name) for part in op.inputs)
            self.work.append(Work(op.type, graph_ops.list_attributes(op), tuple(inputs), known))
            found = [(("work", len(self.work), index),) for index in range(len(op.outputs))]
        atoms.update((made.name, one) for made, one in zip(op.outputs, found))
        if not functions and not any(map(_select_data, found)):
            values.update(self._compute_values(op, [values.get(part.name) for part in op.inputs]))

    def _compute_values(self, op: Any, inputs: list[Any]) -> dict[str, Any]:
        """What an op gives that works on constants and sizes, by the names of its outputs, as far as it is known."""
        import tensorflow as tf

        if op.type == "Const":
            made = [tf.make_ndarray(op.get_attr("value"))] if op.outputs[0].dtype != tf.string else []
        elif op.type in ("Shape", "ShapeN", "Size"):
            shapes = [self._find_shape(tensor) for tensor in op.inputs]
            of_kind = op.outputs[0].dtype.as_numpy_dtype
            known = [np.array(one, of_kind) for one in shapes if one is not None]
            if len(known) < len(shapes):
                return {}
            made = [np.prod(one, dtype=of_kind) for one in known] if op.type == "Size" else known
        elif inputs and not any(one is None for one in inputs) and not interpreter.is_stateful(op):
            made = graph_ops.evaluate_op(op, inputs)
        else:
            return {}
        return {tensor.name: one for tensor, one in zip(op.outputs, made) if np.size(one) <= _MOST}

    def _find_shape(self, tensor: Any) -> list[int] | None:
        if tensor.shape.rank is None:
            return None
        sizes = tensor.shape.as_list()
        for axis, size in enumerate(sizes):
            if size is None:
                found = interpreter.find_placement(tensor) if declarations.has_declared(tensor.graph) else None
                if self._rows is None or found is None or found.kind != SHARDED or found.axis != axis:
                    return None
                if not found.even or found.unit is None:
                    return None
                sizes[axis] = found.unit * self._rows
        return list(sizes)

    def _is_work(self, op: Any, inputs: list[tuple[Atom, ...]]) -> bool:
        """Whether it draws numbers, or makes something of data, or keeps it."""
        if not (op.outputs or op.type.startswith("Assign")):
            return False
        of_data = any(atom[0] in _DATA for atom in itertools.chain(*inputs))
        return of_data or (bool(inputs) and interpreter.is_stateful(op))

    def _read_function(self, graph: Any, name: str, inputs: list[tuple[Atom, ...]], values: list[Any]) -> None:
        function = None if name in self._seen else graph._get_function(name)
        self._seen.add(name)
        traced = getattr(function, "graph", None)
        if traced is not None:
            arguments = list(traced.inputs)
            last = inputs[len(inputs) - len(arguments) :] if len(arguments) <= len(inputs) else []
            known = values[len(values) - len(last) :] if last and values else []
            self.read_graph(
                traced,
                {tensor.name: one for tensor, one in zip(arguments, last)},
                {tensor.name: one for tensor, one in zip(arguments, known) if one is not None},
            )
        elif function is not None:
            self.work.extend(Work(node.op) for node in function.cached_definition.node_def)

    def _read_constant(self, op: Any) -> tuple[Atom, ...]:
        import tensorflow as tf

        made = op.outputs[0].dtype
        if not (made.is_floating or made.is_complex or made.is_integer or made.is_bool):
            return ()
        values = tf.make_ndarray(op.get_attr("value"))
        if made.is_integer or made.is_bool:
            if values.size > 1 and (values == values.flat[0]).all():  # as `ZerosLike` has it, where sizes are open
                return (("figure", repr(float(values.flat[0]))),)
            return (("number", values.tobytes()),)
        found = np.unique(values.astype(np.complex128 if made.is_complex else np.float64))
        figures = [found.tobytes()] if found.size > _MOST else list(map(repr, found.tolist()))
        self.figures.update(figures)
        return tuple(("figure", one) for one in figures)

    def _read_form(self, op: Any, inputs: list[tuple[Atom, ...]]) -> tuple[Atom, ...]:
        if op.type in ("ZerosLike", "OnesLike"):
            value = float(op.type == "OnesLike")
            return (("figure", repr(value)),)
        if op.type in _OF_ALL:
            return _join_atoms(inputs[: _OF_ALL[op.type]])
        return inputs[1 if op.type == "Fill" else 0]


def _join_atoms(inputs: Iterable[tuple[Atom, ...]]) -> tuple[Atom, ...]:
    return tuple(dict.fromkeys(itertools.chain(*inputs)))


def _is_identity_transpose(op: Any, values: dict[str, Any]) -> bool:
    """Whether it is a transposition that changes nothing, as TensorFlow makes where sizes are open."""
    order = values.get(op.inputs[1].name) if op.type == "Transpose" else None
    return order is not None and np.array_equal(order, np.arange(order.size))
