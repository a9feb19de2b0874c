"""Ops that a copy keeps unchanged: their definitions are spliced into the copy's function, and no Python op is created.

Creating an op from Python takes 0.1 ms; copying its definition takes a hundredth of that. While the other ops of the
copy are created, `FakeParam` ops stand in for the outputs of kept ops, and one call op consumes all inputs of kept ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.compiled import CALLS, MUST_COMPILE
from matex_tf.rewrite.functions import is_movable, is_stateful, read_only_types
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.thread_flag import ThreadFlag

_KEPT = "ops that are kept"
_are_kept = ThreadFlag()


def trace_copy(function: Callable[..., Any], specs: Sequence[Any]) -> Any:
    """The ConcreteFunction of a Python function that builds copies, for inputs of these specs; see `tf.function`."""
    with _are_kept.set():
        made = tf.function(function, autograph=False, input_signature=specs).get_concrete_function()
    pending = [(made.name, made.graph)]
    for name, graph in pending:
        if found := tags.get_tag(graph, _KEPT):
            _put_into(name, graph, found)
            found.clear()
        pending += [(one.name, one.graph) for one in graph._functions.values()]
    return made


class _Use(NamedTuple):
    """A kept op. inputs: values of other kept ops, or indices into `Kept.tensors`. controls: nodes or operations."""

    node: Node
    inputs: list[Value | int]
    controls: list[Any]


class Kept:
    """The kept ops of one program in one graph."""

    def __init__(self, graph: Any):
        self.uses: list[_Use] = []
        self.tensors: list[Any] = []
        self.stand_ins: dict[Any, Value] = {}  # the values that these operations of the graph stand in for
        self.waiting: dict[Any, list[Node]] = {}  # by operations: the kept nodes that they wait for
        self.call: Any = None
        self._graph, self._are_kept = graph, bool(_are_kept)
        self._nodes, self._values = set[int](), set[int]()
        self._places: dict[int, int] = {}
        self._written: set[int] = set()  # indices of tensors that a kept op may write to

    def takes(self, node: Node) -> bool:
        """Whether the op of a node can be kept."""
        return self._are_kept and node.decision.emit is None and is_movable(node)

    def __contains__(self, one: Node | Value) -> bool:
        return id(one) in (self._nodes if isinstance(one, Node) else self._values)

    def add(self, node: Node, inputs: Sequence[Any], controls: Sequence[Any]) -> None:
        """Keep an op. `inputs`: values of kept ops, or tensors. `controls`: kept nodes, or operations of the graph."""
        given = [one if isinstance(one, Value) else self._find_place(one) for one in inputs]
        self.uses.append(_Use(node, given, list(controls)))
        self._nodes.add(id(node))
        self._values.update(map(id, node.outputs))
        if node.type not in read_only_types():
            self._written.update(one for one in given if isinstance(one, int))

    def _find_place(self, tensor: Any) -> int:
        place = self._places.setdefault(id(tensor), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(tensor)
        return place

    def stand_in(self, value: Value, shape: Sequence[int | None] | None) -> Any:
        """The tensor in the graph that stands in for an output of a kept op."""
        from tensorflow.core.framework import attr_value_pb2

        Attribute = attr_value_pb2.AttrValue
        attributes = {
            "dtype": Attribute(type=value.dtype.as_datatype_enum),
            "shape": Attribute(shape=tf.TensorShape(shape).as_proto()),
        }
        with tf.control_dependencies(None):
            op = self._graph._create_op_internal("FakeParam", [], [value.dtype], attrs=attributes)
        self.stand_ins[op] = value
        return op.outputs[0]

    def wait_for(self, nodes: Sequence[Node]) -> list[Any]:
        """An operation that waits for these kept ops, if there are any."""
        if not nodes:
            return []
        with tf.control_dependencies(None):
            op = tf.no_op()
        self.waiting[op] = list(nodes)
        return [op]

    def finish(self, effects: Sequence[Node]) -> list[Any]:
        """The operation that consumes all inputs of kept ops and waits for `effects`; None if no op is kept."""
        from tensorflow.core.framework import attr_value_pb2

        if not self.uses:
            return []
        graph, Attribute = self._graph, attr_value_pb2.AttrValue
        with tf.control_dependencies(None):
            given = [graph.capture(one) if one.graph is not graph else one for one in self.tensors]
            read_only = [at for at, one in enumerate(given) if one.dtype == tf.resource and at not in self._written]
            types = [one.dtype.base_dtype.as_datatype_enum for one in given]
            attributes = {
                "Tin": Attribute(list=Attribute.ListValue(type=types)),
                "Tout": Attribute(list=Attribute.ListValue()),
                "f": Attribute(func=attr_value_pb2.NameAttrList(name="matex_tf_kept")),
                # `tf.function` orders effects by this attribute: the call writes to no other resources.
                "_read_only_resource_inputs": Attribute(list=Attribute.ListValue(i=read_only)),
            }
            kind = CALLS[any(is_stateful(one.node.op) for one in self.uses)]
            self.call = graph._create_op_internal(kind, given, [], attrs=attributes)
        self.waiting[self.call] = list(effects)
        tags.get_or_make_tag(graph, _KEPT, list[Kept]).append(self)
        return [self.call]


def _put_into(name: Any, graph: Any, found: Sequence[Kept]) -> None:
    """Splice kept ops into a graph's function in TensorFlow's runtime, before the function first runs."""
    from tensorflow.python.eager import context

    runtime = context.context()
    definition = _Definition(runtime.get_function_def(name), graph, found).made
    runtime.remove_function(name)
    runtime.add_function_def(definition)


class _Definition:
    """Splices kept ops into `given`, the FunctionDef of a graph; `made` is the result."""

    def __init__(self, given: Any, graph: Any, found: Sequence[Kept]):
        from tensorflow.core.framework import function_pb2

        self.made = function_pb2.FunctionDef()
        self.made.CopyFrom(given)
        del self.made.node_def[:]
        taken = {tensor.op for tensor in graph.inputs}
        operations = [op for op in graph.get_operations() if op not in taken]
        nodes = dict(zip(operations, given.node_def, strict=True))
        self._names = {op: node.name for op, node in nodes.items()}
        self._used = {one.name for one in (*given.signature.input_arg, *given.node_def)}
        self._numbers: dict[str, int] = {}
        self._instead: dict[str, str] = {}  # inputs of the given nodes
        waited: dict[str, list[str]] = {}  # by the names of the given nodes
        own = [self._name_nodes(one, waited) for one in found]
        left_out = {self._names[op] for one in found for op in (one.call, *one.stand_ins)}
        for node in given.node_def:
            if node.name not in left_out:
                new = self.made.node_def.add()
                new.CopyFrom(node)
                new.input[:] = [*map(self._find, node.input), *waited.get(node.name, ())]
        for one, names in zip(found, own):
            call = nodes[one.call]
            self.made.node_def.add(name=call.name, op="NoOp", input=waited[call.name])
            self._add(one, names, list(map(self._find, call.input)))
        for name, result in given.ret.items():
            self.made.ret[name] = self._find(result)

    def _name_nodes(self, kept: Kept, waited: dict[str, list[str]]) -> dict[int, str]:
        """The names of the kept ops here, by the ids of nodes, and the names of their outputs, by the ids of values."""
        names: dict[int, str] = {}
        for node in (use.node for use in kept.uses):
            own = names[id(node)] = self._find_name(node.definition.name)
            for value, output in zip(node.outputs, _name_outputs(node)):
                names[id(value)] = own + output
        for op, value in kept.stand_ins.items():
            self._instead[f"{self._names[op]}:output:0"] = names[id(value)]
            self._instead[f"^{self._names[op]}"] = f"^{names[id(value.node)]}"
        waited.update((self._names[op], [f"^{names[id(one)]}" for one in nodes]) for op, nodes in kept.waiting.items())
        return names

    def _add(self, kept: Kept, names: dict[int, str], tensors: Sequence[str]) -> None:
        """Add kept ops, whose names are known. `tensors`: the names of the tensors that `kept.tensors` lists."""
        start = len(self.made.node_def)
        self.made.node_def.extend(use.node.definition for use in kept.uses)
        for use, new in zip(kept.uses, self.made.node_def[start:]):
            new.name = names[id(use.node)]
            inputs = [tensors[one] if type(one) is int else names[id(one)] for one in use.inputs]
            before = (names[id(one)] if isinstance(one, Node) else self._names.get(one) for one in use.controls)
            # A tensor without a name is an input of the function, or is captured from outside.
            inputs += dict.fromkeys(self._find(f"^{name}") for name in before if name is not None)
            new.input[:] = inputs
            if len(new.attr) > _find_outputs(use.node)[1]:
                for name in [name for name in new.attr if name[0] == "_" and name != MUST_COMPILE]:
                    del new.attr[name]

    def _find(self, name: str) -> str:
        """The name here of a tensor, or of a control input."""
        return self._instead.get(name, name)

    def _find_name(self, wanted: str) -> str:
        name = wanted
        while name in self._used:
            number = self._numbers[wanted] = self._numbers.get(wanted, 0) + 1
            name = f"{wanted}_{number}"
        self._used.add(name)
        return name


_outputs: dict[str, tuple[list[Any], int]] = {}


def _find_outputs(node: Node) -> tuple[list[Any], int]:
    """The output arguments of the op's type, and their lengths."""
    if node.type not in _outputs:
        definition = node.op.op_def
        _outputs[node.type] = list(definition.output_arg), len(definition.attr)
    return _outputs[node.type]


def _name_outputs(node: Node) -> list[str]:
    """The suffixes that name an op's outputs in the definition of a function."""
    outputs, _ = _find_outputs(node)
    if len(outputs) == len(node.outputs) == 1:
        return [f":{outputs[0].name}:0"]
    attributes = node.definition.attr
    return [f":{one.name}:{at}" for one in outputs for at in range(_count(one, attributes))]


def _count(output: Any, attributes: Any) -> int:
    """The number of tensors of an output argument of an op."""
    if output.number_attr:
        return int(attributes[output.number_attr].i)
    return len(attributes[output.type_list_attr].list.type) if output.type_list_attr else 1
