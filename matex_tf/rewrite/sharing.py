"""What the copy of a step knows of the ranks: this rank's slice of the batch, and an interface of the collectives.

The copy uses nothing else of the ranks. So tests can build copies for several simulated ranks in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.lazy import tf


class Request(NamedTuple):
    """A collective on one tensor.

    kind: "sum", "max" or "min" over the ranks, whose tensors have one shape; or "gather", the concatenation of the
        ranks' rows. Sums of half precision are computed in float32 and rounded once.
    cuts: the boundaries of the ranks' pieces; empty: none. A sum with cuts gives each rank its piece only, flattened.
        A gather with cuts takes each rank's piece.
    owned: the tensor is the rank's own, not of its rows, such as the piece of a variable. So a rank without rows
        contributes, too.
    label: the label of the gradient to which the tensor belongs, see `rewrite.labels`; None: it belongs to no gradient.
    can_wait: the next wave may begin before this collective ends.
    """

    kind: str
    tensor: Any
    cuts: tuple[int, ...] = ()
    owned: bool = False
    label: Any = None
    can_wait: bool = False


class Publication(NamedTuple):
    """The update of a variable that all ranks have whole: each rank assigns its piece, and sends it to all ranks.

    kind: the type of the assignment, such as "AssignSubVariableOp".
    handle, value: the variable, and the piece that is assigned.
    cuts: the boundaries of the ranks' pieces.
    before: the operations that must run first.
    """

    kind: str
    handle: Any
    value: Any
    cuts: tuple[int, ...]
    before: Sequence[Any]


def cut_piece(tensor: Any, cuts: Sequence[int], rank: int) -> Any:
    """The piece of a whole tensor that a rank owns, as a vector."""
    first, last = cuts[rank], cuts[rank + 1]
    piece = tf.slice(tf.reshape(tensor, [-1]), [first], [last - first])
    piece.set_shape([last - first])
    return piece


class Exchanger:
    """The collectives of the ranks. This class has none: subclasses override what they support."""

    @property
    def rank(self) -> int:
        """The number of this rank, by which it owns pieces."""
        return 0

    @property
    def sums_early(self) -> bool:
        """Whether sums of gradients run as early as they can, while the step computes other gradients."""
        return False

    def exchange(self, requests: Sequence[Request], batch_slice: Slice, is_last: bool = False) -> list[Any]:
        """The results of one wave, in order.

        batch_slice: if its `contributes` is false, this rank adds 0, whatever its tensors hold.
        is_last: no later wave of the copy has a label.
        """
        raise NotImplementedError(f"{type(self).__name__} has no collectives: {[request.kind for request in requests]}")

    def can_publish(self, handle: Any, dtype: Any) -> bool:
        """Whether the ranks can publish new values of their pieces of this variable in place."""
        return False

    def publish(self, publications: Sequence[Publication]) -> list[Any]:
        """The operations after which every rank has the variables with the new values of all pieces."""
        raise NotImplementedError(f"{type(self).__name__} publishes no variables")


class Slice(NamedTuple):
    """A rank's slice of a batch: scalar tensors of the current graph or of an outer one, or numbers in eager code.

    first, count, total: the index of its first row; its number of rows, at least 1; the rows of the batch. int64.
    contributes: false if this rank has no rows. It computes a row of another rank, or of zeros, and adds 0 to sums.
    keeps: true on one rank only. Where a replicated tensor is a term of a sum, this rank adds it; other ranks add 0.
    """

    first: Any
    count: Any
    total: Any
    contributes: Any
    keeps: Any = False
