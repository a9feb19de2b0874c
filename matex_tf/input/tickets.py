"""Stages and hashes of tickets, and the conversion between elements and flat tensors.

`ORDER` has the stages that only order elements (`shuffle`, `repeat`, `take`, ...): they order tickets as well, with the
script's seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matex_tf import tags
from matex_tf.input import pipelines
from matex_tf.lazy import tf
from matex_tf.sharding.slice_bounds import list_pipeline

Tensors = list[Any]

_GENERATOR = "seeds of iterations"
MAPS = ("MapDataset", "ParallelMapDataset")


def flatten(spec: Any, element: Any) -> Tensors:
    """The flat tensors of an element with this spec."""
    from tensorflow.python.data.util import structure

    return list(structure.to_tensor_list(spec, element))


def pack(spec: Any, tensors: Sequence[Any]) -> Any:
    """The element with this spec of flat tensors."""
    from tensorflow.python.data.util import structure

    return structure.from_compatible_tensor_list(spec, list(tensors))


def take_tensors(dataset: Any, function: Callable[[Tensors], Any]) -> Callable[..., Any]:
    """A function for `dataset.map` or `dataset.flat_map`: it calls `function` with the flat tensors of an element,
    without AutoGraph.
    """
    spec = dataset.element_spec

    def call(*element: Any) -> Any:
        return function(flatten(spec, element if type(spec) is tuple else element[0]))

    return tf.autograph.experimental.do_not_convert(call)


def map_dataset(dataset: Any, function: Callable[[Tensors], Any], **options: Any) -> Any:
    """`dataset.map` with a function of the library, which takes the flat tensors of an element."""
    return dataset.map(take_tensors(dataset, function), **options)


def note_generator(shuffled: Any, generator: Any) -> None:
    """Record the seed generator of the script's `shuffle`, so that `_shuffle` draws the same seeds for the tickets.

    shuffled: the variant tensor of the shuffled dataset. generator: the resource that has the seed of each iteration.
    """
    tags.set_tag(shuffled, _GENERATOR, generator)


def list_generators(dataset: Any) -> list[Any]:
    """The resources of the seed generators that `note_generator` has recorded for the stages of a pipeline."""
    generators = (tags.get_tag(stage._variant_tensor, _GENERATOR) for stage in list_pipeline(dataset))
    return [generator.handle for generator in generators if generator is not None]


def _shuffle(stage: Any, tickets: Any) -> Any:
    """The same `shuffle` over tickets: with the seeds of the script's `shuffle`, the order is the script's."""
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.ops import gen_dataset_ops

    generator = tags.get_tag(stage._variant_tensor, _GENERATOR)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tickets._variant_tensor,
        buffer_size=stage._buffer_size,
        seed=stage._seed,
        seed2=stage._seed2,
        # The dummy is what TensorFlow's own `shuffle` takes.
        seed_generator=gen_dataset_ops.dummy_seed_generator() if generator is None else generator.handle,
        reshuffle_each_iteration=stage._reshuffle_each_iteration is not False,
        **tickets._flat_structure,
    )
    return dataset_ops._VariantDataset(variant, tickets.element_spec)


def _repeat(stage: Any, tickets: Any) -> Any:
    """The same `repeat` over tickets, merged with a `shuffle` only if the script's is.

    TensorFlow merges `repeat` with a `shuffle` right before it. The merged stage draws other seeds from the second
    iteration on. In the script a stage may stand between the two, such as a map, which the dataset of tickets lacks.
    Then an empty `with_options` keeps them apart.
    """
    is_merged = pipelines.name_kind(stage._input_dataset) == "ShuffleDataset"
    return (tickets if is_merged else tickets.with_options(tf.data.Options())).repeat(stage._count)


ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "RepeatDataset": _repeat,
    "TakeDataset": lambda stage, tickets: tickets.take(stage._count),
    "SkipDataset": lambda stage, tickets: tickets.skip(stage._count),
    "ShardDataset": lambda stage, tickets: tickets.shard(stage._num_shards, stage._index),
    "ShuffleDataset": _shuffle,
    "PrefetchDataset": lambda stage, tickets: tickets,
    "OptionsDataset": lambda stage, tickets: tickets,
    "AssertCardinalityDataset": lambda stage, tickets: tickets.apply(
        tf.data.experimental.assert_cardinality(stage._expected_cardinality)
    ),
}
"""For each stage that only orders elements: the same stage over tickets."""


def zip_tickets(datasets: Sequence[Any]) -> tuple[Any, Callable[[Tensors], list[Tensors]], list[list[int]]]:
    """The zipped dataset of datasets of tickets; a function that splits the flat tensors of a zipped ticket; and the
    indices of each dataset's tensors in a zipped ticket: for tickets of 2 and 1 tensors [[0, 1], [2]].
    """
    sizes = [len(flatten_specs(dataset.element_spec)) for dataset in datasets]
    ends = list(itertools.accumulate(sizes))

    def split(ticket: Tensors) -> list[Tensors]:
        return [ticket[end - size : end] for size, end in zip(sizes, ends)]

    return tf.data.Dataset.zip(tuple(datasets)), split, split(list(range(sum(sizes))))


def join(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def flatten_specs(spec: Any) -> list[Any]:
    """The dtypes and shapes of the flat tensors of an element with this spec."""
    from tensorflow.python.data.util import structure

    return list(zip(structure.get_flat_tensor_types(spec), structure.get_flat_tensor_shapes(spec)))


def open_rows(specs: Sequence[Any], are_rows: Sequence[bool]) -> list[Any]:
    """Types and shapes of flat tensors, with an unknown number of rows. are_rows: which tensors have rows on axis 0."""
    return [
        (dtype, tf.TensorShape([None, *shape[1:]]) if is_rows and shape.rank else shape)  # rank None: unknown
        for (dtype, shape), is_rows in zip(specs, are_rows)
    ]


def take_next(handle: Any, specs: Sequence[Any]) -> Tensors:
    """The flat tensors, of these types and shapes, of the next element of the iterator with this handle."""
    types, shapes = zip(*specs)
    return list(tf.raw_ops.IteratorGetNext(iterator=handle, output_types=types, output_shapes=shapes))


def is_in_memory(dataset: Any) -> bool:
    """Whether a `cache` keeps elements in memory, and not in a file."""
    filename = dataset._filename
    return hasattr(filename, "numpy") and filename.numpy() == b""


def digest_ticket(ticket: Tensors, windows: Mapping[int, Any]) -> Any:
    """In a graph: a hash of the flat tensors of a ticket, 8 bytes, uint8. Ranks compare the hashes of their tickets,
    and thereby their elements.

    windows: see `Batches`. Of a window, the elements are hashed; other datasets in a ticket have no hash.
    """
    return digest_tensors([*ticket, *(_digest_elements(pack(spec, [ticket[at]])) for at, spec in windows.items())])


def _digest_elements(dataset: Any) -> Any:
    """In a graph: a hash of all elements of a window."""
    if not all(shape.is_fully_defined() for _, shape in flatten_specs(dataset.element_spec)):
        dataset = map_dataset(dataset, digest_tensors)  # elements of different shapes cannot be batched; hashes can
    batch = dataset.batch(tf.data.experimental.cardinality(dataset))
    return digest_tensors(flatten(batch.element_spec, batch.get_single_element()))


def digest_tensors(tensors: Tensors) -> Any:
    """In a graph: a hash of these tensors, 8 bytes, uint8. Tensors that stand for other objects have no hash."""
    with_values = [tensor for tensor in tensors if tensor.dtype not in (tf.variant, tf.resource)]
    if not with_values:
        return tf.zeros([8], tf.uint8)
    # Few ops: TensorFlow prepares them again for each iterator.
    digests = [tf.raw_ops.Fingerprint(data=tf.reshape(value, [1, -1]), method="farmhash64") for value in with_values]
    if len(digests) > 1:
        digests = [tf.raw_ops.Fingerprint(data=tf.concat(digests, 1), method="farmhash64")]
    return tf.reshape(digests[0], [8])
