"""The shapes of tf.data pipelines in which rows can be chosen before work is done on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_HARMLESS = {"Assert", "ReadVariableOp", "VarHandleOp", "ReadFile", "LookupTableFind", "LookupTableFindV2"}
"""Ops that TensorFlow calls stateful, but that give the same for the same row wherever it comes in the order."""
_CALLS = {"StatefulPartitionedCall", "PartitionedCall", "StatefulIf", "If", "StatelessIf", "While"}
"""Stateful if what they call is, which is looked at by itself."""
_AROUND = ("PrefetchDataset", "OptionsDataset", "RepeatDataset")
PLACES_OF_FILES = "matex_places_of_files"
"""The name of the calls of Python by which the ranks after the first find their files; the first has none."""


def match_arrays(dataset: Any) -> tuple[Any, Any, Callable[..., Any]] | None:
    """Of Keras' pipeline over arrays the datasets of indices and of arrays, and what gathers the rows of both.

    None if `dataset` is not of its shape.
    """
    import tensorflow as tf

    gather, _ = skip_kinds(dataset, ("PrefetchDataset", "OptionsDataset"))
    if name_kind(gather) != "ParallelMapDataset" or name_kind(gather._input_dataset) != "ZipDataset":
        return None
    parts = gather._input_dataset._datasets
    if len(parts) != 2 or getattr(parts[0].element_spec, "dtype", None) != tf.int64:
        return None
    return parts[0], parts[1], gather._map_func._func


def find_obstacle(dataset: Any) -> str | None:
    """Why rows of `dataset`, of a script's own, cannot be chosen before the work on them; None where they can."""
    batching, _ = find_batching(dataset)
    if name_kind(batching) not in ("BatchDataset", "ParallelBatchDataset"):
        return "`batch` is not its last step (`prefetch` and `repeat` may follow)"
    maps, source = list_maps(batching)
    rows = int(source.cardinality())
    if rows < 1:
        return "the number of its rows is not known, or without an end (`repeat` is better after `batch`)"
    if not any(name_kind(step) == "ParallelMapDataset" for step in maps):
        return "no `map` with num_parallel_calls is right before its `batch`"
    if any(_is_order_dependent(step) for step in maps):
        return "its maps draw at random, count or call Python, so that a row's place matters"
    if batching._drop_remainder and rows < int(batching._batch_size):
        return "it has less than one batch"
    return None


def find_batching(dataset: Any) -> tuple[Any, list[Any]]:
    """The step that batches, where a script's own pipeline ends in one, and those after it, the last one first."""
    return skip_kinds(dataset, _AROUND)


def list_maps(batching: Any) -> tuple[list[Any], Any]:
    """The maps right under `batching`, the first one first, and what they map."""
    maps: list[Any] = []
    source = batching._input_dataset
    while name_kind(source) in ("MapDataset", "ParallelMapDataset"):
        maps.insert(0, source)
        source = source._input_dataset
    return maps, source


def name_kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_")


def has_outside_state(step: Any) -> bool:
    """Whether one step of a pipeline changes what other iterations of it meet: it calls Python or assigns variables.

    Each iteration makes its own datasets, and its own random numbers by a seed that an op itself holds.
    """
    function = getattr(step, "_map_func", None) or getattr(step, "_predicate", None)
    return function is not None and not all(map(_is_each_iterations, _list_stateful(function)))


def _is_each_iterations(op: Any) -> bool:
    from tensorflow.core.framework import types_pb2

    is_dataset = any(output.type == types_pb2.DT_VARIANT for output in op.output_arg)
    return is_dataset or any(part.name == "seed2" for part in op.attr)


def skip_kinds(dataset: Any, kinds: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """The first dataset under `dataset` that is none of `kinds`, and those above it, the uppermost first."""
    above = []
    while name_kind(dataset) in kinds:
        above.append(dataset)
        dataset = dataset._input_dataset
    return dataset, above


def _is_order_dependent(step: Any) -> bool:
    """Whether a map may give something else for a row that comes at another place: it draws, counts or calls Python."""
    return bool(_list_stateful(step._map_func))


def _list_stateful(function: Any) -> list[Any]:
    """The definitions of the ops with a state of their own in a function of a pipeline."""
    from tensorflow.python.framework import op_def_registry

    graph = function.function.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    nodes = [node for node in nodes if not node.name.split("/")[-1].startswith(PLACES_OF_FILES)]
    known = [op_def_registry.get(node.op) for node in nodes if node.op not in _HARMLESS | _CALLS]
    return [op for op in known if op is not None and op.is_stateful]
