"""Runs of ops that stay as they are, each as a function that the copy calls: TensorFlow puts its body back at run time.

To make an op from Python takes 0.1 ms, to put its definition into that of a function a hundredth of it.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.rewrite.compiled import MUST_COMPILE
from matex_tf.rewrite.functions import is_stateful
from matex_tf.rewrite.nodes import Node, Value

CALLS = "PartitionedCall", "StatefulPartitionedCall"
"""The types of ops that call a run: of ops without effects, of ops some of which have effects."""

_numbers = itertools.count()


class Segment:
    """The function of a run of ops, while it is put together."""

    def __init__(self) -> None:
        from tensorflow.core.framework import function_pb2

        self.definition = function_pb2.FunctionDef()
        self.definition.signature.name = f"matex_segment_{next(_numbers)}"
        self.tensors: list[Any] = []
        self.controls: list[Any] = []
        self._arguments: dict[int, str] = {}
        self._names: dict[str, int] = {}  # and the number that the last one like it got
        self._nodes: dict[int, str] = {}
        self._values: dict[int, str] = {}
        self._is_stateful, self._read_only_types = False, read_only_types()
        self._written: set[str] = set()  # arguments that some op may write to

    def __contains__(self, node: Node) -> bool:
        return id(node) in self._nodes

    def add(self, node: Node, inputs: Sequence[str], controls: Sequence[Node]) -> None:
        """Add an op. `inputs`: what `find` and `add_argument` gave for them."""
        made = self.definition.node_def.add()
        made.CopyFrom(node.definition)
        made.name = own = self._nodes[id(node)] = self._find_name(made.name)
        del made.input[:]
        made.input.extend([*inputs, *("^" + self._nodes[id(one)] for one in controls)] if controls else inputs)
        for name in [name for name in made.attr if name[0] == "_" and name != MUST_COMPILE]:
            del made.attr[name]
        for value, (output, index) in zip(node.outputs, name_outputs(node)):
            self._values[id(value)] = f"{own}:{output}:{index}"
        if is_stateful(node.op):
            self._is_stateful = True
        if node.type not in self._read_only_types:
            self._written.update(inputs)

    def find(self, value: Value) -> str | None:
        """The output of an op of the segment."""
        return self._values.get(id(value))

    def add_argument(self, tensor: Any) -> str:
        name = self._arguments.get(id(tensor))
        if name is None:
            name = self._arguments[id(tensor)] = self._find_name("argument")
            self.definition.signature.input_arg.add(name=name, type=tensor.dtype.base_dtype.as_datatype_enum)
            self.tensors.append(tensor)
        return name

    def call(self, graph: Any, values: Sequence[Value], controls: Sequence[Node]) -> Any:
        """The op that calls the function; its outputs are these values.

        controls: ops of the segment that have to have run when the call has.
        """
        from tensorflow.core.framework import attr_value_pb2

        signature = self.definition.signature
        signature.is_stateful = self._is_stateful
        for index, value in enumerate(values):
            name = f"result_{index}"
            signature.output_arg.add(name=name, type=value.dtype.as_datatype_enum)
            self.definition.ret[name] = self._values[id(value)]
        for index, node in enumerate(controls):
            signature.control_output.append(f"effect_{index}")
            self.definition.control_ret[f"effect_{index}"] = self._nodes[id(node)]
        function = Run(self.definition)
        given = [graph.capture(one) if one.graph is not graph else one for one in self.tensors]
        read_only = [
            index for index, (tensor, name) in enumerate(zip(self.tensors, self._arguments.values()))
            if tensor.dtype.name == "resource" and name not in self._written
        ]  # fmt: skip
        Attribute = attr_value_pb2.AttrValue
        attributes = {
            "Tin": Attribute(list=Attribute.ListValue(type=[one.dtype.base_dtype.as_datatype_enum for one in given])),
            "Tout": Attribute(list=Attribute.ListValue(type=[one.dtype.as_datatype_enum for one in values])),
            "f": Attribute(func=attr_value_pb2.NameAttrList(name=signature.name)),
            # Read by what orders the effects of a `tf.function`: the call writes to no other resources.
            "_read_only_resource_inputs": Attribute(list=Attribute.ListValue(i=read_only)),
        }
        kind = CALLS[signature.is_stateful]
        dtypes = [one.dtype for one in values]
        op = graph._create_op_internal(kind, given, dtypes, name=signature.name, attrs=attributes)
        graph._add_function(function)  # not before: TensorFlow would look for the shapes of all that is in it
        return op

    def _find_name(self, wanted: str) -> str:
        name, number = wanted, self._names.get(wanted, 0)
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names[wanted] = number
        self._names.setdefault(name, 0)
        return name


class Run:
    """A function of a run of ops in TensorFlow's runtime, as long as a graph calls it."""

    def __init__(self, definition: Any):
        from tensorflow.python.eager import context

        self.name = definition.signature.name.encode()
        self.cached_definition = definition
        self.children: list[Any] = []
        context.context().add_function_def(definition)
        weakref.finalize(self, _remove_function, self.name).atexit = False

    @property
    def _c_func(self) -> Any:
        from tensorflow.python.eager import context

        return context.context().get_c_function(self.name)


def _remove_function(name: bytes) -> None:
    from tensorflow.python.eager import context

    context.context().remove_function(name)


@functools.cache
def read_only_types() -> frozenset[str]:
    """The ops that only read a resource."""
    from tensorflow.python.framework import auto_control_deps_utils

    return frozenset(auto_control_deps_utils.RESOURCE_READ_OPS)


def name_outputs(node: Node) -> list[tuple[str, int]]:
    """For each output its name in the definition of the op's type, and its number among those of that name."""
    outputs = _list_outputs(node.type, node.op.op_def) if node.type not in _outputs else _outputs[node.type]
    if len(outputs) == len(node.outputs) == 1:
        return [(outputs[0][0], 0)]
    attributes = node.definition.attr
    return [(name, index) for name, count in outputs for index in range(count(attributes))]


_outputs: dict[str, list[tuple[str, Callable[[Any], int]]]] = {}


def _list_outputs(kind: str, definition: Any) -> list[tuple[str, Callable[[Any], int]]]:
    found: list[tuple[str, Callable[[Any], int]]] = []
    for one in definition.output_arg:
        number, types = one.number_attr, one.type_list_attr
        if number:
            found.append((one.name, lambda attributes, number=number: attributes[number].i))  # type: ignore[misc]
        elif types:
            found.append((one.name, lambda attributes, types=types: len(attributes[types].list.type)))  # type: ignore[misc]
        else:
            found.append((one.name, lambda _: 1))
    _outputs[kind] = found
    return found
