"""The batches of a pipeline: one ticket for each batch, from which a rank makes its slice.

A ticket of a batch holds the tickets of its rows: a tensor with a row for each, or a dataset if their shapes differ. To
make a slice, a rank takes the tickets of its rows, works on them (`elements`), and batches the results.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matex_tf import tags
from matex_tf.input import batch_maps, memories, pipelines
from matex_tf.input.elements import Elements, find_elements
from matex_tf.input.functions import Split, require
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
    open_rows,
    pack,
    reads_changing,
    zip_tickets,
)
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite import sources
from matex_tf.rewrite.sharing import Slice


class Batches(NamedTuple):
    """The elements of a dataset whose elements are batches.

    tickets: a dataset with one ticket for each batch.
    count_rows, take, digest: these compute in a graph, from the flat tensors of a ticket:
        count_rows: the row counts of the batch's components; int64 scalars.
        take: the flat tensors of the batch with the rows of a slice.
        digest: a hash of the batch: 8 bytes, uint8.
    are_rows: which of the flat tensors of a batch have rows.
    spec: of a batch.
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
    """The batches as their own tickets: every rank computes them whole."""
    are_rows = sources.find_components([shape for _, shape in flatten_specs(dataset.element_spec)])

    def list_rows(batch: Tensors) -> Tensors:
        return [tensor for tensor, is_rows in zip(batch, are_rows) if is_rows]

    def count(batch: Tensors) -> Tensors:
        return [tf.shape(tensor, tf.int64)[0] for tensor in list_rows(batch)]

    def take(batch: Tensors, batch_slice: Slice) -> Tensors:
        rows = iter(_slice_rows(list_rows(batch), batch_slice))
        return [next(rows) if is_rows else tensor for tensor, is_rows in zip(batch, are_rows)]

    def digest(batch: Tensors) -> Any:
        return digest_tensors(list_rows(batch))

    return Batches(dataset, count, take, digest, are_rows, dataset.element_spec, is_work=False, kept=kept)


def _cache_batches(dataset: Any) -> Batches:
    """A `cache` of batches: the tickets are cached, and a rank keeps its rows in a `Memory`."""
    inner = find_batches(dataset._input_dataset)
    inner = inner._replace(caches=(*inner.caches, dataset))
    if not inner.is_work:
        return inner._replace(tickets=inner.tickets.cache())
    specs = open_rows(flatten_specs(inner.spec), inner.are_rows)
    if not memories.can_keep(specs):
        return _make_batch_leaf(dataset, *inner.kept)
    if reads_changing(dataset):
        return _make_batch_leaf(dataset, *inner.kept, CACHED_VARIABLES)
    memory = memories.Memory(specs)  # by the number of the batch, with which its ticket is cached

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        number, *ticket = ticket
        rows = [batch_slice.first, batch_slice.count, tf.bitcast(inner.digest(ticket), tf.int64)]
        return memory.recall(number, rows, lambda: inner.take(ticket, batch_slice))

    return inner._replace(
        tickets=inner.tickets.enumerate().cache(),
        take=take,
        count_rows=lambda ticket: inner.count_rows(ticket[1:]),
        digest=lambda ticket: inner.digest(ticket[1:]),
    )


def _zip_batches(dataset: Any) -> Batches:
    """A `zip` of batches: its ticket joins their tickets."""
    zipped = [find_batches(each) for each in tf.nest.flatten(dataset._datasets)]
    tickets, split = zip_tickets([each.tickets for each in zipped])
    starts = itertools.accumulate((len(each.are_rows) for each in zipped), initial=0)

    def count(ticket: Tensors) -> Tensors:
        return join(each.count_rows(own) for each, own in zip(zipped, split(ticket)))

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        return join(each.take(own, batch_slice) for each, own in zip(zipped, split(ticket)))

    def digest(ticket: Tensors) -> Any:
        return digest_tensors([each.digest(own) for each, own in zip(zipped, split(ticket))])

    are_rows, is_work = join(each.are_rows for each in zipped), any(each.is_work for each in zipped)
    pads = {start + index: value for each, start in zip(zipped, starts) for index, value in each.pads.items()}
    kept, files, caches = (tuple(join(getattr(each, name) for each in zipped)) for name in ("kept", "files", "caches"))
    return Batches(tickets, count, take, digest, are_rows, dataset.element_spec, is_work, kept, pads, files, caches)


def _batch(dataset: Any) -> Batches:
    inner = find_elements(dataset._input_dataset)
    is_padded = pipelines.name_kind(dataset) == "PaddedBatchDataset"
    is_dense = all(shape.is_fully_defined() for _, shape in flatten_specs(inner.tickets.element_spec))
    return _batch_windows(dataset, inner, is_padded) if is_padded or not is_dense else _batch_tensors(dataset, inner)


