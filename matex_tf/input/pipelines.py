"""The steps of a tf.data pipeline, and whether one changes what other iterations of it meet."""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite import graph_ops
from matex_tf.runtime import real_files
from matex_tf.sharding.slice_bounds import list_pipeline

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
    return not all(_makes_dataset(op) or _draws(op) for op in list_stateful(step))


def gives_others(step: Any) -> bool:
    """Whether the elements of a step, of the same elements before it, may be others in another iteration."""
    return is_shuffled_anew(step) or not all(map(_makes_dataset, list_stateful(step)))


def is_shuffled_anew(step: Any) -> bool:
    return name_kind(step) == "ShuffleDataset" and step._reshuffle_each_iteration is not False


def _makes_dataset(op: Any) -> bool:
    from tensorflow.core.framework import types_pb2

    return any(output.type == types_pb2.DT_VARIANT for output in op.output_arg)


def _draws(op: Any) -> bool:
    return any(part.name == "seed2" for part in op.attr)


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

    nodes = [node for one in step._functions() for node in graph_ops.iterate_nodes(one.function.graph)]
    nodes = [node for node in nodes if not node.name.split("/")[-1].startswith(real_files.PLACES_OF_FILES)]
    known = [op_def_registry.get(node.op) for node in nodes if node.op not in HARMLESS | CALLS]
    return [op for op in known if op is not None and op.is_stateful]
