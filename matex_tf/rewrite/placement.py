"""Placements: how the tensors of the ranks make up the tensor of the script. Each kind of placement is a class.

Example: a batch of 5 rows on 2 ranks is `BATCH`, sharded along axis 0: rank 0 has rows 0-2, rank 1 has rows 3-4. The
weights are `WHOLE`, replicated. The sum over the batch is `SUM`, partial: each rank has the sum over its rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

HALF = ("float16", "bfloat16")
"""Dtypes of half precision. A partial sum of such a dtype is all-reduced in float32 where it arises, and rounded once.

So the sum is rounded, and may overflow, at the same op as in the script. Gradients are finite exactly when the script's
gradients are. Sums inside of a loop are an exception: they are all-reduced after the loop, because otherwise each turn
would have a collective.
"""


class Rows(NamedTuple):
    """The entries along an axis that a rank holds.

    blocks: the axis consists of blocks, and a rank holds the entries of its rows in each block. For each block, the
        number of entries for each row of the batch; None: unknown. Examples: a batch is one block, (1,). Two
        concatenated batches are two blocks, (1, 1). A batch of 3x5 images as rows of 5 pixels is one block, (3,).
    chosen: the key of the mask that selected some of these entries (`tf.where`), so that their number depends on the
        data; None: no mask.
    """

    blocks: tuple[int | None, ...] = (1,)
    chosen: Hashable = None

    @property
    def unit(self) -> int | None:
        """The number of entries for each row of the batch; None if a block's is unknown, or a mask selects entries."""
        if self.chosen is not None or None in self.blocks:
            return None
        return sum(block for block in self.blocks if block is not None)

    @property
    def is_contiguous(self) -> bool:
        """Whether a rank's entries are consecutive, and equally many for each row of the batch (possibly unknown)."""
        return self.chosen is None and len(self.blocks) == 1

    def scale(self, factor: int | None) -> Rows:
        """The rows of an axis with `factor` entries in the place of each entry."""
        return self._replace(
            blocks=tuple(None if block is None or factor is None else block * factor for block in self.blocks)
        )


class Size(NamedTuple):
    """One number of a vector of sizes (`Sizes`). It counts rows, or is the same on all ranks.

    rows: the number is the length of an axis with these rows, so each rank has another number. None: all ranks have the
        same number.
    value: the number, if `rows` is None and the number is known before the graph runs. `Size()` is a number that is
        equal on all ranks, and unknown.
    """

    rows: Rows | None = None
    value: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether a rank knows the number from its number of rows, without the tensor."""
        return (self.value if self.rows is None else self.rows.unit) is not None

    @property
    def counts_chosen(self) -> bool:
        """Whether it counts rows that a mask selects: a rank does not know how many other ranks have."""
        return self.rows is not None and self.rows.chosen is not None


class Placement:
    """How the tensors of the ranks make up the tensor of the script. The base class of all kinds."""

    __slots__ = ()

    @property
    def is_row_sum(self) -> bool:
        """Whether it is a sum over the ranks' rows, which linear ops keep: for such a sum s, 2 * s is one, too."""
        return False

    @property
    def has_parts(self) -> bool:
        """Whether a rank has only a part of the tensor, such as its rows, or a term of it."""
        return True

    def has_layout(self, other: Placement) -> bool:
        """Whether both give each rank the same rows along the same axis, or the same piece."""
        return False

    def needs_exchange(self, need: Placement | None) -> bool:
        """Whether a collective is needed to bring a tensor to the placement `need`; None: it stays as it is."""
        return need is not None and not self.has_layout(need)


