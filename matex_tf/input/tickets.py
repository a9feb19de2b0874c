"""A pipeline of `tf.data` in two: tickets, which every rank takes in the script's order, and the work on them.

A *ticket* is an element of the pipeline's source, or what the last op that must run in order has made of it. Ops that
only order elements (`shuffle`, `repeat`, `take`, ...) order tickets as well, with the script's seeds. The work is done
by the rank that computes with the element.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.input import batch_maps, functions, memories, records
from matex_tf.input.functions import PYTHON, Split
from matex_tf.rewrite import sources
from matex_tf.rewrite.sharing import Share
from matex_tf.sharding import pipelines
from matex_tf.sharding.row_shares import list_pipeline

Tensors = list[Any]

_GENERATOR = "seeds of iterations"
_CACHED_VARIABLES = "a map that reads variables, and whose results are cached"
_MAPS = ("MapDataset", "ParallelMapDataset")


class Elements(NamedTuple):
    """The elements of a dataset before they are put into batches.

    tickets: a dataset.
    work: builds, of the flat tensors of a ticket, those of the element.
    passed: of each of these, the number of the ticket's tensor that it is; None of one that is computed.
    spec: of an element.
    is_work: whether anything is computed or checked behind the tickets.
    kept: the types of ops because of which work is done for each element on every rank.
    files: the datasets of records that were found by an index, which follows changes between iterations.
    caches: the datasets of caches in whose place tickets are kept.
    """

    tickets: Any
    work: Callable[[Tensors], Tensors]
    passed: list[int | None]
    spec: Any
    is_work: bool
    kept: tuple[str, ...] = ()
    files: tuple[Any, ...] = ()
    caches: tuple[Any, ...] = ()


class Batches(NamedTuple):
    """The elements of a dataset that are batches.

    tickets: a dataset, of one ticket for a batch.
    count_rows: builds, of the flat tensors of a ticket, the numbers of rows of what makes up the batch, scalar int64.
    take: builds, of these and a share, the flat tensors of the share's rows.
    digest: builds, of the flat tensors of a ticket, what tells it from others: 8 bytes, uint8.
    are_rows: which of the flat tensors of an element have rows.
    spec: of an element.
    is_work: whether anything is computed behind the tickets.
    pads: by the numbers of those tensors that are padded to the longest row, with what.
    kept, files, caches: see `Elements`.
    """

    tickets: Any
    count_rows: Callable[[Tensors], Tensors]
    take: Callable[[Tensors, Share], Tensors]
    digest: Callable[[Tensors], Any]
    are_rows: list[bool]
    spec: Any
    is_work: bool
    kept: tuple[str, ...] = ()
    pads: dict[int, Any] = {}
    files: tuple[Any, ...] = ()
    caches: tuple[Any, ...] = ()


def flatten(spec: Any, element: Any) -> Tensors:
    from tensorflow.python.data.util import structure

    return list(structure.to_tensor_list(spec, element))


def pack(spec: Any, tensors: Sequence[Any]) -> Any:
    from tensorflow.python.data.util import structure

    return structure.from_compatible_tensor_list(spec, list(tensors))


def flatten_element(spec: Any, element: tuple[Any, ...]) -> Tensors:
    """The flat tensors of an element as a map function is given it."""
    is_tuple = type(spec) is tuple
    return flatten(spec, element if is_tuple else element[0])


def map_dataset(dataset: Any, function: Callable[..., Any], **options: Any) -> Any:
    """`dataset.map` by a function of ours, which builds a graph as it is written."""
    import tensorflow as tf

    return dataset.map(tf.autograph.experimental.do_not_convert(function), **options)


_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "RepeatDataset": lambda step, tickets: tickets.repeat(step._count),
    "TakeDataset": lambda step, tickets: tickets.take(step._count),
    "SkipDataset": lambda step, tickets: tickets.skip(step._count),
    "ShardDataset": lambda step, tickets: tickets.shard(step._num_shards, step._index),
    "ShuffleDataset": lambda step, tickets: _shuffle(step, tickets),
    "PrefetchDataset": lambda step, tickets: tickets,
    "OptionsDataset": lambda step, tickets: tickets,
    "AssertCardinalityDataset": lambda step, tickets: _assert_cardinality(step, tickets),
}
"""What a step that only orders elements makes of tickets."""


def note_generator(shuffled: Any, generator: Any) -> None:
    """What gives the seed of each iteration of the dataset whose variant tensor is `shuffled`: a handle and its end."""
    tags.set_tag(shuffled, _GENERATOR, generator)


def _shuffle(step: Any, tickets: Any) -> Any:
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.ops import gen_dataset_ops

    generator = tags.get_tag(step._variant_tensor, _GENERATOR)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tickets._variant_tensor,
        buffer_size=step._buffer_size,
        seed=step._seed,
        seed2=step._seed2,
        seed_generator=gen_dataset_ops.dummy_seed_generator() if generator is None else generator.handle,
        reshuffle_each_iteration=step._reshuffle_each_iteration is not False,
        **tickets._flat_structure,
    )
    return dataset_ops._VariantDataset(variant, tickets.element_spec)


def _assert_cardinality(step: Any, tickets: Any) -> Any:
    import tensorflow as tf

    return tickets.apply(tf.data.experimental.assert_cardinality(step._expected_cardinality))


def find_elements(dataset: Any) -> Elements:
    """The elements of a dataset as tickets and work; without work where a step cannot wait."""
    return tags.get_or_make_tag(dataset, "tickets of elements", lambda: _find_elements(dataset))


def _find_elements(dataset: Any) -> Elements:
    kind = pipelines.name_kind(dataset)
    if kind in _ORDER:
        inner = find_elements(dataset._input_dataset)
        return inner._replace(tickets=_ORDER[kind](dataset, inner.tickets))
    if kind in _MAPS:
        return _map_elements(dataset)
    if kind == "CacheDataset" and is_in_memory(dataset):
        return _cache_elements(dataset)
    if kind == "ZipDataset":
        return _zip_elements(dataset)
    found = records.make_tickets(dataset)
    return _make_leaf(dataset) if found is None else _read_records(dataset, found)


def _read_records(dataset: Any, found: records.Records) -> Elements:
    def work(ticket: Tensors) -> Tensors:
        return flatten(dataset.element_spec, found.read(ticket[0]))

    passed: list[int | None] = [None for _ in flatten_specs(dataset.element_spec)]
    return Elements(found.tickets, work, passed, dataset.element_spec, True, files=(dataset,))


def _make_leaf(dataset: Any, *kept: str) -> Elements:
    count = len(flatten_specs(dataset.element_spec))
    return Elements(dataset, lambda ticket: ticket, list(range(count)), dataset.element_spec, False, kept)


def flatten_specs(spec: Any) -> list[Any]:
    from tensorflow.python.data.util import structure

    return list(zip(structure.get_flat_tensor_types(spec), structure.get_flat_tensor_shapes(spec)))


def open_rows(specs: Sequence[Any], are_rows: Sequence[bool]) -> list[Any]:
    """Types and shapes of flat tensors that have any number of rows."""
    import tensorflow as tf

    return [
        (dtype, tf.TensorShape([None, *shape[1:]]) if is_rows else shape)
        for (dtype, shape), is_rows in zip(specs, are_rows)
    ]


def take_next(handle: Any, specs: Sequence[Any]) -> Tensors:
    """The flat tensors, of these types and shapes, of the next element of the iterator for which `handle` stands."""
    import tensorflow as tf

    types, shapes = zip(*specs)
    return list(tf.raw_ops.IteratorGetNext(iterator=handle, output_types=types, output_shapes=shapes))


def _put_in_front(inner: Elements, split: Split, dataset: Any) -> Any:
    """The tickets on which the ops in front have run: with what they give behind the tickets of `inner` if work waits.

    Else behind the tensors of the element that the rest of the function needs.
    """
    waits = inner.is_work

    def run(*element: Any) -> Any:
        ticket = flatten_element(inner.tickets.element_spec, element)
        given = [None if number is None else ticket[number] for number in inner.passed]
        before = ticket if waits else [given[number] for number in split.held]
        return *before, *split.build_front(given)

    calls_python = not PYTHON.isdisjoint(split.ordered)
    parallel = getattr(dataset, "_num_parallel_calls", None) if calls_python else None
    deterministic = {"true": True, "false": False}.get(getattr(dataset, "_deterministic", ""))
    options = {} if parallel is None else {"num_parallel_calls": parallel, "deterministic": deterministic}
    return map_dataset(inner.tickets, run, **options)


def _map_elements(dataset: Any) -> Elements:
    split, inner = Split(dataset._map_func.function), find_elements(dataset._input_dataset)
    spec, kept = dataset._map_func.output_structure, (*inner.kept, *split.ordered)
    if split.front is None:
        is_work = inner.is_work or split.is_work

        def work(ticket: Tensors) -> Tensors:
            element = inner.work(ticket)
            return split.build_back([element[number] for number in split.held])

        passed = [None if at is None else inner.passed[split.held[at]] for at in split.passed]
        return inner._replace(work=work, passed=passed, spec=spec, is_work=is_work, kept=kept)
    if any(inner.passed[number] is None for number in split.front_takes):
        inner = _make_leaf(dataset._input_dataset, *inner.kept)
    waits, size = inner.is_work, len(flatten_specs(inner.tickets.element_spec))
    is_work, held = waits or split.is_work, len(split.held)

    def work_behind(ticket: Tensors) -> Tensors:
        if not waits:
            return split.build_back(ticket)
        element = inner.work(ticket[:size])
        return split.build_back([*(element[number] for number in split.held), *ticket[size:]])

    def find_passed(at: int | None) -> int | None:
        if at is None or not waits:
            return at
        return inner.passed[split.held[at]] if at < held else at - held + size

    passed = [*map(find_passed, split.passed)]
    made = inner._replace(tickets=_put_in_front(inner, split, dataset), work=work_behind, passed=passed)
    return made._replace(spec=spec, is_work=is_work, kept=kept)


def is_in_memory(dataset: Any) -> bool:
    """Whether a `cache` keeps elements in memory, and no file."""
    filename = dataset._filename
    return hasattr(filename, "numpy") and filename.numpy() == b""


def _cache_elements(dataset: Any) -> Elements:
    inner = find_elements(dataset._input_dataset)
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    specs = flatten_specs(inner.spec)
    if not memories.can_keep(specs) or not memories.can_keep(flatten_specs(inner.tickets.element_spec)):
        return _make_leaf(dataset, *inner.kept)
    if _reads_changing(dataset):
        return _make_leaf(dataset, *inner.kept, _CACHED_VARIABLES)
    memory = memories.Memory(specs)

    def work(ticket: Tensors) -> Tensors:
        return memory.recall(ticket[0], [_name(_digest(ticket[1:]))], lambda: inner.work(ticket[1:]))

    passed = [None if at is None else at + 1 for at in inner.passed]
    return inner._replace(tickets=inner.tickets.enumerate().cache(), work=work, passed=passed)


def _name(digest: Any) -> Any:
    """8 bytes as a number. A pass that ends early is dropped: in the next one a number may be another ticket's."""
    import tensorflow as tf

    return tf.bitcast(digest, tf.int64)


