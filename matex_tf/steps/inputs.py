"""The inputs of a traced function: which of them have rows, and where the batches of its calls come from.

The batch comes in one of three ways:
- It is an argument of the step.
- The trace begins with an op that takes it from an iterator, the `source`. The batch is taken before the call, so that
  ranks can compare their batches before they compute.
- Other ops of the trace take batches, as in a loop over a dataset. They stay in the copy, which slices their batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.feeds import FeedRefusedError
from matex_tf.rewrite.own_batches import OWN
from matex_tf.rewrite.placement import BATCH, WHOLE, Placement
from matex_tf.steps import own_data, report, slices
from matex_tf.steps.batch_watch import BatchWatch
from matex_tf.steps.batches import Batch, SharedBatches, WholeBatch, find_shared_batches
from matex_tf.steps.shared_feeds import find_handles, list_feeds


class StepInputs:
    """The inputs of a step, in this order: the tensor arguments; the captured tensors, which the function uses but does
    not get as arguments, such as variables; with a `source`, the components of its batch. `divided` has an entry for
    each of them; `are_own` and `feeds` have entries for arguments and captured tensors only.

    traced: the script's trace, a ConcreteFunction.
    source: the op whose batch is taken before the call, and which the copy lacks; None if there is none.
    graph: the graph that is copied: the trace, without `source`.
    argument_count: the number of tensor arguments.
    divided: whether the input has the rows that ranks divide.
    are_own: whether the tensor stands for an iterator or dataset of rows that this rank alone has (`own_data`).
    feeds: the feed of the iterator or dataset for which the tensor stands, if ranks share its batches: each rank
        prepares its rows only (`shared_feeds`). None for other tensors.
    ratios: the slice ratios of the ranks; None if they are equal for good.
    rows: the number of rows of the last call's batch; 0 if it is unknown.
    """

    def __init__(
        self,
        traced: Any,
        are_rows: Sequence[bool],
        arguments: Sequence[Any],
        rows: int,
        place: str,
        batches: BatchWatch,
    ):
        """are_rows: for each tensor argument, whether it has the rows that ranks divide.

        arguments: the tensor arguments of this call, eager tensors.
        rows: the number of rows of this call; 0 if it is unknown.
        place: names the step in messages.
        batches: compares the batches of calls between ranks.
        """
        self.traced, self.graph, self.rows, self._place = traced, traced.graph, rows, place
        self.argument_count = len(are_rows)
        handles = [*arguments, *(outer_tensor for outer_tensor, _ in traced.graph.captures)]
        self.are_own = list(map(own_data.is_own, handles))
        self.divided = [has_rows and bool(tensor.shape.rank) for has_rows, tensor in zip(are_rows, self.graph.inputs)]
        self.divided += [False] * (len(handles) - len(are_rows))
        self.source = self._find_source()
        if self.source is not None:
            self.graph = sources.give_batch(self.graph, self.source)
            self.divided += sources.find_components([tensor.shape for tensor in self.source.outputs])
        self.ratios = slices.make_ratios()
        self.feeds = list_feeds(handles, batches, self.ratios, place)

    def _find_source(self) -> Any:
        """The op whose batch is taken before the function is called; None if there is none, or if the batch is an
        argument. Also None if the op takes a rank's own rows: the op stays in the copy, where the ranks tell each other
        how many rows each has.
        """
        if any(self.divided):
            return None
        source = sources.find_source(self.graph)
        return None if source is None or self.are_own[_find_handle(self.graph, source)] else source

    def place(self, divided: Sequence[bool], pieces: Mapping[int, Placement]) -> list[Placement]:
        """The placement of each input of the graph. `WHOLE`: no rows, no iterator or dataset, no variable in pieces.

        pieces: the placements of variables in pieces, by the indices of the captured tensors.
        """
        placements = [BATCH if is_divided else WHOLE for is_divided in divided]
        for index, (is_own, feed) in enumerate(zip(self.are_own, self.feeds)):
            if feed is not None:
                placements[index] = feed.placement
            elif is_own:
                placements[index] = OWN
        for index, placement in pieces.items():
            placements[self.argument_count + index] = placement
        return placements

    def refuse_feed(self, error: FeedRefusedError) -> None:
        """Take whole batches from an iterator, because an op cannot use the rows of its feed."""
        report.say_whole_batches(self._place, error.why)
        are_refused = [feed is not None and feed.placement.feed is error.feed for feed in self.feeds]
        self.feeds = [None if is_refused else feed for feed, is_refused in zip(self.feeds, are_refused)]

    def find_iterator(self, arguments: Sequence[Any]) -> Any:
        """The tensor that stands for the iterator whose batch is taken before a call with these tensors."""
        return [*arguments, *self.traced.captured_inputs][_find_handle(self.traced.graph, self.source)]

    def take_batch(self, handle: Any) -> Batch | None:
        """The next batch of the iterator of this handle, before a call; None at the end of the data."""
        try:
            shared: SharedBatches | None = find_shared_batches(handle)
            if shared is not None:
                return shared.take()
            dtypes, shapes = zip(*((tensor.dtype, tensor.shape) for tensor in self.source.outputs))
            components = tf.raw_ops.IteratorGetNext(iterator=handle, output_types=dtypes, output_shapes=shapes)
            return WholeBatch(components, self.divided[len(self.are_own) :])
        except tf.errors.OutOfRangeError:
            return None

    def get_batch(self, arguments: Sequence[Any]) -> WholeBatch | None:
        """The batch among the arguments of a call; None if ops of the copy take it."""
        tensors = list(itertools.compress(arguments, self.divided))
        return WholeBatch(tensors, [True] * len(tensors)) if tensors else None

    def list_arguments(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments that the copy takes in a call with these: handles of shared batches replace iterators."""
        if not any(self.feeds):
            return list(arguments)
        # With the captured tensors, too, since `find_handles` prepares their iterators.
        return find_handles([*arguments, *self.traced.captured_inputs], self.feeds)[: len(arguments)]

    def list_captured(self, captured: Sequence[Any]) -> list[Any]:
        """The tensors that the copy captures in place of the captured tensors of the trace."""
        return find_handles(captured, self.feeds[self.argument_count :])


def _find_handle(graph: Any, source: Any) -> int:
    """The index, among the inputs of a graph, of the iterator from which its op `source` takes."""
    return [id(tensor) for tensor in graph.inputs].index(id(source.inputs[0]))
