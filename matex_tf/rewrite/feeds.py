"""Feeds: how a step that loops over a dataset gets this rank's rows of each batch, rather than the whole batch.

The graph of such a step has an op that returns a whole batch of the dataset, such as `IteratorGetNext`. The feed of the
dataset replaces the op by ops that return the rank's rows. Each handle of the dataset has the feed in its placement
(`FedHandle`), and the feed decides on each op that takes such a handle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from matex_tf.lazy import tf
from matex_tf.rewrite import sources
from matex_tf.rewrite.nodes import Decision, Node, Value
from matex_tf.rewrite.own_batches import gather_rows, takes_rows
from matex_tf.rewrite.placement import BATCH, WHOLE, FedHandle, Placement

_SAME_ELEMENTS = ("TakeDataset", "SkipDataset", "RepeatDataset")
"""Ops that make a dataset of elements of their input, a dataset: of some elements, or of all, repeated."""


class Feed(Protocol):
    """Decides on the ops with a handle among their inputs."""

    def place_batch(self, node: Node, is_sliced: bool) -> Decision:
        """Decide on the op that returns a batch.

        is_sliced: the op returns this rank's rows, because this is the one batch of the program that the ranks divide.
            For any further batch, the op returns the rows of all ranks.
        """

    def place_end_check(self, node: Node) -> Decision:
        """Decide on `OptionalHasValue`, by which the script finds out whether the data have ended."""

    def place_other(self, node: Node, placement: Placement) -> Decision:
        """Decide on any other op with a handle of this feed as input. placement: the placement of the handle."""


class FeedRefusedError(Exception):
    """An op cannot use a rank's rows of a feed; `steps.copies` reads the step again without the feed.

    why: the reason, as text.
    """

    def __init__(self, feed: Any, why: str):
        super().__init__(why)
        self.feed, self.why = feed, why


@dataclasses.dataclass(eq=False, repr=False)
class SharedFeed:
    """The feed of data that give all ranks the same batches. In the copy, iterators return *elements* instead of
    batches: tensors from which `make_rows` makes the rank's rows of the batch (`steps.shared_feeds`).

    specs: the dtypes and shapes of the flat tensors of an element.
    are_rows: which of the flat tensors of a batch have rows.
    communicates: whether `make_rows` runs collectives.
    make_rows: `make_rows(copy, element)` adds ops to the graph. It returns the tensors of the batch of an element with
        this rank's rows, and the rank's `sharing.Slice`.
    origin: for the feed of a `ZipDataset` (`_zip_with_numbers`): the feed of the dataset with the batches. Otherwise
        this feed.
    _zipped: the placements of `ZipDataset` ops. The body of a loop is read until its placements no longer change, so
        each reading must give an op the same feed.
    """

    specs: Sequence[tuple[Any, Any]]
    are_rows: Sequence[bool]
    communicates: bool
    make_rows: Callable[[Any, list[Any]], tuple[list[Any], Any]]
    origin: SharedFeed | None = None
    _zipped: dict[Any, FedHandle] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.origin = self.origin or self

    def place_batch(self, node: Node, is_sliced: bool) -> Decision:
        outputs = node.op.outputs
        if len(outputs) != len(self.are_rows):
            raise FeedRefusedError(self.origin, f"{node.type} takes other tensors than its dataset gives")

        def emit(copy: Any, handle: Any) -> list[Any]:
            element = sources.around_pull(lambda: self._create(node, handle))
            tensors, batch_slice = self.make_rows(copy, element)
            for tensor, output, is_rows in zip(tensors, outputs, self.are_rows):
                tensor.set_shape([None, *output.shape[1:]] if is_rows else output.shape)
            if is_sliced:
                copy.batch_slice = batch_slice
                return tensors
            rows = [tensor for tensor, is_rows in zip(tensors, self.are_rows) if is_rows]
            rows_of_all = iter(gather_rows(copy.exchanger, rows, batch_slice))
            return [next(rows_of_all) if is_rows else tensor for tensor, is_rows in zip(tensors, self.are_rows)]

        gives = [BATCH if is_sliced and is_rows else WHOLE for is_rows in self.are_rows]
        return Decision([WHOLE], gives, emit, communicates=self.communicates or not is_sliced)

    def place_end_check(self, node: Node) -> Decision:
        return Decision([WHOLE], [WHOLE])  # the data end on all ranks at once, so each rank's own answer is right

    def place_other(self, node: Node, placement: Placement) -> Decision:
        # MakeIterator(dataset, iterator) has no output that could get the placement of the dataset. So the op that
        # created the iterator is decided on again: its output gets the placement.
        if node.type == "MakeIterator":
            iterator = node.inputs[1].node
            if iterator is None or iterator.type != "AnonymousIteratorV3":
                raise FeedRefusedError(self.origin, f"{node.type} '{node.op.name}' is for an iterator from outside")
            iterator.decide_on(iterator.decide([], placement, emit=lambda copy: self._create(iterator)))
            return node.decide([])
        # The output is a handle of the same elements. Its op is created with the dtypes and shapes of these elements.
        if node.type == "IteratorGetNextAsOptional" or node.type in _SAME_ELEMENTS:
            return node.decide([], placement, emit=lambda copy, *inputs: self._create(node, *inputs))
        # The output is a dataset of the elements, each together with numbers.
        if node.type == "ZipDataset" and sum(isinstance(value.placement, FedHandle) for value in node.inputs) == 1:
            if node.op not in self._zipped:
                self._zipped[node.op] = FedHandle(self._zip_with_numbers(node))
            zipped = self._zipped[node.op]
            return node.decide([], zipped, emit=lambda copy, *inputs: zipped.feed._create(node, inputs))
        # Refuse an op that reads elements itself, or makes a dataset or an optional (a variant) of them.
        if takes_rows(node) or any(value.dtype.name == "variant" for value in node.outputs):
            reason = "takes the elements of the dataset itself"
            raise FeedRefusedError(self.origin, f"{node.type} '{node.op.name}' {reason}")
        # Any other op uses the handle itself, and needs no change.
        return Decision([WHOLE] * len(node.inputs), [placement] * len(node.outputs))

    def _zip_with_numbers(self, node: Node) -> SharedFeed:
        """The feed of a `ZipDataset` of this feed's dataset and datasets of numbers, as `enumerate` makes it.

        An element has one number for each dataset of numbers, and between them the tensors of this feed's element.
        """
        ranges = [value for value in node.inputs if not isinstance(value.placement, FedHandle)]
        types = list(map(_find_type_of_range, ranges))
        if None in types:
            reason = "takes another dataset, too, in which ranks may find different elements"
            raise FeedRefusedError(self.origin, f"{node.type} '{node.op.name}' {reason}")
        # Tensors `start` to `end` of an element are of this feed. `start` is also the index of this feed's dataset,
        # because each dataset of numbers before it gives one tensor.
        start = next(index for index, value in enumerate(node.inputs) if isinstance(value.placement, FedHandle))
        end = start + len(self.specs)
        numbers = [(dtype, tf.TensorShape([])) for dtype in types]

        def make_rows(copy: Any, element: list[Any]) -> tuple[list[Any], Any]:
            tensors, batch_slice = self.make_rows(copy, element[start:end])
            return [*element[:start], *tensors, *element[end:]], batch_slice

        specs = [*numbers[:start], *self.specs, *numbers[start:]]
        are_rows = [*[False] * start, *self.are_rows, *[False] * (len(ranges) - start)]
        return SharedFeed(specs, are_rows, self.communicates, make_rows, self.origin)

    def _create(self, node: Node, *inputs: Any) -> list[Any]:
        """Create the op of a node with the dtypes and shapes of this feed's elements. An input may be a list."""
        types, shapes = zip(*self.specs)
        names = [argument.name for argument in node.op.op_def.input_arg]
        create = getattr(tf.raw_ops, node.type)
        outputs = create(**dict(zip(names, inputs)), output_types=types, output_shapes=shapes)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _find_type_of_range(value: Value) -> Any:
    """The dtype of the numbers of a range, or of a dataset made of its elements; None for any other dataset."""
    node = value.node
    while node is not None and node.type in ("RewriteDataset", *_SAME_ELEMENTS):
        node = node.inputs[0].node
    return node.op.get_attr("output_types")[0] if node is not None and node.type == "RangeDataset" else None