def _reads_changing(dataset: Any) -> bool:
    """Whether the work on what a `cache` keeps reads variables or tables that may change before it is done."""
    return any(functions.reads_changing(one.function) for step in list_pipeline(dataset) for one in step._functions())


def _cache_batches(dataset: Any) -> Batches:
    inner = find_batches(dataset._input_dataset)
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    specs = open_rows(flatten_specs(inner.spec), inner.are_rows)
    if not memories.can_keep(specs):
        return _make_batch_leaf(dataset, *inner.kept)
    if _reads_changing(dataset):
        return _make_batch_leaf(dataset, *inner.kept, _CACHED_VARIABLES)
    memory = memories.Memory(specs)

    def take(ticket: Tensors, share: Share) -> Tensors:
        of = [share.first, share.count, _name(inner.digest(ticket[1:]))]
        return memory.recall(ticket[0], of, lambda: inner.take(ticket[1:], share))

    return inner._replace(
        tickets=inner.tickets.enumerate().cache(),
        take=take,
        count_rows=lambda ticket: inner.count_rows(ticket[1:]),
        digest=lambda ticket: inner.digest(ticket[1:]),
    )


def _zip_elements(dataset: Any) -> Elements:
    import tensorflow as tf

    parts = [find_elements(one) for one in tf.nest.flatten(dataset._datasets)]
    sizes = [len(flatten_specs(one.tickets.element_spec)) for one in parts]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]

    def work(ticket: Tensors) -> Tensors:
        made = [one.work(ticket[at : at + size]) for one, at, size in zip(parts, starts, sizes)]
        return [tensor for part in made for tensor in part]

    passed = [None if at is None else at + start for one, start in zip(parts, starts) for at in one.passed]
    tickets = tf.data.Dataset.zip(tuple(one.tickets for one in parts))
    kept = tuple(tuple(each for one in parts for each in getattr(one, name)) for name in ("kept", "files", "caches"))
    return Elements(tickets, work, passed, dataset.element_spec, any(one.is_work for one in parts), *kept)


