"""What Python made of a step while it was traced: a trace for any number of rows must be made as the step's own was.

The ops that work on data are compared one by one, in the order in which Python made them: their types, attributes, and
what each input comes from. What has another form where sizes are open (`FORMS`, arithmetic of sizes) is looked through.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from matex_tf.analysis import graph_ops, interpreter

FORMS = set(
    """BroadcastTo Cast ConcatV2 EnsureShape ExpandDims Fill Identity IdentityN OnesLike Pack ReadVariableOp Reshape
    Slice Squeeze StridedSlice Tile Transpose Unpack ZerosLike""".split()
)
"""Ops that make no number anew. Where sizes are open there may be more of them, or fewer."""

_SIZES = {"Shape", "ShapeN", "Size", "Rank"}
_OF_ALL = {"IdentityN": None, "Pack": None, "ConcatV2": -1}
"""Forms of more than their first input: where their inputs end. All others are of the first, `Fill` of the second."""
_UNLIKE = {"seed", "seed2", "message", "shared_name", "container", "token"}
"""Attributes that differ from trace to trace."""
_MOST = 64

Atom = tuple[Any, ...]
"""What a tensor comes from: a "work" op, an "input", something "external", one of "ours", a "figure", a "number" or a
"size"."""
_DATA = {"work", "input", "external", "ours"}
_OURS, _SIZE = ("ours",), ("size",)

_ours: weakref.WeakKeyDictionary[Any, list[range]] = weakref.WeakKeyDictionary()
"""Of each graph the numbers of the ops that its script does not make."""
_stands_for: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


class Work(NamedTuple):
    """An op that works on data, its attributes, and what its inputs come from."""

    type: str
    attributes: tuple[tuple[str, bytes], ...] = ()
    inputs: tuple[tuple[Atom, ...], ...] = ()

    def differs_from(self, own: Work) -> bool:
        if self[:2] != own[:2] or len(self.inputs) != len(own.inputs):
            return True
        return any(map(_differ, self.inputs, own.inputs))


class Program(NamedTuple):
    figures: frozenset[Any]
    """The floating constants."""
    work: tuple[Work, ...]

    def differs_from(self, own: Program) -> bool:
        """Whether it does something else than `own`, where sizes are fixed and their constants are."""
        if self.figures - own.figures or len(self.work) != len(own.work):
            return True
        return any(mine.differs_from(other) for mine, other in zip(self.work, own.work))


def _differ(mine: tuple[Atom, ...], own: tuple[Atom, ...]) -> bool:
    """Whether two inputs come from something else. Of what is made of sizes the constants are not compared."""
    if _SIZE in mine or _SIZE in own:
        mine, own = (tuple(one for one in atoms if one[0] in _DATA) for atoms in (mine, own))
    return mine != own


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """Around what is added to the graph being built that the script's Python does not make: `program` leaves it out."""
    import tensorflow as tf

    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    start = graph.version  # the number of its ops
    try:
        yield
    finally:
        _ours.setdefault(graph, []).append(range(start, graph.version))


def stand_for(tensor: Any, plain: Any) -> None:
    """State that the tensor of a graph, one of ours, is where the script has `plain`."""
    _stands_for.setdefault(tensor.graph, {})[tensor.name] = plain


def program(graph: Any) -> Program:
    """What Python made of `graph` and of the functions that it calls."""
    reader = _Reader()
    reader.read(graph, {})
    return Program(frozenset(reader.figures), tuple(reader.work))


