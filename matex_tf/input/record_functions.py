"""Rewrites functions of pipelines that read files of records: they give tickets (`records`), or names of files.

Example: `lambda name: TFRecordDataset(name).take(10).map(parse)`, the function of an `interleave`, becomes a function
that gives the tickets of the first 10 records of the file, and a `Map` for `parse`.

The ops that read files are in the function, or in a function that it calls through datasets. A `Rewriter` replaces each
by an op that gives tickets or names. Ops that only order elements stay, and maps of records are taken out, to be
applied to the records later (`record_maps`). A function that does anything else to records cannot be rewritten.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from matex_tf.input import pipelines, record_maps
from matex_tf.input.record_maps import CannotBeIndexed, Map
from matex_tf.lazy import tf
from matex_tf.rewrite import graph_ops

KINDS = {"TFRecordDataset": "tfrecord", "TextLineDataset": "text", "FixedLengthRecordDatasetV2": "fixed"}
"""The formats of `ops.record_files`, by the ops that read them."""
_CYCLE_INPUTS = {
    "FlatMapDataset": None,
    "InterleaveDataset": -2,
    "ParallelInterleaveDatasetV2": -3,
    "ParallelInterleaveDatasetV3": -3,
    "ParallelInterleaveDatasetV4": -5,
    "LegacyParallelInterleaveDatasetV2": -4,
}
"""Ops whose functions return datasets, with the index of the input that gives the number of open datasets.

The index counts from the last input. None: the op opens one dataset at a time.
"""
AUTOTUNE = -1  # TensorFlow chooses the number
_STRING, _INT32, _INT64 = 7, 3, 9
"""TensorFlow's numbers of dtypes."""
_ORDERS = frozenset(
    "TakeDataset SkipDataset RepeatDataset ShardDataset ShuffleDataset ShuffleDatasetV2 ShuffleDatasetV3 "
    "ShuffleAndRepeatDataset ShuffleAndRepeatDatasetV2 PrefetchDataset OptionsDataset Identity".split()
)
"""Ops on one dataset that give the elements of that dataset."""
_CONSTANT = frozenset(
    "Assert ReadVariableOp VarHandleOp ReadFile LookupTableFind LookupTableFindV2 StatefulPartitionedCall StatefulIf "
    "If While DummySeedGenerator AnonymousSeedGenerator AnonymousRandomSeedGenerator DummyMemoryCache "
    "AnonymousMemoryCache".split()
)
"""Ops that TensorFlow calls stateful, but that give the same file names each time, or call functions that do."""


def read_kinds(function: Any) -> set[str]:
    """The formats of the files that a function of a pipeline, a ConcreteFunction, reads, itself or in functions that it
    calls.
    """
    return {KINDS[node.op] for node in graph_ops.iterate_nodes(function.graph) if node.op in KINDS}


def list_changing_ops(nodes: Iterable[Any]) -> list[str]:
    """The types of the ops, by their definitions, whose results may vary, except for datasets."""
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.framework import op_def_registry

    def is_changing(node: Any) -> bool:
        op = op_def_registry.get(node.op)
        if op is None or not op.is_stateful or node.op in _CONSTANT:
            return False
        makes_dataset = any(output.type == types_pb2.DT_VARIANT for output in op.output_arg)
        return not makes_dataset and not pipelines.finds_files(node)

    return sorted({node.op for node in nodes if is_changing(node)})


class _Body:
    """The ops of a function.

    nodes: the definitions of the ops, by name.
    new_nodes: the list of definitions that receives new ones.
    name_tensor: maps the names of a node and an output to the name of the tensor in the function.
    captured: the captured tensors, by the names of inputs: a tensor outside of all graphs, or the body of the caller
        and the name of a tensor there.
    """

    def __init__(
        self, nodes: dict[str, Any], new_nodes: Any, name_tensor: Callable[..., str], captured: dict[str, Any]
    ):
        self.nodes, self.new_nodes, self.name_tensor, self._captured = nodes, new_nodes, name_tensor, captured

    def find_captured(self, name: str) -> Any:
        """The value of a tensor that a map captures: a tensor outside of all graphs, or an array."""
        origin = self._find_origin(name)
        node = self.nodes.get(origin)
        if node is not None and node.op == "Const":
            return _read_constant(node)
        if origin not in self._captured:
            raise CannotBeIndexed("records are worked on where their files are read, by what depends on the file")
        value = self._captured[origin]
        if isinstance(value, tuple):
            caller, name_there = value
            return caller.find_captured(name_there)
        return value

    def find_value(self, name: str) -> Any:
        """The scalar value of a tensor; None if it is no constant."""
        node = self.nodes.get(self._find_origin(name))
        return None if node is None or node.op != "Const" else _read_constant(node).item()

    def _find_origin(self, name: str) -> str:
        """The node that makes a tensor."""
        name = _find_producer(name)
        while name in self.nodes and self.nodes[name].op == "Identity":
            name = _find_producer(self.nodes[name].input[0])
        return name

    def add_number(self, name: str, value: int) -> str:
        """Add an int64 constant; returns its tensor."""
        node = self.new_nodes.add()
        node.name = name
        _become(node, "Const", [], dtype=_INT64, value=np.array(value, np.int64))
        return self.name_tensor(name, "output")


