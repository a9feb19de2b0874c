"""The advice of `--explain` on pipelines: which stages and ops make every rank do all work, and what to use instead.

On `from_generator(g).map(f).batch(32)` the line names the generator, and advises `Dataset.range(n)` and a map that
makes element i.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf import settings
from matex_tf.input import pipelines
from matex_tf.lazy import tf
from matex_tf.runtime import notes
from matex_tf.sharding import slice_bounds
from matex_tf.world import world

_MAPS, _BATCHES = ("Map", "ParallelMap"), ("Batch", "ParallelBatch", "PaddedBatch")
_INTERLEAVES, _READERS = ("FlatMap", "Interleave", "ParallelInterleave"), ("TFRecord", "TextLine", "FixedLengthRecord")
_UNINDEXED = ("Csv", "Load", "Sql")
"""Stages that read files whose records are not indexed."""

# The replacement of each stage or type of op, by a regular expression, of which the first match counts. A stage that
# reads files which are not indexed is looked up as "STAGE: REASON".
OF_STAGES = (
    ("a generator", "`Dataset.range(n)` and a map that makes element i"),
    ("a cache in a file", "`cache()` in memory, or `matex_tf.readers.DataSet`"),
    ("Csv", "`TextLineDataset`, and `tf.io.decode_csv` in a map"),
    ("Filter", "`filter` of names or indices, before the first map; or rows with a weight of 0"),
    ("Batch|ParallelBatch|PaddedBatch", "one `batch`, and maps of rows before it"),
    ("Unbatch|Rebatch|Window|GroupByWindow", "maps of rows behind this step"),
    ("DenseToRagged|DenseToSparseBatch", "`padded_batch`"),
    (".*: .*compressed.*", "files that are not compressed"),
    (".*: .*worked on where.*", "a map behind this step, in place of one in its function"),
    (".*: .*names of files.*", "a list of names, or `list_files`"),
    ("FlatMap|Interleave|ParallelInterleave", "this step over names or indices, and a map of rows behind it"),
    (".*", "this step over names or indices, before the first map"),
)
OF_OPS = (
    ("elements that are no batches", "`batch` behind the map"),
    ("ragged elements", "a map of rows by `to_tensor`, and `padded_batch`"),
    ("sparse elements", "a map of rows by `tf.sparse.to_dense`, and `padded_batch`"),
    ("elements that are no tensors", "maps that give tensors"),
    ("a map of padded batches", "a map of rows, before `padded_batch`"),
    ("a map .*", "a map of rows, before `batch`; or the model does it"),
    ("PyFunc|EagerPyFunc", "ops of TensorFlow; or `tf.numpy_function(..., stateful=False)`, if it keeps no state"),
    (
        ".*(Random|Normal|Uniform|Gamma|Poisson|Multinomial|Distorted|Rng).*",
        "`tf.random.stateless_*` or `tf.image.stateless_*`, with the number that `enumerate()` gives as seed",
    ),
    ("Assign.*|ReadVariableOp|ResourceScatter.*", "no variable that a map assigns: `enumerate()` counts"),
    (".*", "ops without effects"),
)
NO_BATCHES = OF_OPS[0][0]  # "elements that are no batches"
CACHED_VARIABLES = "a map that reads variables, and whose results are cached"  # matches "a map .*"
_COMPOSITE = {"RaggedTensorSpec": "ragged elements", "SparseTensorSpec": "sparse elements"}


def explain(dataset: Any, text: str) -> None:
    """Print a line on a pipeline, with the setting `explain`."""
    if settings.get_settings().explain and world.get_world().size > 1:
        kinds = map(name_stage, reversed(slice_bounds.list_pipeline(dataset)))
        notes.print_note(f"the pipeline {', '.join(kinds)}: {text}")


def explain_causes(dataset: Any, causes: Iterable[str]) -> str:
    """Text on all causes why every rank does work of a pipeline; "" if there is none. causes: `Deferred.causes`."""
    has_batches = any(name_stage(stage) in _BATCHES for stage in slice_bounds.list_pipeline(dataset))
    texts = dict.fromkeys(causes)  # each once
    if not has_batches and _has_work(dataset):
        texts[explain_op(NO_BATCHES)] = None
    return ", ".join(texts)


def explain_op(op: str) -> str:
    """Text on the type of an op, or on another cause in `OF_OPS`, and its replacement."""
    return f"{op} (instead: {find_advice(op, OF_OPS)})"


def explain_stage(dataset: Any, reason: str = "") -> list[str]:
    """Text on a stage, because of which every rank does all work before and in the stage; [] if there is no work.

    reason: why the records that the stage reads are not indexed; "" if it reads none.
    """
    name = name_stage(dataset)
    if name == "FlatMap" and "GeneratorDataset" in _list_types(dataset):  # `from_generator`
        name, reason = "a generator", ""
    elif name == "Cache":  # a cache in memory is no obstacle (`splitting`)
        name = "a cache in a file"
    elif not reason and not _has_work(dataset):
        return []
    replacement = find_advice(f"{name}: {reason}" if reason else name, OF_STAGES)
    return [f"{name} with all before it ({reason}{reason and '; '}instead: {replacement})"]


def explain_composites(spec: Any) -> list[str]:
    """Texts on the components, in an element with this spec, that ranks do not slice: all but dense tensors."""
    specs = tf.nest.flatten(spec, expand_composites=False)
    type_names = {type(component).__name__ for component in specs if not isinstance(component, tf.TensorSpec)}
    return sorted({explain_op(_COMPOSITE.get(name, "elements that are no tensors")) for name in type_names})


def find_advice(name: str, instead: Sequence[tuple[str, str]]) -> str:
    """The replacement of a stage, or of an op, from one of the two tables."""
    return next(text for pattern, text in instead if re.fullmatch(pattern, name))


def name_stage(dataset: Any) -> str:
    """The kind of a stage, for messages."""
    return re.sub(r"Dataset(V\d)?$", "", pipelines.name_kind(dataset))


def _has_work(dataset: Any) -> bool:
    """Whether a stage of a pipeline reads or maps, except for the map that TensorFlow adds before `unbatch`."""
    stages = slice_bounds.list_pipeline(dataset)
    added_maps = [stage._input_dataset for stage in stages if name_stage(stage) == "Restructured"]
    return any(_is_work(stage) and stage not in added_maps for stage in stages)


def _is_work(stage: Any) -> bool:
    kind = name_stage(stage)
    if kind in _INTERLEAVES:
        return any(re.search("Map|TFRecord|TextLine|FixedLength|ReadFile", type_) for type_ in _list_types(stage))
    return kind in (*_MAPS, *_READERS, *_UNINDEXED)


def _list_types(stage: Any) -> list[str]:
    """The types of the ops in the function of a stage."""
    return [op.type for op in stage._map_func.function.graph.get_operations()]
