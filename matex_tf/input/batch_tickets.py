"""The batches of a pipeline: one ticket for each batch, from which a rank makes its slice."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.input import batch_maps, memories, pipelines
from matex_tf.input.elements import Elements, find_elements
from matex_tf.input.functions import Split
from matex_tf.input.tickets import (
    CACHED_VARIABLES,
    MAPS,
    ORDER,
    Tensors,
    digest_tensors,
    flatten,
    flatten_element,
    flatten_specs,
    is_in_memory,
    join,
    map_dataset,
    name_digest,
    open_rows,
    pack,
    reads_changing,
    zip_tickets,
)
from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.sharing import Slice


class Batches(NamedTuple):
    """The elements of a dataset whose elements are batches.

    tickets: a dataset with one ticket for each batch.
    count_rows: computes the row counts of the batch's components from the flat tensors of a ticket; int64 scalars.
    take: computes the flat tensors of a slice's rows from the flat tensors of a ticket and the slice.
    digest: computes a hash of the batch from the flat tensors of a ticket: 8 bytes, uint8.
    are_rows: which of the flat tensors of an element have rows.
    spec: of an element.
    is_work: there is work behind the tickets.
    pads: the padding values of the tensors that are padded to the longest row, by their indices.
    kept, files, caches: see `Elements`.
    """

    tickets: Any
    count_rows: Callable[[Tensors], Tensors]
    take: Callable[[Tensors, Slice], Tensors]
    digest: Callable[[Tensors], Any]
    are_rows: list[bool]
    spec: Any
    is_work: bool
    kept: tuple[str, ...] = ()
    pads: dict[int, Any] = {}
    files: tuple[Any, ...] = ()
    caches: tuple[Any, ...] = ()


def find_batches(dataset: Any) -> Batches:
    """The batches of a dataset as tickets and work."""
    return tags.get_or_make_tag(dataset, "tickets of batches", lambda: _find_batches(dataset))


def _find_batches(dataset: Any) -> Batches:
    kind = pipelines.name_kind(dataset)
    if kind in ORDER:
        inner = find_batches(dataset._input_dataset)
        return inner._replace(tickets=ORDER[kind](dataset, inner.tickets))
    if kind in ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset"):
        return _batch(dataset)
    if kind in MAPS:
        return _map_batches(dataset)
    if kind == "CacheDataset" and is_in_memory(dataset):
        return _cache_batches(dataset)
    if kind == "ZipDataset":
        return _zip_batches(dataset)
    return _make_batch_leaf(dataset)


def _make_batch_leaf(dataset: Any, *kept: str) -> Batches:
    are_rows = sources.find_components([shape for _, shape in flatten_specs(dataset.element_spec)])

    def count(ticket: Tensors) -> Tensors:
        return [tf.shape(one, tf.int64)[0] for one, is_rows in zip(ticket, are_rows) if is_rows]

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        rows = iter(_slice_rows([one for one, is_rows in zip(ticket, are_rows) if is_rows], batch_slice))
        return [next(rows) if is_rows else one for one, is_rows in zip(ticket, are_rows)]

    def digest(ticket: Tensors) -> Any:
        return digest_tensors([one for one, is_rows in zip(ticket, are_rows) if is_rows])

    return Batches(dataset, count, take, digest, are_rows, dataset.element_spec, False, kept)


def _cache_batches(dataset: Any) -> Batches:
    inner = find_batches(dataset._input_dataset)
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    specs = open_rows(flatten_specs(inner.spec), inner.are_rows)
    if not memories.can_keep(specs):
        return _make_batch_leaf(dataset, *inner.kept)
    if reads_changing(dataset):
        return _make_batch_leaf(dataset, *inner.kept, CACHED_VARIABLES)
    memory = memories.Memory(specs)

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        of = [batch_slice.first, batch_slice.count, name_digest(inner.digest(ticket[1:]))]
        return memory.recall(ticket[0], of, lambda: inner.take(ticket[1:], batch_slice))

    return inner._replace(
        tickets=inner.tickets.enumerate().cache(),
        take=take,
        count_rows=lambda ticket: inner.count_rows(ticket[1:]),
        digest=lambda ticket: inner.digest(ticket[1:]),
    )


def _zip_batches(dataset: Any) -> Batches:
    parts = [find_batches(one) for one in tf.nest.flatten(dataset._datasets)]
    tickets, split = zip_tickets([one.tickets for one in parts])
    starts = itertools.accumulate((len(one.are_rows) for one in parts), initial=0)

    def count(ticket: Tensors) -> Tensors:
        return join(one.count_rows(own) for one, own in zip(parts, split(ticket)))

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        return join(one.take(own, batch_slice) for one, own in zip(parts, split(ticket)))

    def digest(ticket: Tensors) -> Any:
        return digest_tensors([one.digest(own) for one, own in zip(parts, split(ticket))])

    are_rows, is_work = join(one.are_rows for one in parts), any(one.is_work for one in parts)
    pads = {start + at: value for one, start in zip(parts, starts) for at, value in one.pads.items()}
    kept, files, caches = (tuple(join(getattr(one, name) for one in parts)) for name in ("kept", "files", "caches"))
    return Batches(tickets, count, take, digest, are_rows, dataset.element_spec, is_work, kept, pads, files, caches)


def _batch(dataset: Any) -> Batches:
    inner = find_elements(dataset._input_dataset)
    is_padded = pipelines.name_kind(dataset) == "PaddedBatchDataset"
    is_dense = all(shape.is_fully_defined() for _, shape in flatten_specs(inner.tickets.element_spec))
    return _batch_windows(dataset, inner, is_padded) if is_padded or not is_dense else _batch_tensors(dataset, inner)


def _batch_tensors(dataset: Any, inner: Elements) -> Batches:
    """Batches of tickets of one shape: tensors with the rows of a batch. The work is a function of each row."""
    tickets = inner.tickets.batch(dataset._batch_size, drop_remainder=dataset._drop_remainder)
    specs, ticket_specs = flatten_specs(inner.spec), flatten_specs(inner.tickets.element_spec)
    computed = [at for at, number in enumerate(inner.passed) if number is None]
    computed = computed or list(range(len(specs) if inner.is_work else 0))  # checks only

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

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        rows = _slice_rows(ticket, batch_slice)
        made = dict(zip(computed, work_on(rows))) if computed else {}
        return [made[at] if number is None or at in made else rows[number] for at, number in enumerate(inner.passed)]

    are_rows = [True for _ in specs]
    made = Batches(
        tickets, _count_rows, take, digest_tensors, are_rows, dataset.element_spec, inner.is_work, inner.kept
    )
    return made._replace(files=inner.files, caches=inner.caches)


def call_as_maps_do(build: Callable[[Tensors], Tensors], given: Sequence[Any]) -> Any:
    """A ConcreteFunction of tensors like `given` that calls what `build` makes, optimized as functions of `map` are.

    TensorFlow folds constants in a function that an op calls, as `map` does, but not in one that is inlined or that
    `MapDefun` takes. If `map` calls a function, TensorFlow does not fold constants either, such as reciprocals of
    divisors.
    """
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


def _slice_rows(tensors: Tensors, batch_slice: Slice) -> Tensors:
    """The rows of a slice of these tensors."""
    first = tf.reshape(batch_slice.first, [1])
    last = first + batch_slice.count
    return [tf.strided_slice(one, first, last) for one in tensors]


def _count_rows(tensors: Tensors) -> Tensors:
    return [tf.shape(tensors[0], tf.int64)[0]]


def _batch_windows(dataset: Any, inner: Elements, is_padded: bool) -> Batches:
    """Batches of tickets of any kind: each is a dataset of the rows of a batch."""
    tickets = inner.tickets.window(dataset._batch_size, drop_remainder=dataset._drop_remainder)
    spec = dataset.element_spec
    put_rows = _put_padded(dataset) if is_padded else lambda rows, count: rows.batch(count)

    def open_window(ticket: Tensors) -> Any:
        return tf.data.Dataset.zip(pack(tickets.element_spec, ticket))

    def count(ticket: Tensors) -> Tensors:
        return [tf.data.experimental.cardinality(open_window(ticket))]

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        rows = open_window(ticket).skip(batch_slice.first).take(batch_slice.count)

        def work(*one: Any) -> Any:
            return pack(inner.spec, inner.work(flatten_element(inner.tickets.element_spec, one)))

        rows = map_dataset(rows, work, num_parallel_calls=count_workers()) if inner.is_work else rows
        batch = put_rows(rows, batch_slice.count)
        return flatten(batch.element_spec, batch.get_single_element())

    def digest(ticket: Tensors) -> Any:
        def digest_row(*one: Any) -> Any:
            return digest_tensors(flatten_element(inner.tickets.element_spec, one))

        rows = open_window(ticket)
        if not all(shape.is_fully_defined() for _, shape in flatten_specs(rows.element_spec)):
            rows = map_dataset(rows, digest_row)  # they are no batch by themselves
        batch = rows.batch(count(ticket)[0])
        return digest_tensors(flatten(batch.element_spec, batch.get_single_element()))

    are_rows = [bool(shape.rank) for _, shape in flatten_specs(spec)]
    pads = _find_pads(dataset) if is_padded else {}
    made = Batches(tickets, count, take, digest, are_rows, spec, inner.is_work, inner.kept, pads)
    return made._replace(files=inner.files, caches=inner.caches)


def _put_padded(dataset: Any) -> Callable[[Any, Any], Any]:
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
    values = tf.nest.flatten(dataset._padding_values)
    shapes = [shape for _, shape in flatten_specs(dataset.element_spec)]
    return {at: value for at, (shape, value) in enumerate(zip(shapes, values)) if None in shape.as_list()[1:]}


def count_workers() -> int:
    """The number of elements of a batch that are worked on concurrently: the number of the rank's cores."""
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

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        element = inner.take(ticket[:size], batch_slice)
        return found.build([*(element[number] for number in split.held), *ticket[size:]], batch_slice)

    return inner._replace(
        tickets=inner.tickets if split.front is None else map_dataset(inner.tickets, run),
        count_rows=lambda ticket: inner.count_rows(ticket[:size]),
        take=take,
        digest=lambda ticket: digest_tensors([inner.digest(ticket[:size]), *ticket[size:]]),
        are_rows=found.are_rows,
        spec=spec,
        is_work=True,
        kept=kept,
        pads={at: inner.pads[number] for at, number in enumerate(held) if number in inner.pads},
    )
