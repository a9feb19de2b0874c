"""Rewrites functions of pipelines that read files of records: they give tickets (`records`), or names of files.

Example: `lambda name: TFRecordDataset(name).take(10).map(parse)`, the function of an `interleave`, becomes a function
that gives the tickets of the first 10 records of the file, and a `Map` for `parse`.

The ops that read files are in the function, or in a function that an op on datasets calls, such as an inner
`interleave`. A `Rewriter` creates all ops of the function again. In place of an op that reads a file, it creates an op
that gives tickets or names. Ops that only order elements stay. Maps of records are taken out, to be applied to the
records later (`record_maps`). A function that does anything else to records cannot be rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from matex_tf import ops
from matex_tf.input import pipelines, record_maps
from matex_tf.input.functions import Subgraph, copy_op
from matex_tf.input.record_maps import CannotBeIndexed, Map
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
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
"""Ops whose functions return datasets, with the index, from the end, of the input that is the cycle length: the number
of datasets that are open at a time, from which elements are taken in turn. None: the op has one open dataset.
"""
AUTOTUNE = -1  # TensorFlow chooses the number
_ORDERS = frozenset(
    "TakeDataset SkipDataset RepeatDataset ShardDataset ShuffleDataset ShuffleDatasetV2 ShuffleDatasetV3 "
    "ShuffleAndRepeatDataset ShuffleAndRepeatDatasetV2 PrefetchDataset OptionsDataset Identity".split()
)
"""Ops on one dataset that give the elements of that dataset."""


def read_kinds(nodes: Iterable[Any]) -> set[str]:
    """The formats of the files that ops read, by the definitions of the ops."""
    return {KINDS[node.op] for node in nodes if node.op in KINDS}


def list_changing_ops(nodes: Iterable[Any]) -> list[str]:
    """The types of the ops, by their definitions, whose results may vary, except for datasets.

    Results that vary only if variables, tables or files change do not count.
    """
    return sorted({node.op for node in nodes if pipelines.is_stateful(node) and not pipelines.makes_dataset(node)})


class Rewriter:
    """Rewrites a function of a pipeline, and the functions that it calls.

    function: a ConcreteFunction that returns a dataset.
    gives_names: the rewritten datasets give names of files, each once; otherwise tickets.
    cpus: see `choose_cycle_length`.

    _origins: by the ids of the tensors that stand for captured tensors in functions, the captured tensors themselves.
    _graphs: keeps these functions alive, so that the ids stay unique.
    """

    def __init__(self, function: Any, gives_names: bool, cpus: int):
        self._function, self._gives_names, self._cpus = function, gives_names, cpus
        self._origins: dict[int, Any] = {}
        self._graphs: list[Any] = []

    def make(self) -> tuple[Callable[..., Any], tuple[Map, ...]]:
        """A function that builds the variant tensor of a dataset from the flat tensors of an element; and the maps of
        the records.

        Raises:
            CannotBeIndexed: the function works on records in another way.
        """
        captured = list(self._function.captured_inputs)
        rewritten_function, maps = self._rewrite(self._function.graph, captured)
        created_ops = [op for op in rewritten_function.graph.get_operations() if op.type != "Placeholder"]
        subgraph = Subgraph(created_ops, rewritten_function.inputs, rewritten_function.outputs)

        def build(*tensors: Any) -> Any:
            [variant] = subgraph.build([*tensors, *captured])
            return variant

        return tf.autograph.experimental.do_not_convert(build), maps

    def _rewrite(self, graph: Any, captured: Sequence[Any]) -> tuple[Any, tuple[Map, ...]]:
        """A ConcreteFunction in place of the function with this graph, and the maps to apply to the records.

        captured: the captured tensors, which are the last inputs of the function.
        """
        self._graphs.append(graph)
        self._origins.update(zip(map(id, graph.inputs[len(graph.inputs) - len(captured) :]), captured))
        maps: list[Map] = []

        def rewritten(*inputs: Any) -> Any:
            variant, maps[:] = self._create_ops(graph, inputs)
            return variant

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in graph.inputs]
        with tf.init_scope():
            return trace_own(rewritten, input_signature=specs), tuple(maps)

    def _create_ops(self, graph: Any, inputs: Sequence[Any]) -> tuple[Any, tuple[Map, ...]]:
        """Create the rewritten ops of a function in the current graph; returns its result, and the maps of records."""
        tensors = dict(zip(map(id, graph.inputs), inputs))
        created_ops: dict[int, Any] = {}
        maps_by_dataset: dict[int, tuple[Map, ...]] = {}  # of each dataset of records, by the id of its tensor
        for op in graph.get_operations():
            if op.type == "Placeholder":
                continue
            controls = [created_ops[id(control)] for control in op.control_inputs if id(control) in created_ops]
            source_maps = [maps_by_dataset[id(tensor)] for tensor in op.inputs if id(tensor) in maps_by_dataset]
            with tf.control_dependencies(controls):
                new_op, maps = self._create(op, [tensors[id(tensor)] for tensor in op.inputs], source_maps)
            created_ops[id(op)] = new_op
            tensors.update(zip(map(id, op.outputs), new_op.outputs))
            if maps is not None:
                maps_by_dataset[id(op.outputs[0])] = maps
        [output] = graph.outputs
        if id(output) not in maps_by_dataset:
            raise CannotBeIndexed("its function reads records, but gives others")
        return tensors[id(output)], maps_by_dataset[id(output)]

    def _create(
        self, op: Any, inputs: list[Any], source_maps: Sequence[tuple[Map, ...]]
    ) -> tuple[Any, tuple[Map, ...] | None]:
        """The op in place of `op`, and the maps to apply to the records of its dataset; None if it has no records.

        source_maps: for each input that is a dataset of records, the maps of this dataset.
        """
        # An op that reads a file.
        if op.type in KINDS:
            return self._list_file(op, inputs), ()
        # An op that calls a function which reads files.
        calls_reader = bool(read_kinds(graph_ops.iterate_nodes(op.graph, [op])))
        if op.type in _CYCLE_INPUTS and calls_reader:
            if source_maps:
                raise CannotBeIndexed(f"records are given to a function ({op.type}) that reads further ones")
            return self._call_rewritten(op, inputs)
        # An op that has nothing to do with records.
        if not source_maps and not calls_reader:
            return copy_op(op, inputs, dict(op.node_def.attr.items())), None
        # A map of records: the dataset stays without it.
        if source_maps and op.type in record_maps.KINDS:
            return inputs[0].op, (*source_maps[0], self._read_map(op))
        # An op that orders records, or joins two datasets of them. Any other op works on records.
        if not source_maps or op.type not in (*_ORDERS, "ConcatenateDataset"):
            raise CannotBeIndexed(f"records are worked on where their files are read ({op.type})")
        needed_count = 2 if op.type == "ConcatenateDataset" else 1  # inputs with records, to which the same maps apply
        if len(source_maps) < needed_count or not record_maps.is_same(source_maps[0], source_maps[-1]):
            raise CannotBeIndexed(f"records are put together with other elements ({op.type})")
        if self._gives_names and op.type in _ORDERS:  # left out: a `skip` of records would skip the name
            return inputs[0].op, source_maps[0]
        return copy_op(op, inputs, self._make_attributes(op)), source_maps[0]

    def _make_attributes(self, op: Any) -> dict[str, Any]:
        """The attributes of an op on datasets, with the element spec of names (strings) or tickets (three integers: the
        file's number, and the record's offset and length).
        """
        attributes = dict(op.node_def.attr.items())
        if "output_types" in attributes:
            dtype, shape = (tf.string, []) if self._gives_names else (tf.int64, [3])
            attributes["output_types"].list.type[:] = [dtype.as_datatype_enum]
            del attributes["output_shapes"].list.shape[:]
            attributes["output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(shape).as_proto())
        return attributes

    def _list_file(self, op: Any, inputs: Sequence[Any]) -> Any:
        """The op of the dataset of file names, or of tickets, in place of `op`, which reads files."""
        kind = KINDS[op.type]
        compression = self._find_value(op.inputs[5 if kind == "fixed" else 1])  # "": none
        if compression is None:
            raise CannotBeIndexed("whether its files are compressed is told as it runs")
        if compression:
            text = compression.decode()
            raise CannotBeIndexed(f"its files are compressed ({text}), so that each is read from its beginning")
        if self._gives_names:
            elements, shape = tf.reshape(inputs[0], [-1]), []
        else:  # sizes: of records of a fixed length, the bytes of the header, of a record and of the footer
            sizes = tf.stack(inputs[1:4]) if kind == "fixed" else tf.zeros([0], tf.int64)
            elements = ops.get_library().ops.matex_list_records(files=inputs[0], bytes=sizes, format=kind)
            shape = [3]
        return tf.raw_ops.TensorSliceDataset(components=[elements], output_shapes=[shape]).op

    def _call_rewritten(self, op: Any, inputs: list[Any]) -> tuple[Any, tuple[Map, ...]]:
        """The op in place of `op`, with the rewritten function and the elements in the order that they have alone."""
        from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

        name, attributes = op.get_attr("f").name, self._make_attributes(op)
        called_function = op.graph._get_function(name)
        graph = getattr(called_function, "graph", None)
        if not getattr(graph, "inputs", None):
            with op.graph.as_default():  # it has the functions that `called_function` calls
                graph = function_def_to_graph(called_function.cached_definition)
        # The inputs of the op are its dataset, then the captured tensors, which are the last inputs of the function.
        rewritten_function, maps = self._rewrite(graph, op.inputs[1 : 1 + len(op.get_attr("Targuments"))])
        rewritten_function.add_to_graph(tf.compat.v1.get_default_graph())
        attributes["f"].func.name = tf.compat.as_str(rewritten_function.name)
        if "deterministic" in attributes:
            attributes["deterministic"].s = b"true"
        if "sloppy" in attributes:
            attributes["sloppy"].b = False
        cycle_input = _CYCLE_INPUTS[op.type]
        chosen_length = None if cycle_input is None else self._find_value(op.inputs[cycle_input])
        # If the length is less than 0, TensorFlow would choose it by the CPUs.
        if cycle_input is not None and chosen_length is not None and chosen_length < 0:
            # The number of files that are read concurrently. None: it is no constant; 0: the op has no such input.
            parallel_calls = self._find_value(op.inputs[-1]) if op.type.startswith("ParallelInterleaveDatasetV") else 0
            cycle_length = choose_cycle_length(
                chosen_length, AUTOTUNE if parallel_calls is None else parallel_calls, self._cpus
            )
            inputs[cycle_input] = tf.constant(cycle_length, tf.int64)
            if parallel_calls:  # must not exceed the number of files in turn
                inputs[-1] = tf.constant(AUTOTUNE, tf.int64)
        return copy_op(op, inputs, attributes), maps

    def _read_map(self, op: Any) -> Map:
        """The map of an op. Raises CannotBeIndexed if its results may vary, or depend on the file."""
        if changing_ops := list_changing_ops(graph_ops.iterate_nodes(op.graph, [op])):
            raise CannotBeIndexed(f"records are worked on where their files are read, by {', '.join(changing_ops)}")
        captured = [self._find_constant(tensor) for tensor in op.inputs[1 : 1 + len(op.get_attr("Targuments"))]]
        if any(value is None for value in captured):
            raise CannotBeIndexed("records are worked on where their files are read, by what depends on the file")
        return record_maps.make_map(op, captured)

    def _find_constant(self, tensor: Any) -> Any:
        """The value of a tensor in a function, as an eager tensor or an array; None if it is no constant."""
        while not hasattr(tensor, "numpy"):
            if id(tensor) in self._origins:
                tensor = self._origins[id(tensor)]
            elif tensor.op.type == "Identity":
                tensor = tensor.op.inputs[0]
            else:
                return tf.get_static_value(tensor)
        return tensor

    def _find_value(self, tensor: Any) -> Any:
        """The scalar value of a tensor; None if it is no constant."""
        constant = self._find_constant(tensor)
        return None if constant is None else np.asarray(constant).item()


def choose_cycle_length(chosen: int, calls: int | None, cpus: int) -> int:
    """The number of files that are read in turn, as TensorFlow chooses it for a process with `cpus` CPUs.

    chosen: the script's value, `AUTOTUNE` if there is none.
    calls: the script's number of files that are read concurrently, possibly `AUTOTUNE`; None or 0: one at a time.
    """
    if chosen != AUTOTUNE:
        return chosen
    if not calls:
        return cpus
    return -(-cpus // 3) if calls == AUTOTUNE else min(calls, cpus)
