"""The stages `batch` and `padded_batch`: from the tickets of rows to the tickets of batches.

The ticket of a batch has the tickets of its rows: as tensors, or as a window if their shapes differ or the batch is
padded. The work on a batch selects the tickets of this rank's slice, and works on them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from matex_tf.input import pipelines
from matex_tf.input.deferred import Batches, Rows, inherit, slice_rows
from matex_tf.input.tickets import Tensors, flatten, flatten_specs, map_dataset, pack
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite.sharing import Slice

KINDS = ("BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset")


def batch(dataset: Any, inner: Rows) -> Batches:
    """The batches of `dataset`, whose class is one of `KINDS`, over the rows `inner`."""
    is_padded = pipelines.name_kind(dataset) == "PaddedBatchDataset"
    is_dense = all(shape.is_fully_defined() for _, shape in flatten_specs(inner.tickets.element_spec))
    return _batch_windows(dataset, inner, is_padded) if is_padded or not is_dense else _batch_tensors(dataset, inner)


def _batch_tensors(dataset: Any, inner: Rows) -> Batches:
    """Batches of tickets of one shape: tensors with a row for each ticket. `MapDefun` does the work on all rows."""
    tickets = inner.tickets.batch(dataset._batch_size, drop_remainder=dataset._drop_remainder)
    specs, ticket_specs = flatten_specs(inner.spec), flatten_specs(inner.tickets.element_spec)
    # The indices of the tensors that the work computes; each other tensor equals a tensor of the ticket.
    computed_positions = [position for position, ticket_index in enumerate(inner.passed) if ticket_index is None]
    # Work that computes no tensor only checks, as an assertion does. Its results, which equal the ticket, are taken so
    # that it runs.
    if inner.is_work and not computed_positions:
        computed_positions = list(range(len(specs)))

    def build(ticket: Tensors) -> Tensors:
        row_tensors = inner.compute(ticket)
        return [row_tensors[position] for position in computed_positions]

    @functools.cache
    def trace_work() -> Any:
        with tf.init_scope():  # outside the graph of `compute`: several such graphs use it
            return _call_as_maps_do(build, [tf.TensorSpec(shape, dtype) for dtype, shape in ticket_specs])

    def work_on(ticket_rows: Tensors) -> Tensors:
        types, shapes = zip(*(specs[position] for position in computed_positions))
        function = trace_work()
        return list(
            tf.raw_ops.MapDefun(
                arguments=ticket_rows,
                captured_inputs=function.captured_inputs,
                output_types=types,
                output_shapes=shapes,
                f=function,
                max_intra_op_parallelism=_count_workers(),
            )
        )

    def compute(ticket: Tensors, batch_slice: Slice) -> Tensors:
        tickets_of_slice = slice_rows(ticket, [True] * len(ticket), batch_slice)  # every tensor has rows
        results = dict(zip(computed_positions, work_on(tickets_of_slice))) if computed_positions else {}
        return [
            results[position] if ticket_index is None or position in results else tickets_of_slice[ticket_index]
            for position, ticket_index in enumerate(inner.passed)
        ]

    return Batches(
        **inherit(inner),
        tickets=tickets,
        spec=dataset.element_spec,
        compute=compute,
        count_rows=lambda ticket: [tf.shape(ticket[0], tf.int64)[0]],
        passed=[None] * len(specs),
        are_rows=[True] * len(specs),
    )


def _call_as_maps_do(build: Callable[[Tensors], Tensors], specs: Sequence[Any]) -> Any:
    """A ConcreteFunction of tensors with these specs that computes `build`, with the same bits as in `map`.

    TensorFlow optimizes functions differently, by where they are called:
    - In the function of a `map` it merges equal constants, but it does not fold constants. Folding would change bits:
      for instance, it makes x * (1 / 255) of x / 255, which rounds differently.
    - In a function that is inlined, or that `MapDefun` calls, it does not merge constants.

    So the result, which `MapDefun` calls, calls in turn a function with the settings of `map`: not inlined, which lets
    TensorFlow merge constants in it, and without folding.
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


def _batch_windows(dataset: Any, inner: Rows, is_padded: bool) -> Batches:
    """Batches of tickets of any shapes: the ticket of a batch is a window, a dataset of the tickets of its rows."""
    tickets = inner.tickets.window(dataset._batch_size, drop_remainder=dataset._drop_remainder)

    def batch_rows(rows: Any, count: Any) -> Any:
        if is_padded:
            return rows.padded_batch(count, dataset._padded_shapes, dataset._padding_values)
        return rows.batch(count)

    def open_window(ticket: Tensors) -> Any:
        return tf.data.Dataset.zip(pack(tickets.element_spec, ticket))

    def count_rows(ticket: Tensors) -> Tensors:
        return [tf.data.experimental.cardinality(open_window(ticket))]

    def compute(ticket: Tensors, batch_slice: Slice) -> Tensors:
        rows = open_window(ticket).skip(batch_slice.first).take(batch_slice.count)

        def work(row: Tensors) -> Any:
            return pack(inner.spec, inner.compute(row))

        # Without work, too: the tensors of a ticket may have another order and structure than those of a row.
        batch = batch_rows(map_dataset(rows, work, num_parallel_calls=_count_workers()), batch_slice.count)
        return flatten(batch.element_spec, batch.get_single_element())

    return Batches(
        **inherit(inner),
        tickets=tickets,
        spec=dataset.element_spec,
        compute=compute,
        count_rows=count_rows,
        passed=[None] * len(inner.passed),
        are_rows=[True] * len(inner.passed),
        windows=dict(enumerate(tf.nest.flatten(tickets.element_spec))),
        pads=_find_pads(dataset) if is_padded else {},
    )


def _find_pads(dataset: Any) -> dict[int, Any]:
    """The padding values of the tensors that are padded to the longest row of the batch, by their indices.

    A rank pads its slice to the longest row of the slice, so the ranks must pad further, to the longest of all slices.
    """
    values = tf.nest.flatten(dataset._padding_values)
    shapes = [shape for _, shape in flatten_specs(dataset.element_spec)]
    return {index: value for index, (shape, value) in enumerate(zip(shapes, values)) if None in shape.as_list()[1:]}


def _count_workers() -> int:
    """The number of elements of a batch that are worked on concurrently: the number of the rank's cores."""
    return max(1, len(os.sched_getaffinity(0)))
