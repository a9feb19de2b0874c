"""The steps of a tf.data pipeline, and whether one changes what other iterations of it meet."""

from __future__ import annotations

from typing import Any

from matex_tf.sharding.row_shares import list_pipeline

HARMLESS = frozenset(
    "Assert CheckNumerics CheckNumericsV2 ReadVariableOp VarHandleOp ReadFile LookupTableFind LookupTableFindV2 "
    "LookupTableSizeV2".split()
)
"""Ops that TensorFlow calls stateful, but that give the same for the same row wherever it comes in the order."""
READS = HARMLESS - {"Assert", "CheckNumerics", "CheckNumericsV2", "VarHandleOp"}
"""Those that read what other ops may change."""
CALLS = frozenset(
    "StatefulPartitionedCall PartitionedCall StatefulIf If StatelessIf While StatelessWhile Case StatelessCase".split()
)
"""Stateful if what they call is, which is looked at by itself."""
PLACES_OF_FILES = "matex_places_of_files"
"""The name of the calls of Python by which the ranks after the first find their files; the first has none."""


def name_kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_")


def has_outside_state(step: Any) -> bool:
    """Whether one step of a pipeline changes what other iterations of it meet.

    A `shuffle` has another order each time that it begins anew, for a `repeat`, too. A `cache` keeps the one that fills
    it.
    """
    is_kept = name_kind(step) in ("RepeatDataset", "CacheDataset") and any(map(is_shuffled_anew, list_pipeline(step)))
    return is_kept or changes_outside(step)


def changes_outside(step: Any) -> bool:
    """Whether the function of a step calls Python or assigns variables.

    Each iteration makes its own datasets, and its own random numbers by a seed that an op itself holds.
    """
    return not all(map(_is_each_iterations, list_stateful(step)))


def is_shuffled_anew(step: Any) -> bool:
    return name_kind(step) == "ShuffleDataset" and step._reshuffle_each_iteration is not False


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


def list_stateful(step: Any) -> list[Any]:
    """The definitions of the ops with a state of their own in the functions of one step of a pipeline."""
    from tensorflow.python.framework import op_def_registry

    graphs = [one.function.graph.as_graph_def() for one in step._functions()]
    nodes = [node for graph in graphs for part in (graph.node, *(one.node_def for one in graph.library.function))
             for node in part]  # fmt: skip
    nodes = [node for node in nodes if not node.name.split("/")[-1].startswith(PLACES_OF_FILES)]
    known = [op_def_registry.get(node.op) for node in nodes if node.op not in HARMLESS | CALLS]
    return [op for op in known if op is not None and op.is_stateful]
