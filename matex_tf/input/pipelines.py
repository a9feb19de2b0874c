"""The steps of a tf.data pipeline, and whether a step changes what other iterations of it see.

A step is a dataset, such as the result of `map`. A pipeline is a step and all steps from which it is made.
"""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite import graph_ops
from matex_tf.runtime import real_files
from matex_tf.sharding.slice_bounds import list_pipeline

HARMLESS = frozenset(
    "Assert CheckNumerics CheckNumericsV2 ReadVariableOp VarHandleOp ReadFile LookupTableFind LookupTableFindV2 "
    "LookupTableSizeV2".split()
)
"""Ops that TensorFlow calls stateful, but whose result for a row does not depend on the order of rows."""
READS = HARMLESS - {"Assert", "CheckNumerics", "CheckNumericsV2", "VarHandleOp"}
"""The ops of `HARMLESS` that read state which other ops may change."""
CALLS = frozenset(
    "StatefulPartitionedCall PartitionedCall StatefulIf If StatelessIf While StatelessWhile Case StatelessCase".split()
)
"""Ops that are stateful only if the functions that they call are. These functions are checked separately."""


def name_kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_")


def has_outside_state(step: Any) -> bool:
    """Whether a step of a pipeline changes what other iterations of the pipeline see.

    A `repeat` or a `cache` after a `shuffle` does: the `shuffle` has another order in each iteration, and for each
    `repeat`; and the iteration that fills a `cache` determines its elements. A function of a step does if it has a
    stateful op, such as a call of Python or an assignment. Exceptions are ops that make datasets, and random ops with
    attributes for a seed: their state belongs to one iteration.
    """
    if name_kind(step) in ("RepeatDataset", "CacheDataset") and any(map(is_reshuffled, list_pipeline(step))):
        return True
    return not all(_makes_dataset(op) or _draws(op) for op in list_stateful(step))


def may_vary(step: Any) -> bool:
    """Whether a step may give different elements in another iteration, for equal inputs."""
    is_random = is_reshuffled(step) or name_kind(step) == "RandomDataset"
    return is_random or not all(map(_makes_dataset, list_stateful(step)))


def is_reshuffled(step: Any) -> bool:
    """Whether a step shuffles in a different order in each iteration."""
    return name_kind(step) == "ShuffleDataset" and step._reshuffle_each_iteration is not False


def _makes_dataset(op: Any) -> bool:
    from tensorflow.core.framework import types_pb2

    return any(output.type == types_pb2.DT_VARIANT for output in op.output_arg)


def _draws(op: Any) -> bool:
    return any(attribute.name == "seed2" for attribute in op.attr)


def skip_options(dataset: Any) -> Any:
    """The last step of a pipeline, without `with_options` behind it."""
    while name_kind(dataset) == "OptionsDataset":
        dataset = dataset._input_dataset
    return dataset


def list_stateful(step: Any) -> list[Any]:
    """The definitions of the stateful ops in the functions of one step of a pipeline."""
    from tensorflow.python.framework import op_def_registry

    nodes = [node for wrapped in step._functions() for node in graph_ops.iterate_nodes(wrapped.function.graph)]
    types = [node.op for node in nodes if node.op not in HARMLESS | CALLS and not real_files.finds_files(node)]
    definitions = map(op_def_registry.get, types)
    return [definition for definition in definitions if definition is not None and definition.is_stateful]
