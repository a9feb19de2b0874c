"""Feeds: how a step takes batches from an iterator that gives each rank its rows, rather than the whole batch.

If a step loops over a dataset, its graph has an op that takes a whole batch. The feed of the dataset replaces that op
by ops that take the rank's rows. A tensor that stands for the dataset, for an iterator over it, or for an optional
batch of it, has the feed in its placement (`Placement.feed`). `propagate` asks the feed for the `Decision` on each op
that takes such a tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.nodes import Decision, Node, Value
from matex_tf.rewrite.own_batches import gather_rows, takes_rows
from matex_tf.rewrite.placement import BATCH, REPLICATED, WHOLE, Placement

_ORDERS = ("TakeDataset", "SkipDataset", "RepeatDataset")
"""Ops whose datasets have the elements of the dataset that they take."""


class Feed(Protocol):
    """Decides on the ops that take an iterator, a dataset or an optional."""

    def place_batch(self, node: Node, is_divided: bool) -> Decision:
        """Decide on the op that returns a batch.

        is_divided: the program computes on this rank's rows of the batch; otherwise it takes the rows of all ranks.
        """

    def place_end(self, node: Node) -> Decision:
        """Decide on `OptionalHasValue`, by which the script finds out whether the data have ended."""

    def pass_on(self, node: Node, placement: Placement) -> Decision:
        """Decide on any other op with an input of this feed. placement: the placement of the input."""


class FeedRefusedError(Exception):
    """An op cannot use a rank's rows of a feed. feed: the feed. why: the reason, as text."""

    def __init__(self, feed: Any, why: str):
        super().__init__(why)
        self.feed, self.why = feed, why


@dataclasses.dataclass(eq=False, repr=False)
class SharedFeed:
    """The feed of data that give all ranks the same batches. `take` makes this rank's rows of each element.

    specs: the dtypes and shapes of the flat tensors of an element.
    are_rows: which of the flat tensors of a batch have rows.
    communicates: whether `take` runs collectives.
    take: `take(copy, element)` adds ops to the graph; it returns the tensors of a batch with this rank's rows, and the
        rank's `sharing.Slice`.
    origin: for the feed of a `ZipDataset`, as `enumerate` makes it: the feed of the dataset with the batches. Otherwise
        this feed.
    _zipped: the placements of `ZipDataset` ops, so that each reading of a loop finds equal placements.
    """

    specs: Sequence[tuple[Any, Any]]
    are_rows: Sequence[bool]
    communicates: bool
    take: Callable[[Any, list[Any]], tuple[list[Any], Any]]
    origin: SharedFeed | None = None
    _zipped: dict[Any, Placement] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.origin = self.origin or self

    def place_batch(self, node: Node, is_divided: bool) -> Decision:
        outputs = node.op.outputs
        if len(outputs) != len(self.are_rows):
            raise FeedRefusedError(self.origin, f"{node.type} takes other tensors than its dataset gives")

        def emit(copy: Any, handle: Any) -> list[Any]:
            tensors, batch_slice = self.take(copy, sources.around_pull(lambda: self._create(node, handle)))
            for tensor, output, is_rows in zip(tensors, outputs, self.are_rows):
                tensor.set_shape([None, *output.shape[1:]] if is_rows else output.shape)
            if is_divided:
                copy.batch_slice = batch_slice
                return tensors
            rows = [tensor for tensor, is_rows in zip(tensors, self.are_rows) if is_rows]
            whole = iter(gather_rows(copy.exchanger, rows, batch_slice))
            return [next(whole) if is_rows else tensor for tensor, is_rows in zip(tensors, self.are_rows)]

        gives = [BATCH if is_divided and is_rows else WHOLE for is_rows in self.are_rows]
        return Decision([WHOLE], gives, emit, communicates=self.communicates or not is_divided)

    def place_end(self, node: Node) -> Decision:
        return Decision([WHOLE], [WHOLE])  # all ranks have batches, or none

    def pass_on(self, node: Node, placement: Placement) -> Decision:
        # MakeIterator returns nothing: the placement goes to the op that created the iterator, decided on before.
        if node.type == "MakeIterator":
            iterator = node.inputs[1].node
            if iterator is None or iterator.type != "AnonymousIteratorV3":
                raise FeedRefusedError(self.origin, f"{node.type} '{node.op.name}' is for an iterator from outside")
            iterator.decide_on(iterator.decide([], placement, emit=lambda copy: self._create(iterator)))
            return node.decide([])
        # Ops whose results have the elements of the dataset, or these with numbers.
        if node.type == "IteratorGetNextAsOptional" or node.type in _ORDERS:
            return node.decide([], placement, emit=lambda copy, *inputs: self._create(node, *inputs))
        if node.type == "ZipDataset" and sum(value.placement.feed is not None for value in node.inputs) == 1:
            if node.op not in self._zipped:
                self._zipped[node.op] = Placement(REPLICATED, feed=self._widen(node))
            zipped = self._zipped[node.op]
            return node.decide([], zipped, emit=lambda copy, *inputs: zipped.feed._create(node, inputs))
        if takes_rows(node) or any(value.dtype.name == "variant" for value in node.outputs):
            why = f"{node.type} '{node.op.name}' takes the elements of the dataset itself"
            raise FeedRefusedError(self.origin, why)
        # Other ops take the handle as it is.
        return Decision([WHOLE] * len(node.inputs), [placement] * len(node.outputs))

    def _widen(self, node: Node) -> SharedFeed:
        """The feed of a `ZipDataset`. One part of its elements is an element of this feed, each other part a number."""
        others = [value for value in node.inputs if value.placement.feed is None]
        types = list(map(_find_type_of_range, others))
        if None in types:
            why = f"{node.type} '{node.op.name}' takes another dataset, too, in which ranks may find different elements"
            raise FeedRefusedError(self.origin, why)
        # The tensors from `start` to `end` of an element belong to this feed.
        start = next(index for index, value in enumerate(node.inputs) if value.placement.feed is not None)
        end = start + len(self.specs)
        numbers = [(dtype, tf.TensorShape([])) for dtype in types]

        def take(copy: Any, element: list[Any]) -> tuple[list[Any], Any]:
            tensors, batch_slice = self.take(copy, element[start:end])
            return [*element[:start], *tensors, *element[end:]], batch_slice

        specs = [*numbers[:start], *self.specs, *numbers[start:]]
        are_rows = [*[False] * start, *self.are_rows, *[False] * (len(others) - start)]
        return SharedFeed(specs, are_rows, self.communicates, take, self.origin)

    def _create(self, node: Node, *inputs: Any) -> list[Any]:
        """Create the op of a node for elements of this feed. An input may be a list of tensors."""
        types, shapes = zip(*self.specs)
        names = [argument.name for argument in node.op.op_def.input_arg]
        create = getattr(tf.raw_ops, node.type)
        outputs = create(**dict(zip(names, inputs)), output_types=types, output_shapes=shapes)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _find_type_of_range(value: Value) -> Any:
    """The dtype of a range of numbers, or of a dataset of its elements, the same on all ranks; None of any other."""
    node = value.node
    while node is not None and node.type in ("RewriteDataset", *_ORDERS):
        node = node.inputs[0].node
    return node.op.get_attr("output_types")[0] if node is not None and node.type == "RangeDataset" else None