def _read_constant(node: Any) -> Any:
    from tensorflow.python.framework import tensor_util

    return tensor_util.MakeNdarray(node.attr["value"].tensor)


class Rewriter:
    """Rewrites a function of a pipeline, and the functions that it calls, under other names.

    function: a ConcreteFunction that returns a dataset.
    gives_names: the datasets give names of files, each once; otherwise tickets.
    cpus: see `choose_cycle_length`.
    """

    def __init__(self, function: Any, gives_names: bool, cpus: int):
        self._function, self._gives_names, self._cpus = function, gives_names, cpus
        self._definition = function.graph.as_graph_def()
        self._library = {called.signature.name: called for called in self._definition.library.function}
        self._are_readers: dict[str, bool] = {}
        self._rewritten_count = 0

    def make(self) -> tuple[Callable[..., Any], tuple[Map, ...]]:
        """A function that builds the variant tensor of a dataset from the flat tensors of an element; and the maps of
        the records.

        Raises:
            CannotBeIndexed: the function works on records in another way.
        """
        from tensorflow.python.eager import context

        graph, captured = self._function.graph, list(self._function.captured_inputs)
        [output] = graph.outputs
        input_names, definition = [tensor.name for tensor in graph.inputs], self._definition
        nodes = {node.name: node for node in definition.node}
        captured_names = map(_find_producer, input_names[len(input_names) - len(captured) :])
        body = _Body(nodes, definition.node, "{}".format, dict(zip(captured_names, captured)))
        maps = self._replace(body, output.op.name)
        used = {_find_producer(name) for node in definition.node for name in _list_data(node)}
        input_nodes = set(map(_find_producer, input_names))
        other_nodes = [node for node in definition.node if node.name not in input_nodes]
        del definition.node[:]
        definition.node.extend(other_nodes)

        runtime = context.context()
        for function in definition.library.function:
            if not runtime.has_function(function.signature.name):
                runtime.add_function_def(function)
        definition.ClearField("library")

        def build(*tensors: Any) -> Any:
            inputs = zip(input_names, [*tensors, *captured], strict=True)
            graph = tf.compat.v1.get_default_graph()
            values = {name: graph.capture(tensor) for name, tensor in inputs if _find_producer(name) in used}
            [variant] = tf.graph_util.import_graph_def(
                definition, input_map=values, return_elements=[output.name], name="records"
            )
            return variant

        return tf.autograph.experimental.do_not_convert(build), maps

    def _replace(self, body: _Body, output: str) -> tuple[Map, ...]:
        """Replace the ops that read records; returns the maps to apply to the records.

        output: the node whose tensor is the result of the function.
        """
        maps_of: dict[str, tuple[Map, ...]] = {}  # of each node that gives a dataset of records, by its name
        for node in _sort(body.nodes):
            sources = [maps_of[name] for name in map(_find_producer, _list_data(node)) if name in maps_of]
            maps = sources[0] if sources else ()
            if node.op in KINDS:  # reads a file
                _check_compression(node, body)
                self._put_source(node, body)
            elif node.op in _CYCLE_INPUTS and self._is_reader(node.attr["f"].func.name):
                if sources:
                    raise CannotBeIndexed(f"records are given to a function ({node.op}) that reads further ones")
                maps = self._put_function(node, body)
                self._set_order(node, body)
                self._set_spec(node)
            elif sources and node.op in record_maps.KINDS:
                maps = (*maps, self._read_map(node, body))
                self._pass_on(node, body)
            elif sources and (node.op in _ORDERS or node.op == "ConcatenateDataset"):
                source_count = 1 if node.op in _ORDERS else 2
                if len(sources) != source_count or not record_maps.is_same(sources[0], sources[-1]):
                    raise CannotBeIndexed(f"records are put together with other elements ({node.op})")
                if self._gives_names and node.op in _ORDERS - {"Identity"}:  # a `skip` would leave out the name
                    self._pass_on(node, body)
                self._set_spec(node)
            elif sources or self._calls_reader(node):
                raise CannotBeIndexed(f"records are worked on where their files are read ({node.op})")
            else:
                continue
            maps_of[node.name] = maps
        if output not in maps_of:
            raise CannotBeIndexed("its function reads records, but gives others")
        return maps_of[output]

    def _read_map(self, node: Any, body: _Body) -> Map:
        """The map of a node. Raises CannotBeIndexed if its results may vary."""
        function = self._library[node.attr["f"].func.name]
        pending, called = [function.signature.name], dict[str, Any]()
        while pending:
            name = pending.pop()
            if name in self._library and name not in called:
                called[name] = self._library[name]
                pending += [callee for inner in called[name].node_def for callee in graph_ops.list_functions(inner)]
        if changing := list_changing_ops(inner for callee in called.values() for inner in callee.node_def):
            raise CannotBeIndexed(f"records are worked on where their files are read, by {', '.join(changing)}")
        return record_maps.read_map(node, function, body.find_captured)

    def _put_source(self, node: Any, body: _Body) -> None:
        """Add tickets or names as a tensor, and replace `node` by a dataset of its rows."""
        data, controls = _list_data(node), [name for name in node.input if name.startswith("^")]
        kind, sizes, rows, name = KINDS[node.op], body.new_nodes.add(), body.new_nodes.add(), node.name
        sizes.name, rows.name = f"{name}/matex_sizes", f"{name}/matex_rows"
        if self._gives_names:
            _become(sizes, "Const", [], dtype=_INT32, value=np.array([-1], np.int32))
            _become(
                rows, "Reshape", [data[0], body.name_tensor(sizes.name, "output"), *controls], T=_STRING, Tshape=_INT32
            )
        else:
            if kind == "fixed":  # the bytes of the header, of a record and of the footer
                _become(sizes, "Pack", data[1:4], N=3, T=_INT64, axis=0)
            else:
                _become(sizes, "Const", [], dtype=_INT64, value=np.empty(0, np.int64))
            inputs = [data[0], body.name_tensor(sizes.name, "output"), *controls]
            _become(rows, "MatexListRecords", inputs, format=kind.encode())
        rows_name = body.name_tensor(rows.name, "output" if self._gives_names else "tickets")
        _become(node, "TensorSliceDataset", [rows_name])
        self._set_spec(node)

    def _set_order(self, node: Any, body: _Body) -> None:
        """Make `node` give its elements in the order that it has alone."""
        if "deterministic" in node.attr:
            node.attr["deterministic"].s = b"true"
        if "sloppy" in node.attr:
            node.attr["sloppy"].b = False
        cycle_input = _CYCLE_INPUTS[node.op]
        if cycle_input is None:
            return
        data = _list_data(node)
        chosen = body.find_value(data[cycle_input])
        # The number of files that are read concurrently. None: it is no constant; 0: the op has no such input.
        calls = body.find_value(data[-1]) if node.op.startswith("ParallelInterleaveDatasetV") else 0
        if chosen is not None and chosen < 0:
            cycle = choose_cycle_length(chosen, AUTOTUNE if calls is None else calls, self._cpus)
            node.input[len(data) + cycle_input] = body.add_number(f"{node.name}/matex_cycle_length", cycle)
            if calls:  # must not exceed the number of files in turn
                node.input[len(data) - 1] = body.add_number(f"{node.name}/matex_calls", AUTOTUNE)

    def _pass_on(self, node: Any, body: _Body) -> None:
        """Make `node` give the elements of its input dataset; its output keeps the name of a dataset."""
        _become(node, "SkipDataset", [node.input[0], body.add_number(f"{node.name}/matex_none", 0)])
        self._set_spec(node)

    def _set_spec(self, node: Any) -> None:
        """Set the element spec of the dataset of `node`: names are strings, tickets three integers (`records`)."""
        if node.op == "Identity":
            return
        types = node.attr["Toutput_types" if node.op == "TensorSliceDataset" else "output_types"].list
        shapes = node.attr["output_shapes"].list
        types.type[:] = [_STRING if self._gives_names else _INT64]
        del shapes.shape[:]
        shapes.shape.add().CopyFrom(tf.TensorShape([] if self._gives_names else [3]).as_proto())

    def _put_function(self, node: Any, body: _Body) -> tuple[Map, ...]:
        """Make `node` call its rewritten function; returns the maps of its records."""
        function = self._definition.library.function.add()
        function.CopyFrom(self._library[node.attr["f"].func.name])
        self._rewritten_count += 1
        contents = "names" if self._gives_names else "tickets"
        name = f"{function.signature.name}_matex_{contents}_{self._rewritten_count}"
        function.signature.name = node.attr["f"].func.name = name
        # Behind its dataset the op takes the captured tensors, which are the last arguments of the function.
        outer_names = _list_data(node)[1 : 1 + len(node.attr["Targuments"].list.type)]
        arguments = [argument.name for argument in function.signature.input_arg]
        inner_names = arguments[len(arguments) - len(outer_names) :]
        captured = {inner: (body, outer) for inner, outer in zip(inner_names, outer_names)}
        [(_, output)] = function.ret.items()
        nodes = {inner.name: inner for inner in function.node_def}
        return self._replace(_Body(nodes, function.node_def, "{}:{}:0".format, captured), _find_producer(output))

    def _is_reader(self, name: str) -> bool:
        """Whether the function `name` reads records, itself or in functions that it calls."""
        if name not in self._are_readers:
            self._are_readers[name] = False  # a function that calls itself
            body = self._library[name].node_def
            self._are_readers[name] = any(node.op in KINDS or self._calls_reader(node) for node in body)
        return self._are_readers[name]

    def _calls_reader(self, node: Any) -> bool:
        return any(name in self._library and self._is_reader(name) for name in graph_ops.list_functions(node))


