"""The stages of a pipeline: what they change for other iterations of it, and how far its iterators read ahead."""

from __future__ import annotations

from typing import Any

from matex_tf.lazy import tf
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


# Elements of a generator, a `PyDataset` or another Python object do not come again: an iterator that ends early loses
# the elements that it has read ahead, and the next one begins after them. So ranks must read equally far ahead.


def read_alike(dataset: Any) -> Any:
    """The dataset, read equally far ahead on all ranks, and as far as the script alone reads it.

    If the script leaves the number of elements to TensorFlow, TensorFlow lets the number grow from 1; here it stays 1
    on all ranks. A pipeline whose iterations do not affect one another is returned as it is.
    """
    if not any(map(has_outside_state, list_pipeline(dataset))):
        return dataset
    last_stage = skip_options(dataset)
    ahead_count = count_ahead(dataset)
    if name_kind(last_stage) == "PrefetchDataset":
        dataset = last_stage._input_dataset.with_options(dataset.options())  # without the `prefetch` of the script
    return dataset.prefetch(ahead_count) if ahead_count else dataset


def count_ahead(dataset: Any) -> int:
    """The number of elements that the script alone reads ahead at the end of a pipeline; 1 if TensorFlow chooses."""
    last_stage = skip_options(dataset)
    if name_kind(last_stage) == "PrefetchDataset":
        ahead_count = int(last_stage._buffer_size)
    else:
        ahead_count = tf.data.AUTOTUNE if _is_prefetch_added(last_stage, dataset.options()) else 0
    return 1 if ahead_count == tf.data.AUTOTUNE else ahead_count


def _is_prefetch_added(last_stage: Any, options: Any) -> bool:
    """Whether TensorFlow adds a `prefetch` after `last_stage`, the last stage of a pipeline."""
    is_off = options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False
    return not is_off and not name_kind(last_stage).startswith("Parallel")


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
