"""The stages of a pipeline, and whether a stage changes what other iterations of the pipeline see."""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite import graph_ops
from matex_tf.runtime import real_files
from matex_tf.sharding.slice_bounds import list_pipeline

READS = frozenset("ReadVariableOp ReadFile LookupTableFind LookupTableFindV2 LookupTableSizeV2".split())
"""Ops that read state which other ops may change."""
HARMLESS = READS | frozenset(
    "Assert CheckNumerics CheckNumericsV2 VarHandleOp DummySeedGenerator DummyMemoryCache Placeholder".split()
)
"""Ops that TensorFlow may call stateful, but whose result for a row does not depend on the order of rows."""
CALLS = frozenset(
    "StatefulPartitionedCall PartitionedCall StatefulIf If StatelessIf While StatelessWhile Case StatelessCase".split()
)
"""Ops that are stateful only if the functions that they call are. These functions are checked separately."""


def name_kind(dataset: Any) -> str:
    return type(dataset).__name__.lstrip("_")


def has_outside_state(stage: Any) -> bool:
    """Whether a stage of a pipeline changes what other iterations of the pipeline see.

    A `repeat` or a `cache` after a `shuffle` does: the `shuffle` has another order in each iteration, and for each
    `repeat`; and the iteration that fills a `cache` determines its elements. A function of a stage does if it has a
    stateful op, such as a call of Python or an assignment. Exceptions are ops that make datasets, and random ops with
    attributes for a seed: their state belongs to one iteration.
    """
    if name_kind(stage) in ("RepeatDataset", "CacheDataset") and any(map(is_reshuffled, list_pipeline(stage))):
        return True
    return not all(makes_dataset(node) or draws(node) for node in list_stateful(stage))


def may_vary(stage: Any) -> bool:
    """Whether a stage may give different elements in another iteration, for equal inputs."""
    is_random = is_reshuffled(stage) or name_kind(stage) == "RandomDataset"
    return is_random or not all(map(makes_dataset, list_stateful(stage)))


def is_reshuffled(stage: Any) -> bool:
    """Whether a stage shuffles in a different order in each iteration."""
    return name_kind(stage) == "ShuffleDataset" and stage._reshuffle_each_iteration is not False


def skip_options(dataset: Any) -> Any:
    """The last stage of a pipeline, without `with_options` behind it."""
    while name_kind(dataset) == "OptionsDataset":
        dataset = dataset._input_dataset
    return dataset


def list_functions(dataset: Any) -> list[Any]:
    """The ConcreteFunctions of all stages of a pipeline."""
    return [wrapped.function for stage in list_pipeline(dataset) for wrapped in stage._functions()]


def list_stateful(stage: Any) -> list[Any]:
    """The definitions of the stateful ops in the functions of one stage of a pipeline."""
    nodes = [node for wrapped in stage._functions() for node in graph_ops.iterate_nodes(wrapped.function.graph)]
    return list(filter(is_stateful, nodes))


# The following functions answer questions on an op, by its definition.


def is_stateful(node: Any) -> bool:
    """Whether the result of an op for a row depends on the order of rows, or the op has effects. Unknown ops count.

    Ops that the library has added to find real paths of files do not count. Functions that the op calls are checked
    separately.
    """
    if node.op in CALLS | HARMLESS or real_files.finds_files(node):
        return False
    return graph_ops.is_stateful(node.op)


def makes_dataset(node: Any) -> bool:
    """Whether an op makes a dataset, or a seed generator or cache for one."""
    from tensorflow.core.framework import types_pb2

    definition = graph_ops.find_definition(node.op)
    return definition is not None and any(output.type == types_pb2.DT_VARIANT for output in definition.output_arg)


def draws(node: Any) -> bool:
    """Whether an op is random, with attributes for a seed."""
    return "seed2" in node.attr
