"""Ops that the copy of a step keeps as they are: their definitions are added to the copy's function after its trace.

The reason is time: creating an op from Python takes 0.1 ms, copying its definition 0.001 ms. While the copy is traced,
the kept ops do not exist. Where a created op needs an output of a kept op, a `FakeParam` op *stands in* for the output.
Where kept ops need outputs of created ops, one call op, "matex_tf_kept", has all of these outputs as inputs. When the
trace has ended, `trace_copy` replaces the stand-ins and the call op by the kept ops in the function's definition.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite import ordered_sums
from matex_tf.rewrite.compiled import CALLS, MUST_COMPILE
from matex_tf.rewrite.functions import is_movable, read_only_types
from matex_tf.rewrite.graph_ops import find_definition, is_stateful
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.thread_flag import ThreadFlag

_KEPT = "ops that are kept"
_keeps_ops = ThreadFlag()
"""Set while `trace_copy` traces: only then are the kept ops added in the end."""


def trace_copy(function: Callable[..., Any], specs: Sequence[Any]) -> Any:
    """The ConcreteFunction of a Python function that builds copies, for inputs of these specs; see `tf.function`."""
    with _keeps_ops.set():
        concrete_function = trace_own(function, input_signature=specs)
    pending_graphs = [(concrete_function.name, concrete_function.graph)]  # grows by the functions that these call
    for name, graph in pending_graphs:
        if groups := tags.get_tag(graph, _KEPT):
            _splice_into(name, graph, groups)
            groups.clear()
        pending_graphs += [
            (called_function.name, called_function.graph) for called_function in graph._functions.values()
        ]
    return concrete_function


class _KeptOp(NamedTuple):
    """A kept op.

    inputs: values of other kept ops, or tensors of the graph.
    controls: kept nodes, or operations of the graph.
    """

    node: Node
    inputs: list[Any]
    controls: list[Any]


class Kept:
    """The kept ops of one program in one graph.

    `bodies.Body` adds ops, and calls `finish` in the end. Then `trace_copy` reads the attributes.

    ops: the kept ops.
    stand_ins: for each operation that stands in for an output of a kept op, the value of the output.
    waiting: for each operation of the graph that waits for kept ops, their nodes.
    tensors: the tensors of the graph that are inputs of kept ops; set by `finish`.
    call: the operation that has `tensors` as inputs; set by `finish`.

    _node_ids, _value_ids: the ids of the kept nodes, and of their outputs.
    """

    def __init__(self, graph: Any):
        self.ops: list[_KeptOp] = []
        self.tensors: list[Any] = []
        self.stand_ins: dict[Any, Value] = {}
        self.waiting: dict[Any, list[Node]] = {}
        self.call: Any = None
        self._graph, self._keeps_ops = graph, bool(_keeps_ops)
        self._node_ids, self._value_ids = set[int](), set[int]()

    def can_keep(self, node: Node) -> bool:
        """Whether the op of a node can be kept: its rule and the order of its terms do not change it, and it can move
        into another function.
        """
        is_unchanged = node.decision.emit is None and not ordered_sums.is_unordered(node)
        return self._keeps_ops and is_unchanged and is_movable(node.type)

    def __contains__(self, item: Node | Value) -> bool:
        return id(item) in (self._node_ids if isinstance(item, Node) else self._value_ids)

    def add(self, node: Node, inputs: Sequence[Any], controls: Sequence[Any]) -> None:
        """Keep an op. `inputs`: values of kept ops, or tensors. `controls`: kept nodes, or operations of the graph."""
        self.ops.append(_KeptOp(node, list(inputs), list(controls)))
        self._node_ids.add(id(node))
        self._value_ids.update(map(id, node.outputs))

    def stand_in(self, value: Value, shape: Sequence[int | None] | None) -> Any:
        """The tensor in the graph that stands in for an output of a kept op."""
        from tensorflow.core.framework import attr_value_pb2

        Attribute = attr_value_pb2.AttrValue
        shape_proto = tf.TensorShape(shape).as_proto()
        attributes = {"dtype": Attribute(type=value.dtype.as_datatype_enum), "shape": Attribute(shape=shape_proto)}
        with tf.control_dependencies(None):
            op = self._graph._create_op_internal("FakeParam", [], [value.dtype], attrs=attributes)
        self.stand_ins[op] = value
        return op.outputs[0]

    def wait_for(self, nodes: Sequence[Node]) -> list[Any]:
        """A new operation that waits for these kept ops, in a list; an empty list if `nodes` is empty."""
        if not nodes:
            return []
        with tf.control_dependencies(None):
            op = tf.no_op()
        self.waiting[op] = list(nodes)
        return [op]

    def finish(self, effects: Sequence[Node]) -> list[Any]:
        """Create `call`, which takes `tensors` and waits for `effects`: kept ops that run even if no output needs them.

        Returns [call], or [] if no op is kept.
        """
        from tensorflow.core.framework import attr_value_pb2

        if not self.ops:
            return []
        graph, Attribute = self._graph, attr_value_pb2.AttrValue
        input_tensors = [item for kept_op in self.ops for item in kept_op.inputs if not isinstance(item, Value)]
        self.tensors = list({id(tensor): tensor for tensor in input_tensors}.values())
        writing_ops = (kept_op for kept_op in self.ops if kept_op.node.type not in read_only_types())
        written_ids = {id(item) for kept_op in writing_ops for item in kept_op.inputs}
        with tf.control_dependencies(None):
            inputs = [graph.capture(tensor) if tensor.graph is not graph else tensor for tensor in self.tensors]
            resources = (index for index, tensor in enumerate(inputs) if tensor.dtype == tf.resource)
            read_only_indices = [index for index in resources if id(self.tensors[index]) not in written_ids]
            types = [tensor.dtype.base_dtype.as_datatype_enum for tensor in inputs]
            attributes = {
                "Tin": Attribute(list=Attribute.ListValue(type=types)),
                "Tout": Attribute(list=Attribute.ListValue()),
                "f": Attribute(func=attr_value_pb2.NameAttrList(name="matex_tf_kept")),
                # `tf.function` orders effects by this attribute: the call writes to no other resources.
                "_read_only_resource_inputs": Attribute(list=Attribute.ListValue(i=read_only_indices)),
            }
            plain_call, stateful_call = CALLS
            call_type = stateful_call if any(is_stateful(kept_op.node.type) for kept_op in self.ops) else plain_call
            self.call = graph._create_op_internal(call_type, inputs, [], attrs=attributes)
        self.waiting[self.call] = list(effects)
        tags.get_or_make_tag(graph, _KEPT, list[Kept]).append(self)
        return [self.call]


def _splice_into(name: Any, graph: Any, groups: Sequence[Kept]) -> None:
    """Splice kept ops into a graph's function in TensorFlow's runtime, before the function first runs."""
    from tensorflow.python.eager import context

    runtime = context.context()
    definition = _Definition(runtime.get_function_def(name), graph, groups).spliced
    runtime.remove_function(name)
    runtime.add_function_def(definition)


class _Definition:
    """Splices kept ops into `original`, the FunctionDef of a graph. The result is `spliced`.

    _names: the names of the graph's operations in the definition.
    _used: all names in use.
    _numbers: for each name that several nodes have, the last number that was appended to make a name unique.
    _replaced: names of tensors and control inputs of kept ops, by the names of their stand-ins.
    """

    def __init__(self, original: Any, graph: Any, groups: Sequence[Kept]):
        from tensorflow.core.framework import function_pb2

        self.spliced = function_pb2.FunctionDef()
        self.spliced.CopyFrom(original)
        del self.spliced.node_def[:]
        input_ops = {tensor.op for tensor in graph.inputs}
        operations = [op for op in graph.get_operations() if op not in input_ops]
        nodes = dict(zip(operations, original.node_def, strict=True))
        self._names = {op: node.name for op, node in nodes.items()}
        self._used = {definition.name for definition in (*original.signature.input_arg, *original.node_def)}
        self._numbers = collections.Counter[str]()
        self._replaced: dict[str, str] = {}
        # Name the kept ops, and find the control inputs of operations that wait for them, by the operations' names.
        control_inputs: dict[str, list[str]] = {}
        names_of_groups = [self._name_nodes(kept, control_inputs) for kept in groups]
        # Copy the created ops, with kept ops in place of stand-ins.
        omitted_names = {self._names[op] for kept in groups for op in (kept.call, *kept.stand_ins)}
        for node in original.node_def:
            if node.name not in omitted_names:
                new_node = self.spliced.node_def.add()
                new_node.CopyFrom(node)
                new_node.input[:] = [*map(self._replace, node.input), *control_inputs.get(node.name, ())]
        # Add the kept ops. A NoOp that waits for their effects replaces the call op, for ops that wait for it.
        for kept, names in zip(groups, names_of_groups):
            call_node = nodes[kept.call]
            self.spliced.node_def.add(name=call_node.name, op="NoOp", input=control_inputs[call_node.name])
            # The call's inputs are these tensors, and then its control inputs.
            names.update((id(tensor), self._replace(name)) for tensor, name in zip(kept.tensors, call_node.input))
            self._add(kept, names)
        for name, result in original.ret.items():
            self.spliced.ret[name] = self._replace(result)

    def _name_nodes(self, kept: Kept, control_inputs: dict[str, list[str]]) -> dict[int, str]:
        """The names in `spliced` of kept ops and outputs, by the ids of nodes and values. Adds to `control_inputs`."""
        names: dict[int, str] = {}
        for node in (kept_op.node for kept_op in kept.ops):
            name = names[id(node)] = self._make_unique(node.definition.name)
            for value, suffix in zip(node.outputs, _name_outputs(node)):
                names[id(value)] = name + suffix
        for op, value in kept.stand_ins.items():
            self._replaced[f"{self._names[op]}:output:0"] = names[id(value)]
            self._replaced[f"^{self._names[op]}"] = f"^{names[id(value.node)]}"
        for op, nodes in kept.waiting.items():
            control_inputs[self._names[op]] = [f"^{names[id(node)]}" for node in nodes]
        return names

    def _add(self, kept: Kept, names: dict[int, str]) -> None:
        """Add kept ops. names: of kept ops and their inputs, by the ids of nodes, values and tensors."""
        first_index = len(self.spliced.node_def)
        self.spliced.node_def.extend(kept_op.node.definition for kept_op in kept.ops)
        for (node, sources, controls), new_node in zip(kept.ops, self.spliced.node_def[first_index:]):
            new_node.name = names[id(node)]
            inputs = [names[id(source)] for source in sources]
            control_names = (names[id(item)] if isinstance(item, Node) else self._names.get(item) for item in controls)
            # A control without a name is an input of the function, or is captured from outside: it has run before.
            inputs += dict.fromkeys(self._replace(f"^{name}") for name in control_names if name is not None)
            new_node.input[:] = inputs
            # Private attributes describe the script's graph (`emit.Copy.create_op`).
            for name in [name for name in new_node.attr if name[0] == "_" and name != MUST_COMPILE]:
                del new_node.attr[name]
            for name, value in ordered_sums.list_marks(node).items():
                new_node.attr[name].CopyFrom(value)

    def _replace(self, name: str) -> str:
        """The name in `spliced` of a tensor or a control input, a kept op's in place of a stand-in's."""
        return self._replaced.get(name, name)

    def _make_unique(self, base_name: str) -> str:
        """A name that no other node has, `base_name` if it is free."""
        name = base_name
        while name in self._used:
            self._numbers[base_name] += 1
            name = f"{base_name}_{self._numbers[base_name]}"
        self._used.add(name)
        return name


def _name_outputs(node: Node) -> list[str]:
    """The suffixes that name an op's outputs in the definition of a function, such as ":y:0"."""
    arguments, attributes = find_definition(node.type).output_arg, node.definition.attr
    return [f":{argument.name}:{index}" for argument in arguments for index in range(_count(argument, attributes))]


def _count(output: Any, attributes: Any) -> int:
    """The number of tensors of an output argument of an op."""
    if output.number_attr:
        return int(attributes[output.number_attr].i)
    return len(attributes[output.type_list_attr].list.type) if output.type_list_attr else 1