def find_batches(dataset: Any) -> Batches:
    """The batches of a dataset as tickets and work."""
    return tags.get_or_make_tag(dataset, "tickets of batches", lambda: _find_batches(dataset))


def _find_batches(dataset: Any) -> Batches:
    kind = pipelines.name_kind(dataset)
    if kind in _ORDER:
        inner = find_batches(dataset._input_dataset)
        return inner._replace(tickets=_ORDER[kind](dataset, inner.tickets))
    if kind in ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset"):
        return _batch(dataset)
    if kind in _MAPS:
        return _map_batches(dataset)
    if kind == "CacheDataset" and is_in_memory(dataset):
        return _cache_batches(dataset)
    return _make_batch_leaf(dataset)


def _make_batch_leaf(dataset: Any, *kept: str) -> Batches:
    are_rows = sources.find_components([shape for _, shape in flatten_specs(dataset.element_spec)])

    def count(ticket: Tensors) -> Tensors:
        import tensorflow as tf

        return [tf.shape(one, tf.int64)[0] for one, is_rows in zip(ticket, are_rows) if is_rows]

    def take(ticket: Tensors, share: Share) -> Tensors:
        rows = iter(_slice_rows([one for one, is_rows in zip(ticket, are_rows) if is_rows], share))
        return [next(rows) if is_rows else one for one, is_rows in zip(ticket, are_rows)]

    def digest(ticket: Tensors) -> Any:
        return _digest([one for one, is_rows in zip(ticket, are_rows) if is_rows])

    return Batches(dataset, count, take, digest, are_rows, dataset.element_spec, False, kept)


