"""Stages that read records of files, as tickets: file number, offset and length of each record, without its data.

These stages are `TFRecordDataset`, `TextLineDataset`, `FixedLengthRecordDataset`, and `interleave` and `flat_map`
with functions that make such a dataset from a file name. First all ranks list the names of the files and index the
files (`record_index`). Then in the function, an op that lists a file's tickets replaces the op that reads the file
(`record_functions`). So TensorFlow's own ops order the tickets as they order records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.input import functions, pipelines, record_functions, record_index, tickets
from matex_tf.input.record_maps import CannotBeIndexed, Map
from matex_tf.lazy import tf
from matex_tf.ops import record_files
from matex_tf.rewrite import graph_ops
from matex_tf.runtime import objects
from matex_tf.world import launcher_processes, placement, world

_READERS = ("TFRecordDatasetV2", "TextLineDatasetV2", "FixedLengthRecordDatasetV2")
_STAGES = ("FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset")
_SOURCES = ("TensorSliceDataset", "TensorDataset", "RangeDataset")
_NAMES_PER_BATCH = 1 << 16
"""The number of file names that are listed at a time."""
_RECORDS = "its records"


class Records(NamedTuple):
    """A dataset of records in two parts.

    tickets: a dataset of tickets, int64 tensors [3], in the order of the script's dataset.
    read: computes the script's element from a ticket. The element is the record, a scalar string, or the result of maps
        in the function that reads the files. Without such maps `read` also takes tickets of shape [..., 3], and returns
        records of shape [...].
    names: the files that the dataset may read; empty if they may vary.
    kind: the format of the files.
    """

    tickets: Any
    read: Callable[[Any], Any]
    names: tuple[bytes, ...]
    kind: str


def make_tickets(dataset: Any) -> Records | str:
    """The records of a dataset as tickets, or the reason why that is impossible ("": it reads no records). Collective.

    All ranks call it with the dataset of the same place in the script. The first call indexes the records. Later calls
    index files that have changed; tickets that were made before are read from the former file while it is open, else
    they are an error.
    """
    known_records: Records | None = tags.get_tag(dataset, _RECORDS)
    if known_records is not None:
        return record_index.index_files(known_records.names, known_records.kind) or known_records
    try:
        result = _make_tickets(dataset)
    except CannotBeIndexed as reason:
        return str(reason)
    if isinstance(result, Records) and result.names:
        tags.set_tag(dataset, _RECORDS, result)
    return result


def _make_tickets(dataset: Any) -> Records | str:
    """The records of a dataset, or the reason why they cannot be tickets. Collective."""
    stage = _find_stage(dataset)
    kinds = record_functions.read_kinds(graph_ops.iterate_nodes(stage._map_func.function.graph))
    if len(kinds) != 1:
        return "it reads files of several formats" if kinds else ""
    [kind] = kinds
    cpus, reason = _count_script_cpus(), ""
    maps: tuple[Map, ...] = ()
    names: list[bytes] = []
    try:
        function, maps = record_functions.Rewriter(stage._map_func.function, gives_names=False, cpus=cpus).make()
        names = _list_names(stage, cpus)
    except CannotBeIndexed as error:
        reason = str(error)
    except Exception as error:  # perhaps on this rank alone: the others wait in the next collective
        reason = f"its names of files cannot be made ({type(error).__name__}: {error})"
    reason = record_index.index_files(names, kind, reason)  # the reason of any rank; with one, nothing is indexed
    if reason:
        return reason
    read = _make_reader(maps, stage.element_spec) if maps else record_files.read_records
    # A function that reads variables, tables or whole files may give other names later.
    graphs = [stage_function.graph for stage_function in pipelines.list_functions(stage)]
    names_may_vary = any(node.op in pipelines.READS for graph in graphs for node in graph_ops.iterate_nodes(graph))
    return Records(_make_dataset(stage, function, cpus), read, () if names_may_vary else tuple(names), kind)


def _make_reader(maps: Sequence[Map], spec: Any) -> Callable[[Any], Any]:
    """A function that reads the record of a ticket and applies the maps; spec: of the result."""

    def read(ticket: Any) -> Any:
        element = [record_files.read_records(ticket)]
        for record_map in maps:
            element = functions.require(element, record_map.build(element))
        return tickets.pack(spec, element)

    return read


def _find_stage(dataset: Any) -> Any:
    """The stage that makes a dataset of each file name, and orders the elements of these datasets."""
    from tensorflow.python.data.ops import dataset_ops

    if not hasattr(dataset._variant_tensor, "numpy"):
        raise CannotBeIndexed("it is made in a graph")
    while isinstance(dataset, dataset_ops.DatasetV1Adapter):
        dataset = dataset._dataset
    kind = pipelines.name_kind(dataset)
    if kind in _READERS:
        return dataset._impl
    if kind in _STAGES:
        return dataset
    raise CannotBeIndexed("")


def _count_script_cpus() -> int:
    """The number of CPUs of the script alone: all CPUs of rank 0's host that the launcher gives the job. Collective.

    By this number TensorFlow chooses how many files it reads in turn, and thus the order of records.
    """
    if not world.is_active():
        return len(os.sched_getaffinity(0))
    cpus = placement.find_host_cpus(launcher_processes.find_launcher())
    return objects.broadcast(len(cpus), "how many CPUs a dataset of records has alone")


def _build(function: Callable[..., Any], spec: Any, source: Any) -> Callable[..., Any]:
    """A function for `source.flat_map` or `interleave`: it returns a dataset with elements of `spec`.

    `function` computes the variant tensor of this dataset from the flat tensors of an element of `source`.
    """
    from tensorflow.python.data.ops import dataset_ops

    return tickets.take_tensors(source, lambda tensors: dataset_ops._VariantDataset(function(*tensors), spec))


def _make_dataset(stage: Any, function: Callable[..., Any], cpus: int) -> Any:
    """The stage over `function`, with the elements of its datasets in the order of the script alone."""
    from tensorflow.python.data.ops import readers

    source = stage._input_dataset
    make_dataset = _build(function, tf.TensorSpec([3], tf.int64), source)
    kind = pipelines.name_kind(stage)
    if kind == "FlatMapDataset":
        return source.flat_map(make_dataset)
    if isinstance(stage, readers.ParallelInterleaveDataset):
        return readers.ParallelInterleaveDataset(
            source, make_dataset, stage._cycle_length, stage._block_length, False, stage._buffer_output_elements,
            stage._prefetch_input_elements,
        )  # fmt: skip
    parallel_calls, script_cycle_length = getattr(stage, "_num_parallel_calls", None), int(stage._cycle_length)
    cycle_length = record_functions.choose_cycle_length(
        script_cycle_length, None if parallel_calls is None else int(parallel_calls), cpus
    )
    if parallel_calls is None:
        return source.interleave(make_dataset, cycle_length, stage._block_length)
    if cycle_length != script_cycle_length:
        parallel_calls = record_functions.AUTOTUNE  # because the script's number may exceed the chosen cycle length
    return source.interleave(
        make_dataset, cycle_length, stage._block_length, num_parallel_calls=parallel_calls, deterministic=True
    )


def _list_names(stage: Any, cpus: int) -> list[bytes]:
    """The names of all files that a stage may read, each once, in an order that is the same on all ranks.

    The state of the script's own datasets is not touched: their shuffles are left out.
    """
    function = stage._map_func.function
    _check_function(function)
    # The rewritten function gives the name of a file where the script's function gives the records of the file.
    make_names, _ = record_functions.Rewriter(function, gives_names=True, cpus=cpus).make()
    source = _find_source(stage._input_dataset)
    name_batches = source.flat_map(_build(make_names, tf.TensorSpec([], tf.string), source)).batch(_NAMES_PER_BATCH)
    # By `reduce`, which needs no iterator: the library's hook of iterators would run collectives.
    all_names = name_batches.reduce(
        tf.zeros([0], tf.string), lambda names_so_far, batch: tf.concat([names_so_far, batch], 0)
    )
    return list(dict.fromkeys(all_names.numpy().tolist()))


def _find_source(dataset: Any) -> Any:
    """A dataset with all elements of `dataset`, and possibly more, in any order."""
    kind = pipelines.name_kind(dataset)
    if kind in tickets.ORDER or kind == "CacheDataset":  # without these stages the names are the same, or more
        return _find_source(dataset._input_dataset)
    if kind in _SOURCES:
        return dataset
    if kind == "ConcatenateDataset":
        return _find_source(dataset._input_dataset).concatenate(_find_source(dataset._dataset_to_concatenate))
    if kind in tickets.MAPS:
        return _find_source(dataset._input_dataset).map(_call(dataset, dataset._map_func))
    if kind == "FilterDataset":
        return _find_source(dataset._input_dataset).filter(_call(dataset, dataset._predicate))
    raise CannotBeIndexed(f"its names of files come from a {kind}")


def _call(stage: Any, wrapped: Any) -> Callable[..., Any]:
    """The function of a stage, for another stage of its kind."""
    function = wrapped.function
    _check_function(function)

    def call(tensors: tickets.Tensors) -> Any:
        results = function(*tensors)
        results = results if isinstance(results, (list, tuple)) else [results]
        return tickets.pack(wrapped.output_structure, results)

    return tickets.take_tensors(stage._input_dataset, call)


def _check_function(function: Any) -> None:
    """Raise CannotBeIndexed if the file names that a function makes of an element may vary."""
    if changing_ops := record_functions.list_changing_ops(graph_ops.iterate_nodes(function.graph)):
        raise CannotBeIndexed(f"its names of files are made by {', '.join(changing_ops)}")
