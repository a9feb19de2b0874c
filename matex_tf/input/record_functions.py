"""Rewrites functions of pipelines that read files of records: they give tickets of records, or names of files.

The ops that read files are in the function, or in a function that it calls through datasets. Ops that only order
elements stay. A function that does anything else to records cannot be rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from matex_tf.input import pipelines, record_maps
from matex_tf.input.record_maps import CannotBeIndexed, Map
from matex_tf.lazy import tf
from matex_tf.rewrite import graph_ops
from matex_tf.runtime import real_files

KINDS = {"TFRecordDataset": "tfrecord", "TextLineDataset": "text", "FixedLengthRecordDatasetV2": "fixed"}
"""The formats of `ops.record_files`, by the ops that read them."""
_CYCLE_PLACES = {
    "FlatMapDataset": None,
    "InterleaveDataset": -2,
    "ParallelInterleaveDatasetV2": -3,
    "ParallelInterleaveDatasetV3": -3,
    "ParallelInterleaveDatasetV4": -5,
    "LegacyParallelInterleaveDatasetV2": -4,
}
"""Ops whose functions return datasets, with the index of the input that gives the number of open datasets."""
AUTOTUNE = -1
_STRING, _INT32, _INT64 = 7, 3, 9
"""TensorFlow's numbers of dtypes."""
_ORDERS = frozenset(
    "TakeDataset SkipDataset RepeatDataset ShardDataset ShuffleDataset ShuffleDatasetV2 ShuffleDatasetV3 "
    "ShuffleAndRepeatDataset ShuffleAndRepeatDatasetV2 PrefetchDataset OptionsDataset Identity".split()
)
"""Ops on one dataset that give the elements of that dataset."""
_JOINS = frozenset(("ConcatenateDataset",))


_CONSTANT = frozenset(
    "Assert ReadVariableOp VarHandleOp ReadFile LookupTableFind LookupTableFindV2 StatefulPartitionedCall StatefulIf "
    "If While DummySeedGenerator AnonymousSeedGenerator AnonymousRandomSeedGenerator DummyMemoryCache "
    "AnonymousMemoryCache".split()
)
"""Ops that TensorFlow calls stateful, but that give the same file names each time; or their functions do."""


def read_kinds(function: Any) -> set[str]:
    """The formats of the files that a function of a pipeline, a ConcreteFunction, reads, itself or in functions that it
    calls.
    """
    return {KINDS[node.op] for node in graph_ops.iterate_nodes(function.graph) if node.op in KINDS}


def list_changing_ops(function: Any) -> list[str]:
    """The types of the ops in a function of a pipeline whose results may vary, except for datasets."""
    return _list_changing(graph_ops.iterate_nodes(function.graph))


def reads_state(function: Any) -> bool:
    """Whether a function of a pipeline reads state that the script can change: variables, tables, whole files."""
    return any(node.op in pipelines.READS for node in graph_ops.iterate_nodes(function.graph))


def _list_changing(nodes: Iterable[Any]) -> list[str]:
    from tensorflow.core.framework import types_pb2
    from tensorflow.python.framework import op_def_registry

    found = set[str]()
    for node in nodes:
        op = op_def_registry.get(node.op)
        is_place = node.name.split("/")[-1].startswith(real_files.PLACES_OF_FILES)
        if op is None or not op.is_stateful or node.op in _CONSTANT or is_place:
            continue
        if not any(output.type == types_pb2.DT_VARIANT for output in op.output_arg):
            found.add(node.op)
    return sorted(found)


class _Body:
    """The ops of a function.

    nodes: by name.
    into: receives further nodes.
    name_tensor: maps a node and an output to the name of the tensor here.
    held: captured tensors by the names of inputs: a tensor outside of all graphs, or a body and the name of its tensor.
    """

    def __init__(self, nodes: dict[str, Any], into: Any, name_tensor: Callable[..., str], held: dict[str, Any]):
        self.nodes, self.into, self.name_tensor, self._held = nodes, into, name_tensor, held

    def find_captured(self, name: str) -> Any:
        """The value of a tensor that a map captures: a tensor outside of all graphs, or an array."""
        found = self._find_origin(name)
        node = self.nodes.get(found)
        if node is not None and node.op == "Const":
            return _read_constant(node)
        if found not in self._held:
            raise CannotBeIndexed("records are worked on where their files are read, by what depends on the file")
        value = self._held[found]
        return value[0].find_captured(value[1]) if isinstance(value, tuple) else value

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
        import numpy as np

        made = self.into.add()
        made.name = name
        _become(made, "Const", [], dtype=_INT64, value=np.array(value, np.int64))
        return self.name_tensor(name, "output")


def _read_constant(node: Any) -> Any:
    from tensorflow.python.framework import tensor_util

    return tensor_util.MakeNdarray(node.attr["value"].tensor)