def _digest(tensors: Tensors) -> Any:
    """8 bytes that tell these tensors from others."""
    import tensorflow as tf

    found = [
        tf.raw_ops.Fingerprint(data=tf.reshape(one, [1, -1]), method="farmhash64")
        for one in tensors
        if one.dtype not in (tf.variant, tf.resource)
    ]
    return (
        tf.raw_ops.Fingerprint(data=tf.concat(found, 1), method="farmhash64")[0] if found else tf.zeros([8], tf.uint8)
    )


def _batch(dataset: Any) -> Batches:
    inner = find_elements(dataset._input_dataset)
    is_padded = pipelines.name_kind(dataset) == "PaddedBatchDataset"
    is_dense = all(shape.is_fully_defined() for _, shape in flatten_specs(inner.tickets.element_spec))
    return _batch_windows(dataset, inner, is_padded) if is_padded or not is_dense else _batch_tensors(dataset, inner)


def _batch_tensors(dataset: Any, inner: Elements) -> Batches:
    """Batches of tickets of one shape: tensors with the rows of a batch, on each of which a function does the work."""
    import tensorflow as tf

    tickets = inner.tickets.batch(dataset._batch_size, drop_remainder=dataset._drop_remainder)
    specs, ticket_specs = flatten_specs(inner.spec), flatten_specs(inner.tickets.element_spec)
    computed = [at for at, number in enumerate(inner.passed) if number is None]
    computed = computed or list(range(len(specs) if inner.is_work else 0))  # of checks alone

    @functools.cache
    def trace_work() -> Any:
        given = [tf.TensorSpec(shape, dtype) for dtype, shape in ticket_specs]
        with tf.init_scope():
            return call_as_maps_do(lambda ticket: [inner.work(ticket)[at] for at in computed], given)

    def work_on(rows: Tensors) -> Tensors:
        types, shapes = zip(*(specs[at] for at in computed))
        function = trace_work()
        return list(
            tf.raw_ops.MapDefun(
                arguments=rows,
                captured_inputs=function.captured_inputs,
                output_types=types,
                output_shapes=shapes,
                f=function,
                max_intra_op_parallelism=count_workers(),
            )
        )

    def take(ticket: Tensors, share: Share) -> Tensors:
        rows = _slice_rows(ticket, share)
        made = dict(zip(computed, work_on(rows))) if computed else {}
        return [made[at] if number is None or at in made else rows[number] for at, number in enumerate(inner.passed)]

    are_rows = [True for _ in specs]
    kept = inner.kept, {}, inner.files, inner.caches
    return Batches(tickets, _count_rows, take, _digest, are_rows, dataset.element_spec, inner.is_work, *kept)