class _Reader:
    def __init__(self) -> None:
        self.figures: set[Any] = set()
        self.work: list[Work] = []
        self._seen: set[str] = set()

    def read(self, graph: Any, given: dict[str, tuple[Atom, ...]]) -> None:
        """Read a graph of which the inputs in `given`, by name, come from these."""
        atoms = dict(given)
        for number, tensor in enumerate(getattr(graph, "inputs", ())):
            atoms.setdefault(tensor.name, (("input", number),))
        for external, tensor in getattr(graph, "captures", ()):
            if tensor.name not in given:
                is_handle = tensor.dtype.name == "resource"
                atoms[tensor.name] = (("external", id(external) if is_handle else (tensor.dtype, str(tensor.shape))),)
        left_out = set(itertools.chain(*_ours.get(graph, ())))
        aliases = _stands_for.get(graph, {})
        for number, op in enumerate(graph.get_operations()):
            if number in left_out or op.type.startswith("Matex"):
                for made in op.outputs:
                    plain = aliases.get(made.name)
                    atoms.setdefault(made.name, (_OURS,) if plain is None else atoms.get(plain.name, (_OURS,)))
            elif not (op.outputs and all(made.name in atoms for made in op.outputs)):
                self._read_op(graph, op, atoms)

    def _read_op(self, graph: Any, op: Any, atoms: dict[str, tuple[Atom, ...]]) -> None:
        inputs = [atoms.get(part.name, ()) for part in op.inputs]
        functions = graph_ops.functions_of(op.node_def)
        for name in functions:
            self._read_function(graph, name, inputs)
        if op.type == "Const":
            found = [self._of_constant(op)]
        elif op.type in _SIZES:
            found = [(_SIZE,)] * len(op.outputs)
        elif op.type in FORMS:
            found = [self._of_form(op, inputs)] * len(op.outputs)
        elif any(part.dtype.name == "variant" for part in (*op.inputs, *op.outputs)):
            # A list, as of a loop's turns: it is made for sizes, and holds more where a gradient is taken.
            found = [tuple(one for one in _joined(inputs) if one[0] in _DATA)] * len(op.outputs)
        elif functions or not self._is_work(op, inputs):
            found = [_joined(inputs)] * len(op.outputs)
        else:
            self.work.append(Work(op.type, _attributes(op), tuple(inputs)))
            found = [(("work", len(self.work), index),) for index in range(len(op.outputs))]
        atoms.update((made.name, one) for made, one in zip(op.outputs, found))

    def _is_work(self, op: Any, inputs: list[tuple[Atom, ...]]) -> bool:
        """Whether it draws numbers, or makes something of data, or keeps it."""
        if not (op.outputs or op.type.startswith("Assign")):
            return False
        of_data = any(atom[0] in _DATA for atom in itertools.chain(*inputs))
        return of_data or (bool(inputs) and interpreter.is_stateful(op))

    def _read_function(self, graph: Any, name: str, inputs: list[tuple[Atom, ...]]) -> None:
        function = None if name in self._seen else graph._get_function(name)
        self._seen.add(name)
        traced = getattr(function, "graph", None)
        if traced is not None:
            arguments = list(traced.inputs)
            last = inputs[len(inputs) - len(arguments) :] if len(arguments) <= len(inputs) else []
            self.read(traced, {tensor.name: one for tensor, one in zip(arguments, last) if last})
        elif function is not None:
            self.work.extend(Work(node.op) for node in function.cached_definition.node_def)

    def _of_constant(self, op: Any) -> tuple[Atom, ...]:
        import tensorflow as tf

        made = op.outputs[0].dtype
        if not (made.is_floating or made.is_complex or made.is_integer or made.is_bool):
            return ()
        values = tf.make_ndarray(op.get_attr("value"))
        if made.is_integer or made.is_bool:
            return (("number", values.tobytes()),)
        found = np.unique(values.astype(np.complex128 if made.is_complex else np.float64))
        figures = [found.tobytes()] if found.size > _MOST else list(map(repr, found.tolist()))
        self.figures.update(figures)
        return tuple(("figure", one) for one in figures)

    def _of_form(self, op: Any, inputs: list[tuple[Atom, ...]]) -> tuple[Atom, ...]:
        if op.type in ("ZerosLike", "OnesLike"):
            value = float(op.type == "OnesLike")
            return (("figure", repr(value)),)
        if op.type in _OF_ALL:
            return _joined(inputs[: _OF_ALL[op.type]])
        return inputs[1 if op.type == "Fill" else 0]


def _joined(inputs: Iterable[tuple[Atom, ...]]) -> tuple[Atom, ...]:
    return tuple(dict.fromkeys(itertools.chain(*inputs)))


def _attributes(op: Any) -> tuple[tuple[str, bytes], ...]:
    return tuple(
        (name, attribute.SerializeToString(deterministic=True))
        for name, attribute in sorted(op.node_def.attr.items())
        if not (name.startswith("_") or name in _UNLIKE or attribute.HasField("shape") or attribute.list.shape)
    )