class Rewriter:
    """Rewrites a function, and the functions that it calls, under other names.

    names: the datasets give names of files, each once; otherwise tickets.
    cpus: see `choose_cycle_length`.
    """

    def __init__(self, function: Any, names: bool, cpus: int):
        self._function, self._names, self._cpus = function, names, cpus
        self._definition = function.graph.as_graph_def()
        self._library = {one.signature.name: one for one in self._definition.library.function}
        self._reads: dict[str, bool] = {}
        self._made = 0

    def make(self) -> tuple[Callable[..., Any], tuple[Map, ...]]:
        """A builder of the variant tensor of a dataset from the flat tensors of an element; and the maps of its
        records.
        """
        from tensorflow.python.eager import context

        graph, captured = self._function.graph, list(self._function.captured_inputs)
        [output] = graph.outputs
        given, definition = [tensor.name for tensor in graph.inputs], self._definition
        nodes = {node.name: node for node in definition.node}
        held = {_find_producer(name): value for name, value in zip(given[len(given) - len(captured) :], captured)}
        maps = self._replace(_Body(nodes, definition.node, "{}".format, held), output.op.name)
        taken = {_find_producer(name) for node in definition.node for name in _list_data(node)}
        inputs = {_find_producer(name) for name in given}
        kept = [node for node in definition.node if node.name not in inputs]
        del definition.node[:]
        definition.node.extend(kept)

        known = context.context()
        for function in definition.library.function:
            if not known.has_function(function.signature.name):
                known.add_function_def(function)
        definition.ClearField("library")

        def build(*tensors: Any) -> Any:
            found = zip(given, [*tensors, *captured], strict=True)
            graph = tf.compat.v1.get_default_graph()
            values = {name: graph.capture(tensor) for name, tensor in found if _find_producer(name) in taken}
            [made] = tf.graph_util.import_graph_def(
                definition, input_map=values, return_elements=[output.name], name="records"
            )
            return made

        return tf.autograph.experimental.do_not_convert(build), maps

    def _replace(self, body: _Body, output: str) -> tuple[Map, ...]:
        """Replace the ops that read records; returns the maps to apply to the records.

        output: the node whose tensor is the result of the function.
        """
        made: dict[str, tuple[Map, ...]] = {}
        for node in _sort(body.nodes):
            sources = [made[name] for name in map(_find_producer, _list_data(node)) if name in made]
            maps = sources[0] if sources else ()
            if node.op in KINDS:
                _check_compression(node, body)
                self._put_source(node, body)
            elif node.op in _CYCLE_PLACES and self._is_reader(node.attr["f"].func.name):
                if sources:
                    raise CannotBeIndexed(f"records are given to a function ({node.op}) that reads further ones")
                maps = self._put_function(node, body)
                self._set_order(node, body)
                self._set_spec(node)
            elif sources and node.op in record_maps.KINDS:
                maps = (*maps, self._read_map(node, body))
                self._pass_on(node, body)
            elif sources and node.op in _ORDERS | _JOINS:
                joined = 2 if node.op in _JOINS else 1
                if len(sources) != joined or not record_maps.is_same(sources[0], sources[-1]):
                    raise CannotBeIndexed(f"records are put together with other elements ({node.op})")
                if self._names and node.op in _ORDERS - {"Identity"}:
                    self._pass_on(node, body)
                self._set_spec(node)
            elif sources or self._calls_reader(node):
                raise CannotBeIndexed(f"records are worked on where their files are read ({node.op})")
            else:
                continue
            made[node.name] = maps
        if output not in made:
            raise CannotBeIndexed("its function reads records, but gives others")
        return made[output]

    def _read_map(self, node: Any, body: _Body) -> Map:
        function = self._library[node.attr["f"].func.name]
        pending, called = [function.signature.name], dict[str, Any]()
        while pending:
            name = pending.pop()
            if name in self._library and name not in called:
                called[name] = self._library[name]
                pending += [one for inner in called[name].node_def for one in graph_ops.list_functions(inner)]
        if found := _list_changing(inner for one in called.values() for inner in one.node_def):
            raise CannotBeIndexed(f"records are worked on where their files are read, by {', '.join(found)}")
        return record_maps.read_map(node, function, body.find_captured)

    def _put_source(self, node: Any, body: _Body) -> None:
        """Add tickets or names as a tensor, and replace `node` by a dataset of its rows."""
        import numpy as np

        data, controls = _list_data(node), [name for name in node.input if name.startswith("^")]
        kind, sizes, rows, name = KINDS[node.op], body.into.add(), body.into.add(), node.name
        sizes.name, rows.name = f"{name}/matex_sizes", f"{name}/matex_rows"
        if self._names:
            _become(sizes, "Const", [], dtype=_INT32, value=np.array([-1], np.int32))
            _become(
                rows, "Reshape", [data[0], body.name_tensor(sizes.name, "output"), *controls], T=_STRING, Tshape=_INT32
            )
        else:
            if kind == "fixed":
                _become(sizes, "Pack", data[1:4], N=3, T=_INT64, axis=0)
            else:
                _become(sizes, "Const", [], dtype=_INT64, value=np.empty(0, np.int64))
            inputs = [data[0], body.name_tensor(sizes.name, "output"), *controls]
            _become(rows, "MatexListRecords", inputs, format=kind.encode())
        given = body.name_tensor(rows.name, "output" if self._names else "tickets")
        _become(node, "TensorSliceDataset", [given])
        self._set_spec(node)

    def _set_order(self, node: Any, body: _Body) -> None:
        """Make `node` give its elements in the order that it has alone."""
        if "deterministic" in node.attr:
            node.attr["deterministic"].s = b"true"
        if "sloppy" in node.attr:
            node.attr["sloppy"].b = False
        place = _CYCLE_PLACES[node.op]
        if place is None:
            return
        data = _list_data(node)
        chosen = body.find_value(data[place])
        calls = body.find_value(data[-1]) if node.op.startswith("ParallelInterleaveDatasetV") else 0
        if chosen is not None and chosen < 0:
            cycle = choose_cycle_length(chosen, AUTOTUNE if calls is None else calls, self._cpus)
            node.input[len(data) + place] = body.add_number(f"{node.name}/matex_cycle_length", cycle)
            if calls:  # must not exceed the number of files in turn
                node.input[len(data) - 1] = body.add_number(f"{node.name}/matex_calls", AUTOTUNE)

    def _pass_on(self, node: Any, body: _Body) -> None:
        """Make `node` give the elements of its input dataset; its output keeps the name of a dataset."""
        _become(node, "SkipDataset", [node.input[0], body.add_number(f"{node.name}/matex_none", 0)])
        self._set_spec(node)

    def _set_spec(self, node: Any) -> None:
        """Set the element spec of the dataset of `node` to that of names, or of tickets."""
        if node.op == "Identity":
            return
        types = node.attr["Toutput_types" if node.op == "TensorSliceDataset" else "output_types"].list
        shapes = node.attr["output_shapes"].list
        types.type[:] = [_STRING if self._names else _INT64]
        del shapes.shape[:]
        shapes.shape.add().CopyFrom(tf.TensorShape([] if self._names else [3]).as_proto())

    def _put_function(self, node: Any, body: _Body) -> tuple[Map, ...]:
        """Make `node` call its rewritten function; returns the maps of its records."""
        function = self._definition.library.function.add()
        function.CopyFrom(self._library[node.attr["f"].func.name])
        self._made += 1
        name = f"{function.signature.name}_matex_{'names' if self._names else 'tickets'}_{self._made}"
        function.signature.name = node.attr["f"].func.name = name
        captured = _list_data(node)[1 : 1 + len(node.attr["Targuments"].list.type)]
        arguments = [one.name for one in function.signature.input_arg]
        held = {name: (body, given) for name, given in zip(arguments[len(arguments) - len(captured) :], captured)}
        [(_, output)] = function.ret.items()
        nodes = {one.name: one for one in function.node_def}
        return self._replace(_Body(nodes, function.node_def, "{}:{}:0".format, held), _find_producer(output))

    def _is_reader(self, name: str) -> bool:
        """Whether the function `name` reads records, itself or in functions that it calls."""
        if name not in self._reads:
            self._reads[name] = False  # a function that calls itself
            body = self._library[name].node_def
            self._reads[name] = any(node.op in KINDS or self._calls_reader(node) for node in body)
        return self._reads[name]

    def _calls_reader(self, node: Any) -> bool:
        return any(name in self._library and self._is_reader(name) for name in graph_ops.list_functions(node))