def _batch_tensors(dataset: Any, inner: Elements) -> Batches:
    """Batches of tickets of one shape: tensors with a row for each ticket. The work is a function of each row."""
    tickets = inner.tickets.batch(dataset._batch_size, drop_remainder=dataset._drop_remainder)
    specs, ticket_specs = flatten_specs(inner.spec), flatten_specs(inner.tickets.element_spec)
    # The tensors that the work computes; the others equal tensors of the ticket.
    computed = [at for at, index in enumerate(inner.passed) if index is None]
    if inner.is_work and not computed:  # the work only checks
        computed = list(range(len(specs)))

    @functools.cache
    def trace_work() -> Any:
        with tf.init_scope():
            return _call_as_maps_do(
                lambda ticket: [inner.work(ticket)[at] for at in computed],
                [tf.TensorSpec(shape, dtype) for dtype, shape in ticket_specs],
            )

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
                max_intra_op_parallelism=_count_workers(),
            )
        )

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        tickets_of_slice = _slice_rows(ticket, batch_slice)
        results = dict(zip(computed, work_on(tickets_of_slice))) if computed else {}
        return [
            results[at] if index is None or at in results else tickets_of_slice[index]
            for at, index in enumerate(inner.passed)
        ]

    are_rows, spec = [True for _ in specs], dataset.element_spec
    return Batches(
        tickets, _count_rows, take, digest_tensors, are_rows, spec, inner.is_work, inner.kept, {}, inner.files,
        inner.caches,
    )  # fmt: skip


def _call_as_maps_do(build: Callable[[Tensors], Tensors], specs: Sequence[Any]) -> Any:
    """A ConcreteFunction of tensors with these specs that computes `build`, with the same bits as in `map`.

    In the function of a `map` TensorFlow merges constants, but does not fold them, for instance into reciprocals of
    divisors. In a function that is inlined or that `MapDefun` takes it does not merge constants. So the result calls a
    function with the settings of `map`: not inlined, and without folding.
    """
    from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.constant_folding = rewriter_config_pb2.RewriterConfig.OFF
    attributes = {"_noinline": True}
    function = trace_own(
        lambda *tensors: build(list(tensors)), input_signature=specs, experimental_attributes=attributes
    )

    def call(*tensors: Any) -> Tensors:
        graph = tf.compat.v1.get_default_graph()
        return list(
            tf.raw_ops.StatefulPartitionedCall(
                args=[*tensors, *map(graph.capture, function.captured_inputs)],
                Tout=[output.dtype for output in function.outputs],
                f=function,
                config_proto=config.SerializeToString(),
            )
        )

    return trace_own(call, input_signature=specs)


def _slice_rows(tensors: Tensors, batch_slice: Slice) -> Tensors:
    """The rows of a slice of these tensors."""
    first = tf.reshape(batch_slice.first, [1])
    last = first + batch_slice.count
    return [tf.strided_slice(tensor, first, last) for tensor in tensors]


def _count_rows(tensors: Tensors) -> Tensors:
    return [tf.shape(tensors[0], tf.int64)[0]]


def _batch_windows(dataset: Any, inner: Elements, is_padded: bool) -> Batches:
    """Batches of tickets of any shapes: the ticket of a batch is a dataset of the tickets of its rows."""
    tickets = inner.tickets.window(dataset._batch_size, drop_remainder=dataset._drop_remainder)
    batch_rows = _make_padded_batch(dataset) if is_padded else lambda rows, count: rows.batch(count)

    def open_window(ticket: Tensors) -> Any:
        return tf.data.Dataset.zip(pack(tickets.element_spec, ticket))

    def count(ticket: Tensors) -> Tensors:
        return [tf.data.experimental.cardinality(open_window(ticket))]

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        rows = open_window(ticket).skip(batch_slice.first).take(batch_slice.count)

        def work(*row: Any) -> Any:
            return pack(inner.spec, inner.work(flatten_element(inner.tickets.element_spec, row)))

        rows = map_dataset(rows, work, num_parallel_calls=_count_workers()) if inner.is_work else rows
        batch = batch_rows(rows, batch_slice.count)
        return flatten(batch.element_spec, batch.get_single_element())

    def digest(ticket: Tensors) -> Any:
        def digest_row(*row: Any) -> Any:
            return digest_tensors(flatten_element(inner.tickets.element_spec, row))

        rows = open_window(ticket)
        if not all(shape.is_fully_defined() for _, shape in flatten_specs(rows.element_spec)):
            rows = map_dataset(rows, digest_row)  # rows of different shapes cannot be batched
        batch = rows.batch(count(ticket)[0])
        return digest_tensors(flatten(batch.element_spec, batch.get_single_element()))

    spec, pads = dataset.element_spec, _find_pads(dataset) if is_padded else {}
    are_rows = [bool(shape.rank) for _, shape in flatten_specs(spec)]
    return Batches(
        tickets, count, take, digest, are_rows, spec, inner.is_work, inner.kept, pads, inner.files, inner.caches
    )


