"""A pass over the items of a `PyDataset` that ranks make in turn (`turns`).

A step takes the next item by `Pass.take`, and code outside shared steps by `take_element`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from matex_tf import errors
from matex_tf.input import tickets
from matex_tf.input.sent_items import NEXT, SentItem
from matex_tf.lazy import tf
from matex_tf.runtime import notes, objects
from matex_tf.sharding import fingerprint
from matex_tf.steps import batches, failures
from matex_tf.world import membership, world

_MEASURED_ITEMS = 4
"""The number of items that are sent before the ranks choose between sending items and making all of them everywhere."""
_FIRST_COMPARED = 4
"""All ranks make and compare the first item of each pass, and items 4, 8, 16, ..., counted from 1 over all passes."""


class _Report(NamedTuple):
    """A rank's report of the item that it takes next.

    position: how many items of the pass come before it. number: the index of the item in the object.
    shapes: of its tensors, if this rank has made it. digest: of these tensors, if the item is compared.
    failure: the code and the text of the error, if the item could not be made.
    """

    position: int
    number: int
    shapes: Any
    digest: int | None
    failure: tuple[int, str] | None


class Pass:
    """One pass over the items of a `turns.Source`, from which steps take batches: a `batches.SharedBatches`.

    A position is the place of an item in this pass, from 0; the number of an item is its index in the `PyDataset`.

    whole_iterator: a weak reference to the iterator of all items, which `Source.iterate` has created with this pass.

    _position: of the next item, so also the number of items taken in this pass. _taken_before: the number of items
        taken in all earlier passes.
    _order: the numbers of the items, in the order of this pass; None before its first item.
    _is_order_agreed: the ranks have compared their orders.
    _made: the iterator of the items that this rank makes ahead.
    _prepared_for: the number of ranks for which `_made` was created.
    _is_whole: the generator of the iterator makes all remaining items on this rank.
    """

    def __init__(self, source: Any):
        self.source, self._position, self._taken_before = source, 0, source.taken_count
        self._order: list[int] | None = None
        self._prepared_for = 0
        self._made: Any = None
        self._is_whole = self._is_order_agreed = False
        self.whole_iterator: Callable[[], Any] = lambda: None

    @property
    def order(self) -> list[int]:
        """The numbers of the items, in the order of this pass."""
        if self._order is None:
            self._order = self.source.order_items()
        return self._order

    def give_up_turns(self) -> list[int]:
        """The numbers of all remaining items: from now on the generator makes all of them."""
        self._is_whole, self._made = True, None
        return self.order[self._position :]

    def take(self) -> Any:
        """The next item, a `batches.Batch`. Collective if ranks take turns.

        There are two ways:
            1. Turns: one rank makes the item and sends the others their rows.
            2. The generator makes all items of this pass (`_is_whole`), because the ranks have chosen so, or because
               other code takes elements, too: the item comes from the iterator itself.

        Raises:
            tf.errors.OutOfRangeError: at the end. tf.errors.OpError: a rank cannot make its item; by turns on every
                rank, otherwise on that rank.
        """
        source = self.source
        if not self._is_whole:
            self._agree_on_order()
            if self._position >= len(self.order):
                raise tf.errors.OutOfRangeError(None, None, "the items of a PyDataset have all been taken")
            if source.choice.is_shared is None and source.taken_count >= _MEASURED_ITEMS:
                source.choose()
            if source.choice.is_shared is False:
                self._is_whole, source.next_pass = True, weakref.ref(self)
        if self._is_whole:
            return batches.WholeBatch(source.take_from(self.whole_iterator()), source.are_rows)
        position = self._position  # if a rank is lost meanwhile, the turn is repeated from here
        item = membership.attempt_collectives(NEXT, self._take_turn, undo=lambda: self._move_to(position))
        if item.failure:
            self._move_to(len(self.order))
            code, text = item.failure
            raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, text)
        return item

    def _agree_on_order(self) -> None:
        """Take rank 0's order, if ranks have shuffled differently. Collective in the first call."""
        if self._is_order_agreed:
            return
        self._is_order_agreed = True
        own_digest = fingerprint.digest_value(np.array(self.order))
        if len(set(objects.allgather(own_digest, "comparing the order of items"))) > 1:
            self._order = objects.broadcast(self.order, "sending the order of items")
            notes.print_note(
                f"ranks have put the items of {self.source.name} into different orders, as where one has drawn numbers "
                "of Python's random that others have not. All take that of rank 0"
            )

    def _move_to(self, position: int) -> None:
        """Continue with the item at `position`: the next one, an earlier one to repeat a turn, or the end."""
        self._position, self.source.taken_count = position, self._taken_before + position

    def _find_maker(self, position: int) -> int:
        """The rank whose turn an item is. Turns continue from pass to pass, so that ranks make equally many items."""
        return (self._taken_before + position) % world.get_world().trainers

    def _is_compared(self, position: int) -> bool:
        """Whether all ranks make an item, and compare it. See `_FIRST_COMPARED`."""
        number = self._taken_before + position + 1  # over all passes, from 1
        is_power_of_two = number & (number - 1) == 0
        return position == 0 or (number >= _FIRST_COMPARED and is_power_of_two)

    def _prepare_items(self) -> None:
        """Start to make ahead, of the remaining items, the ones that this rank makes.

        Called for each item. It starts at the first one, and again with another list of items after ranks were lost:
        turns go to other ranks.
        """
        size = world.get_world().size
        if size == self._prepared_for:
            return
        numbers = [self.order[position] for position in range(self._position, len(self.order)) if self._makes(position)]
        self._prepared_for, self._made = size, self.source.make_ahead(numbers) if numbers else None

    def _makes(self, position: int) -> bool:
        """Whether this rank makes an item, in its turn or for a comparison.

        The first `trainers` ranks train. Ranks after them only keep weights (MATEX_STRATEGY=servers:S:only), and make
        no items.
        """
        me = world.get_world()
        return self._find_maker(position) == me.rank or (me.rank < me.trainers and self._is_compared(position))

    def _take_turn(self) -> SentItem:
        """The next item, which one rank has made. Collective."""
        self._prepare_items()
        me, position = world.get_world(), self._position
        maker, number, is_compared = self._find_maker(position), self.order[position], self._is_compared(position)
        tensors = shapes = digest = failure = None
        if self._makes(position):
            try:
                tensors = self.source.take_from(self._made)
                shapes = [tuple(tensor.shape) for tensor in tensors]
                digest = batches.digest_tensors(tensors) if is_compared else None
            except tf.errors.OpError as error:
                place = f"rank {me.rank} ({me.host}) cannot make item {number} of {self.source.name}"
                failure = error.error_code, f"{place}: {error.message}"
        own_report = position, number, shapes, digest, failure  # a plain tuple to send
        if is_compared:
            reports = [_Report(*report) for report in objects.allgather(own_report, NEXT)]
            self._compare(reports[: me.trainers])
            # A failure of any rank counts for all ranks, so that all raise it.
            report = next((report for report in reports if report.failure), reports[maker])
        else:
            with objects.start_exchange(NEXT, f"sending from {maker}"):
                report = _Report(*world.get_communicator("control").bcast(own_report, root=maker))
        if (report.position, report.number) != (position, number):
            raise errors.MismatchError(
                f"ranks take other items of {self.source.name}: rank {maker} item {report.number} as number "
                f"{report.position} of an epoch, rank {me.rank} ({me.host}) item {number} as number {position}"
            )
        self._move_to(position + 1)
        own_tensors = tensors if me.rank == maker else None
        return SentItem(self.source, number, maker, own_tensors, report.shapes, report.failure)

    def _compare(self, reports: Sequence[_Report]) -> None:
        """Print a note if ranks have made different items of the same number."""
        digests = [report.digest for report in reports]
        different_rank = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), 0)
        if different_rank and not any(report.failure for report in reports):
            notes.print_note(
                f"ranks 0 and {different_rank} made different items of the same number of {self.source.name}, at whose "
                "items ranks take turns: they depend on what else was made. The results are not exactly those of the "
                "script alone"
            )


def take_element(shared: Pass) -> Any:
    """The next item with all rows, for eager code outside shared steps. Collective if ranks take turns.

    Raises:
        tf.errors.OutOfRangeError: at the end. tf.errors.OpError: on every rank, if a rank cannot make the item.
    """
    try:
        batch = shared.take()
    except tf.errors.OutOfRangeError:
        raise
    except tf.errors.OpError:
        # If each rank makes all items, perhaps only this rank has failed. The other ranks then go on and would wait for
        # it in their next collective. So announce the error, which is then raised on all ranks.
        with failures.fail_together(NEXT):
            raise
    return tickets.pack(shared.source.spec, batch.take_whole())
