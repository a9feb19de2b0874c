"""What a copy is told of the ranks: which rows this one has, and what ranks do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from matex_tf.lazy import tf


class Request(NamedTuple):
    """What ranks are to do with a tensor.

    kind: "sum", "max", "min": over the ranks, whose tensors have one shape; "gather": the ranks' rows one after the
        other. Sums of half precision are made of float32 numbers and rounded once.
    cuts: of a sum: the rank gets the entries of its piece only, in a vector; of what is gathered: ranks have pieces.
    owned: a rank without rows adds its part, too.
    """

    kind: str
    tensor: Any
    cuts: tuple[int, ...] = ()
    owned: bool = False


class Publication(NamedTuple):
    """A variable, by its `handle`, of which each rank changes its piece by `value`, as the assignment `kind` says.

    before: the operations that come first.
    """

    kind: str
    handle: Any
    value: Any
    cuts: tuple[int, ...]
    before: Sequence[Any]


def cut_piece(tensor: Any, cuts: Sequence[int], rank: int) -> Any:
    """The piece of a whole tensor that a rank owns, in a vector."""
    first, last = cuts[rank], cuts[rank + 1]
    piece = tf.slice(tf.reshape(tensor, [-1]), [first], [last - first])
    piece.set_shape([last - first])
    return piece


class Exchanger(Protocol):
    """What ranks do together."""

    @property
    def rank(self) -> int:
        """The number of this one, by which it owns pieces."""

    def exchange(
        self, requests: Sequence[Request], share: Share, labels: Sequence[Any] = (), is_last: bool = False
    ) -> list[Any]:
        """The results of one wave, in order.

        Args:
            share: where it does not contribute, this rank adds nothing, whatever its tensors hold.
            labels: of each request, see `rewrite.labels`.
            is_last: whether no later wave of the copy has a label.
        """

    def can_publish(self, handle: Any, dtype: Any) -> bool:
        """Whether new values of the pieces of a variable can be put together where it lies."""

    def publish(self, publications: Sequence[Publication]) -> list[Any]:
        """The operations after which every rank has the variables with the new values of all ranks' pieces."""


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
        return Share(self.first, self.count, self.total, tf.constant(True), self.keeps)

    def map(self, function: Callable[[Any], Any]) -> Share:
        """The share with what `function` makes of each of its tensors."""
        tensors = [self.first, self.count, self.total, self.contributes, self.keeps]
        first, count, total, contributes, keeps = map(function, tensors)
        return Share(first, count, total, contributes, keeps)