def _list_data(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _find_producer(name: str) -> str:
    return name.split(":")[0]


def _sort(nodes: dict[str, Any]) -> Iterator[Any]:
    """The nodes in topological order."""
    seen: set[str] = set()
    pending = list(reversed(nodes))
    while pending:
        name = pending.pop()
        if name in seen or name not in nodes:
            continue
        before = [one for one in map(_find_producer, _list_data(nodes[name])) if one in nodes and one not in seen]
        if before:
            pending += [name, *before]
            continue
        seen.add(name)
        yield nodes[name]


def _check_compression(node: Any, body: _Body) -> None:
    kind = body.find_value(_list_data(node)[5 if KINDS[node.op] == "fixed" else 1])
    if kind is None:
        raise CannotBeIndexed("whether its files are compressed is told as it runs")
    if kind:
        raise CannotBeIndexed(f"its files are compressed ({kind.decode()}), so that each is read from its beginning")


def _become(node: Any, op: str, inputs: list[str], **attributes: Any) -> None:
    """Replace the op of `node`, which keeps its name. attributes: bytes, an array, or an integer, such as a dtype."""
    import numpy as np

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

    Args:
        chosen: the script's value, `AUTOTUNE` if there is none.
        calls: the number of files that are read concurrently, possibly `AUTOTUNE`; None: not given, or 0.
    """
    if chosen != AUTOTUNE:
        return chosen
    if not calls:
        return cpus
    return -(-cpus // 3) if calls == AUTOTUNE else min(calls, cpus)