def call_as_maps_do(build: Callable[[Tensors], Tensors], given: Sequence[Any]) -> Any:
    """A ConcreteFunction of tensors `given` that calls what `build` makes, optimized as functions of `map` are.

    TensorFlow merges constants in a function that an op calls, as `map` does, but not in one that is inlined or that
    `MapDefun` takes. Where `map` calls a function it does not fold constants, as into reciprocals of divisors.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.constant_folding = rewriter_config_pb2.RewriterConfig.OFF
    kept = {"_noinline": True}
    work = tf.function(lambda *tensors: build(list(tensors)), given, autograph=False, experimental_attributes=kept)
    function = work.get_concrete_function()

    def call(*tensors: Any) -> Tensors:
        graph = tf.compat.v1.get_default_graph()
        return list(
            tf.raw_ops.StatefulPartitionedCall(
                args=[*tensors, *map(graph.capture, function.captured_inputs)],
                Tout=[one.dtype for one in function.outputs],
                f=function,
                config_proto=config.SerializeToString(),
            )
        )

    return tf.function(call, given, autograph=False).get_concrete_function()


def _slice_rows(tensors: Tensors, share: Share) -> Tensors:
    """The share's rows of tensors."""
    import tensorflow as tf

    first = tf.reshape(share.first, [1])
    last = first + share.count
    return [tf.strided_slice(one, first, last) for one in tensors]


def _count_rows(tensors: Tensors) -> Tensors:
    import tensorflow as tf

    return [tf.shape(tensors[0], tf.int64)[0]]