def _list_data(node: Any) -> list[str]:
    """The names of the inputs of a node, without control inputs."""
    return [name for name in node.input if not name.startswith("^")]


def _find_producer(name: str) -> str:
    """The name of the node that makes a tensor."""
    return name.split(":")[0]


def _sort(nodes: dict[str, Any]) -> Iterator[Any]:
    """The nodes in topological order."""
    producers = {name: [*map(_find_producer, _list_data(node))] for name, node in nodes.items()}
    return (nodes[name] for name in graphlib.TopologicalSorter(producers).static_order() if name in nodes)


def _check_compression(node: Any, body: _Body) -> None:
    """Raise CannotBeIndexed if the op's files are, or may be, compressed. Input 5 or 1 of the op names the kind."""
    kind = body.find_value(_list_data(node)[5 if KINDS[node.op] == "fixed" else 1])
    if kind is None:
        raise CannotBeIndexed("whether its files are compressed is told as it runs")
    if kind:
        raise CannotBeIndexed(f"its files are compressed ({kind.decode()}), so that each is read from its beginning")


def _become(node: Any, op: str, inputs: list[str], **attributes: Any) -> None:
    """Replace the op of `node`, which keeps its name. attributes: bytes, an array, or an integer, such as a dtype."""
    name, device = node.name, node.device
    node.Clear()
    node.name, node.op, node.device = name, op, device
    node.input.extend(inputs)
    for key, value in attributes.items():
        if isinstance(value, np.ndarray):
            node.attr[key].tensor.CopyFrom(tf.make_tensor_proto(value, shape=value.shape))
        elif isinstance(value, bytes):
            node.attr[key].s = value
        elif key in ("T", "Tshape", "dtype"):
            node.attr[key].type = value
        else:
            node.attr[key].i = value


def choose_cycle_length(chosen: int, calls: int | None, cpus: int) -> int:
    """The number of files that are read in turn, as TensorFlow chooses it for a process with `cpus`.

    chosen: the script's value, `AUTOTUNE` if there is none.
    calls: the script's number of files that are read concurrently, possibly `AUTOTUNE`; None or 0: one at a time.
    """
    if chosen != AUTOTUNE:
        return chosen
    if not calls:
        return cpus
    return -(-cpus // 3) if calls == AUTOTUNE else min(calls, cpus)