@dataclasses.dataclass(frozen=True, slots=True)
class Replicated(Placement):
    """Each rank has the script's tensor. Example: the weights. The subclasses add a fact about the tensor."""

    @property
    def has_parts(self) -> bool:
        return False

    def needs_exchange(self, need: Placement | None) -> bool:
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Unused(Replicated):
    """A value that no op uses, such as a residual of a branch that was not taken: any tensor may stand for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Zeros(Replicated):
    """A tensor that is 0 everywhere, so ops may take it as a partial sum, too."""


@dataclasses.dataclass(frozen=True, slots=True)
class NamedAxes(Replicated):
    """A vector of axes of a tensor, such as the axes of a reduction.

    axes: for each axis of that tensor, whether the vector names it; None: unknown. Example: the vector [0] of a matrix
        is (True, False).
    """

    axes: tuple[bool | None, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FedHandle(Replicated):
    """An iterator, a dataset or an optional whose batches ranks divide. Any other one gives each rank whole batches.

    feed: the `feeds.Feed`, which gives each rank its rows of a batch.
    """

    feed: Any


@dataclasses.dataclass(frozen=True, slots=True)
class PieceHandle(Replicated):
    """The handle of a variable whose value the ranks hold in pieces, such as a slot of an optimizer.

    cuts: see `Piece`.
    variable: the number of the variable among the captured tensors.
    """

    cuts: tuple[int, ...]
    variable: int


@dataclasses.dataclass(frozen=True, slots=True)
class Sharded(Placement):
    """The script's tensor is the concatenation of the ranks' tensors along an axis. Example: the batch.

    axis: the axis along which the ranks' tensors are concatenated.
    rows: the entries along the axis that a rank holds.
    index_rows: None, or rows: each value of the tensor is the index, in the script's tensor, of an entry along an axis
        with these rows. An example is `tf.range(len(batch))`.
    """

    axis: int
    rows: Rows = Rows()  # noqa: RUF009 - a tuple that nothing changes
    index_rows: Rows | None = None

    @property
    def plain(self) -> Sharded:
        """The placement of another tensor with the same rows: without `index_rows`, a fact about values."""
        return self if self.index_rows is None else Sharded(self.axis, self.rows)

    def has_layout(self, other: Placement) -> bool:
        return isinstance(other, Sharded) and self.axis == other.axis and self.rows == other.rows


@dataclasses.dataclass(frozen=True, slots=True)
class Partial(Placement):
    """The script's tensor is the sum, maximum or minimum of the ranks' tensors. Example: a gradient of the weights.

    reduction: "sum", "max" or "min".
    owned: each term is computed from the piece that a rank owns, so a rank without rows has a term, too.
    """

    reduction: str = "sum"
    owned: bool = False

    @property
    def is_row_sum(self) -> bool:
        return self.reduction == "sum" and not self.owned  # linear ops need maxima, minima and `owned` sums whole

    def needs_exchange(self, need: Placement | None) -> bool:
        return need is not None and not isinstance(need, Partial)


@dataclasses.dataclass(frozen=True, slots=True)
class PartialShape(Partial):
    """A shape that is the maximum of the ranks' shapes, of which some numbers count rows.

    sizes: its numbers. Example: of split texts, the number of texts, `Size(rows)`, and the largest number of words of a
        text, `Size()`.
    """

    sizes: tuple[Size, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Piece(Placement):
    """The script's tensor, flattened, is the concatenation of the ranks' vectors.

    cuts: the first entry of each rank's piece, and the end of the last piece. Example: (0, 8, 15) for 15 entries on 2
        ranks.
    """

    cuts: tuple[int, ...]

    def has_layout(self, other: Placement) -> bool:
        return isinstance(other, Piece) and self.cuts == other.cuts


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes(Placement):
    """An integer scalar or short vector whose numbers have placements of their own. Example: the shape [n, 3] of a
    batch of n rows is (Size(Rows()), Size(None, 3)).

    A rule may return sizes of which none counts rows. `propagate` replaces them by `WHOLE` (`constants.note_sizes`).
    """

    sizes: tuple[Size, ...]

    @property
    def counts_rows(self) -> bool:
        return any(size.rows is not None for size in self.sizes)

    def needs_exchange(self, need: Placement | None) -> bool:
        return need is not None and any(size.counts_chosen for size in self.sizes)


@dataclasses.dataclass(frozen=True, slots=True)
class ItemList(Placement):
    """A TensorList, or an optional, whose items have one placement.

    item: the placement of the items; None: the list is empty.
    dtype: the dtype of the items; None: it is an optional.
    """

    item: Placement | None
    dtype: Any = None

    @property
    def has_parts(self) -> bool:
        return self.item is not None and self.item.has_parts

    def needs_exchange(self, need: Placement | None) -> bool:
        """Items with another placement than the need's are made whole. For sizes this takes no collective, but
        `gathering` does this, too.
        """
        needed_item = need.item if isinstance(need, ItemList) else None
        if need is None or self.item is None or self.item == needed_item:
            return False
        return isinstance(self.item, Sizes) or self.item.needs_exchange(WHOLE)


WHOLE: Placement = Replicated()
ZEROS: Placement = Zeros()
SUM: Placement = Partial()
BATCH: Placement = Sharded(0)
UNUSED: Placement = Unused()


def multiply_sizes(sizes: Sequence[Size]) -> Size | None:
    """The product of sizes. None if no `Size` describes it, such as n * n for a number of rows n."""
    row_sizes = [size.rows for size in sizes if size.rows is not None]
    numbers = [size.value for size in sizes if size.rows is None]
    product = None if None in numbers else math.prod(number for number in numbers if number is not None)
    if not row_sizes:
        return Size(None, product)
    # Of several blocks the numbers of entries must be known, since a rank finds its entries by them.
    if len(row_sizes) > 1 or (product is None and len(row_sizes[0].blocks) > 1):
        return None
    return Size(row_sizes[0].scale(product))


def drop_facts(placement: Placement) -> Placement:
    """The placement without facts that may hold for one tensor only: that it has indices of rows, or is 0."""
    if isinstance(placement, Zeros):
        return WHOLE
    if isinstance(placement, ItemList) and placement.item is not None:
        return ItemList(drop_facts(placement.item), placement.dtype)
    return placement.plain if isinstance(placement, Sharded) else placement


def join(first: Placement, second: Placement) -> Placement:
    """A placement to which both can be brought, for example after a branch or a turn of a loop."""
    if first == second:
        return first
    if isinstance(first, Unused) or isinstance(second, Unused):
        return second if isinstance(first, Unused) else first
    # Two lists: an empty list gets the placement of the items of the other list.
    if isinstance(first, ItemList) and isinstance(second, ItemList):
        if first.item is None or second.item is None:
            return first if second.item is None else second
        return ItemList(first.item if first.item == second.item else WHOLE, first.dtype)
    first, second = drop_facts(first), drop_facts(second)
    if first == second:
        return first
    # A replicated tensor can become a partial sum: rank 0 keeps it, the other ranks have 0.
    if (isinstance(first, Replicated) and second.is_row_sum) or (isinstance(second, Replicated) and first.is_row_sum):
        return SUM
    # Two vectors of sizes that count rows at the same positions: other numbers that differ become unknown.
    if isinstance(first, Sizes) and isinstance(second, Sizes) and len(first.sizes) == len(second.sizes):
        pairs = list(zip(first.sizes, second.sizes))
        if all(a.rows == b.rows for a, b in pairs):
            return Sizes(tuple(a if a == b else Size(a.rows) for a, b in pairs))
    return WHOLE
