"""What a copy is told of the ranks: which rows this one has, and what ranks do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Share:
    """Which rows of the batch a rank has; scalar tensors in the graph that is being built, or in an outer one.

    first, count, total: the number of its first row; how many rows it has, at least 1; how many there are. int64.
    contributes: whether the rows are its own: a rank that has none computes one row that others have, too.
    keeps: whether it is the one rank that keeps what is the same on all, where a sum is made of it.
    """

    def __init__(self, first: Any, count: Any, total: Any, contributes: Any, keeps: Any):
        self.first, self.count, self.total, self.contributes, self.keeps = first, count, total, contributes, keeps

    def of_all(self) -> Share:
        """The share in what all ranks have something of, rows or not."""
        import tensorflow as tf

        return Share(self.first, self.count, self.total, tf.constant(True), self.keeps)

    def map(self, function: Callable[[Any], Any]) -> Share:
        """The share with what `function` makes of each of its tensors."""
        tensors = [self.first, self.count, self.total, self.contributes, self.keeps]
        first, count, total, contributes, keeps = map(function, tensors)
        return Share(first, count, total, contributes, keeps)


class Exchanger(Protocol):
    """What ranks do together."""

    def exchange(
        self, requests: Sequence[tuple[str, Any]], share: Share, labels: Sequence[Any] = (), is_last: bool = False
    ) -> list[Any]:
        """The results of one wave, in order.

        Args:
            requests: what is done ("sum", "max", "min": over the ranks; "gather": the ranks' rows one after the other)
                and with which tensor; the ranks' tensors have one shape, but for the rows that are gathered.
                Sums of half precision are made of float32 numbers and rounded once.
            share: where it does not contribute this rank adds nothing, whatever its tensors hold.
            labels: the label of each tensor, see `labels`; none: no tensor has one.
            is_last: whether tensors have labels, and those of no later wave of the program do.
        """