def _batch_windows(dataset: Any, inner: Elements, is_padded: bool) -> Batches:
    """Batches of tickets of any kind: datasets of the rows of a batch."""
    import tensorflow as tf

    tickets = inner.tickets.window(dataset._batch_size, drop_remainder=dataset._drop_remainder)
    spec = dataset.element_spec
    put_rows = _put_padded(dataset) if is_padded else lambda rows, count: rows.batch(count)

    def open_window(ticket: Tensors) -> Any:
        return tf.data.Dataset.zip(pack(tickets.element_spec, ticket))

    def count(ticket: Tensors) -> Tensors:
        return [tf.data.experimental.cardinality(open_window(ticket))]

    def take(ticket: Tensors, share: Share) -> Tensors:
        rows = open_window(ticket).skip(share.first).take(share.count)

        def work(*one: Any) -> Any:
            return pack(inner.spec, inner.work(flatten_element(inner.tickets.element_spec, one)))

        rows = map_dataset(rows, work, num_parallel_calls=count_workers()) if inner.is_work else rows
        batch = put_rows(rows, share.count)
        return flatten(batch.element_spec, batch.get_single_element())

    def digest(ticket: Tensors) -> Any:
        def digest_row(*one: Any) -> Any:
            return _digest(flatten_element(inner.tickets.element_spec, one))

        rows = open_window(ticket)
        if not all(shape.is_fully_defined() for _, shape in flatten_specs(rows.element_spec)):
            rows = map_dataset(rows, digest_row)  # which are no batch by themselves
        batch = rows.batch(count(ticket)[0])
        return _digest(flatten(batch.element_spec, batch.get_single_element()))

    are_rows = [bool(shape.rank) for _, shape in flatten_specs(spec)]
    pads = _find_pads(dataset) if is_padded else {}
    kept = inner.kept, pads, inner.files, inner.caches
    return Batches(tickets, count, take, digest, are_rows, spec, inner.is_work, *kept)


def _put_padded(dataset: Any) -> Callable[[Any, Any], Any]:
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    shapes, values = tf.nest.flatten(dataset._padded_shapes), tf.nest.flatten(dataset._padding_values)

    def put_rows(rows: Any, count: Any) -> Any:
        variant = tf.raw_ops.PaddedBatchDatasetV2(
            input_dataset=rows._variant_tensor,
            batch_size=count,
            padded_shapes=[tf.cast(one, tf.int64) for one in shapes],
            padding_values=values,
            drop_remainder=False,
            output_shapes=[[None, *shape[1:]] for _, shape in flatten_specs(dataset.element_spec)],
        )
        spec = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), dataset.element_spec)
        return dataset_ops._VariantDataset(variant, spec)

    return put_rows


def _find_pads(dataset: Any) -> dict[int, Any]:
    import tensorflow as tf

    values = tf.nest.flatten(dataset._padding_values)
    shapes = [shape for _, shape in flatten_specs(dataset.element_spec)]
    return {at: value for at, (shape, value) in enumerate(zip(shapes, values)) if None in shape.as_list()[1:]}


def count_workers() -> int:
    """How many elements of a batch are worked on at a time: as many as the rank has cores."""
    return max(1, len(os.sched_getaffinity(0)))


def _map_batches(dataset: Any) -> Batches:
    inner, split = find_batches(dataset._input_dataset), Split(dataset._map_func.function)
    spec, kept = dataset._map_func.output_structure, (*inner.kept, *split.ordered)
    if split.front_takes or not inner.pads.keys().isdisjoint(split.computes_with):
        return _make_batch_leaf(dataset, *kept, "a map of padded batches" if inner.pads else "a map of batches")
    held = [None if at is None or at >= len(split.held) else split.held[at] for at in split.passed]
    drawn = split.travelling - len(split.held)
    are_rows = [inner.are_rows[number] for number in split.held] + [False] * drawn
    found = batch_maps.find_row_map(split.trace_back(), are_rows)
    if isinstance(found, str):
        return _make_batch_leaf(dataset, *kept, found)
    size = len(flatten_specs(inner.tickets.element_spec))

    def run(*element: Any) -> Any:
        ticket = flatten_element(inner.tickets.element_spec, element)
        return *ticket, *split.build_front([None] * len(inner.are_rows))

    def take(ticket: Tensors, share: Share) -> Tensors:
        element = inner.take(ticket[:size], share)
        return found.build([*(element[number] for number in split.held), *ticket[size:]], share)

    return inner._replace(
        tickets=inner.tickets if split.front is None else map_dataset(inner.tickets, run),
        count_rows=lambda ticket: inner.count_rows(ticket[:size]),
        take=take,
        digest=lambda ticket: _digest([inner.digest(ticket[:size]), *ticket[size:]]),
        are_rows=found.are_rows,
        spec=spec,
        is_work=True,
        kept=kept,
        pads={at: inner.pads[number] for at, number in enumerate(held) if number in inner.pads},
    )