def _make_padded_batch(dataset: Any) -> Callable[[Any, Any], Any]:
    """A function that makes one padded batch of a dataset of rows and their count, as the step `dataset` pads."""
    from tensorflow.python.data.ops import dataset_ops

    shapes, values = tf.nest.flatten(dataset._padded_shapes), tf.nest.flatten(dataset._padding_values)

    def batch_rows(rows: Any, count: Any) -> Any:
        variant = tf.raw_ops.PaddedBatchDatasetV2(
            input_dataset=rows._variant_tensor,
            batch_size=count,
            padded_shapes=[tf.cast(shape, tf.int64) for shape in shapes],
            padding_values=values,
            drop_remainder=False,
            output_shapes=[[None, *shape[1:]] for _, shape in flatten_specs(dataset.element_spec)],
        )
        spec = tf.nest.map_structure(
            lambda component: tf.TensorSpec([None, *component.shape[1:]], component.dtype), dataset.element_spec
        )
        return dataset_ops._VariantDataset(variant, spec)

    return batch_rows


def _find_pads(dataset: Any) -> dict[int, Any]:
    """See `Batches.pads`."""
    values = tf.nest.flatten(dataset._padding_values)
    shapes = [shape for _, shape in flatten_specs(dataset.element_spec)]
    return {index: value for index, (shape, value) in enumerate(zip(shapes, values)) if None in shape.as_list()[1:]}


def _count_workers() -> int:
    """The number of elements of a batch that are worked on concurrently: the number of the rank's cores."""
    return max(1, len(os.sched_getaffinity(0)))


def _map_batches(dataset: Any) -> Batches:
    """A map of batches. If it treats rows independently, a rank computes it for its slice, after the other work."""
    inner, split = find_batches(dataset._input_dataset), Split(dataset._map_func.function)
    kept = (*inner.kept, *split.ordered)
    needs_batch_in_order = bool(split.front_takes)
    if needs_batch_in_order or not inner.pads.keys().isdisjoint(split.computes_with):
        return _make_batch_leaf(dataset, *kept, "a map of padded batches" if inner.pads else "a map of batches")
    # The back takes tensors of the batch, then results of the front, which have no rows.
    input_count, front_count = len(split.back_takes), split.back_input_count - len(split.back_takes)
    are_rows = [inner.are_rows[index] for index in split.back_takes] + [False] * front_count
    row_map = batch_maps.find_row_map(split.trace_back(), are_rows)
    if isinstance(row_map, str):  # the obstacle
        return _make_batch_leaf(dataset, *kept, row_map)
    ticket_size = len(flatten_specs(inner.tickets.element_spec))

    def run_front(*element: Any) -> Any:
        ticket = flatten_element(inner.tickets.element_spec, element)
        return *ticket, *split.build_front([None] * len(inner.are_rows))  # the front takes no tensor of the batch

    def take(ticket: Tensors, batch_slice: Slice) -> Tensors:
        batch = inner.take(ticket[:ticket_size], batch_slice)
        unused = [tensor for index, tensor in enumerate(batch) if inner.is_work and index not in split.back_takes]
        results = row_map.build([*(batch[index] for index in split.back_takes), *ticket[ticket_size:]], batch_slice)
        return require(unused, results)

    def digest(ticket: Tensors) -> Any:
        front_results, digest_before = ticket[ticket_size:], inner.digest(ticket[:ticket_size])
        return digest_tensors([digest_before, *front_results]) if front_results else digest_before

    # A component that the map passes on stays padded.
    are_inputs = [(at, index) for at, index in enumerate(split.passed) if index is not None and index < input_count]
    passed = {at: split.back_takes[index] for at, index in are_inputs}
    return inner._replace(
        tickets=inner.tickets if split.front is None else map_dataset(inner.tickets, run_front),
        count_rows=lambda ticket: inner.count_rows(ticket[:ticket_size]),
        take=take,
        digest=digest,
        are_rows=row_map.are_rows,
        spec=dataset._map_func.output_structure,
        is_work=True,
        kept=kept,
        pads={at: inner.pads[index] for at, index in passed.items() if index in inner.pads},
    )
