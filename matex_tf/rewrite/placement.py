"""Placements: how the tensors of the ranks make up the tensor of the script.

Example: a batch of 5 rows on 2 ranks is `BATCH`, sharded along axis 0: rank 0 has rows 0-2, rank 1 has rows 3-4. The
weights are `WHOLE`. The sum over the batch is `SUM`: each rank has the sum over its rows.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

REPLICATED, SHARDED, PARTIAL, PIECE = "replicated", "sharded", "partial", "piece"
SIZES, LIST, ANY = "sizes", "list", "any"
"""The kinds of placements, see `Placement`."""
HALF = ("float16", "bfloat16")
"""Dtypes of half precision. A partial sum of such a dtype is all-reduced in float32 where it arises, and rounded once.

So the sum is rounded, and may overflow, at the op at which the script's sum is. Gradients are finite exactly when the
script's gradients are. Only the sums inside of a loop are all-reduced after the loop: otherwise each turn would have a
collective.
"""


class Rows(NamedTuple):
    """The entries along an axis that a rank holds.

    blocks: the axis consists of blocks. For each block, the number of its entries for each row of the batch; None:
        unknown. A rank holds the entries of its rows in each block. A batch is one block, (1,). Two concatenated
        batches are two blocks, (1, 1).
    chosen: None, or the key of the mask that selected some of these entries. How many it selects depends on the data.
    """

    blocks: tuple[int | None, ...] = (1,)
    chosen: Hashable = None

    @property
    def unit(self) -> int | None:
        """The number of entries for each row of the batch; None if it is unknown or not fixed."""
        if self.chosen is not None or None in self.blocks:
            return None
        return sum(block for block in self.blocks if block is not None)

    @property
    def is_contiguous(self) -> bool:
        """Whether a rank's entries are consecutive, and equally many for each row of the batch."""
        return self.chosen is None and len(self.blocks) == 1

    def scale(self, factor: int | None) -> Rows:
        """The rows of an axis with `factor` entries in the place of each entry."""
        return self._replace(
            blocks=tuple(None if block is None or factor is None else block * factor for block in self.blocks)
        )


class Size(NamedTuple):
    """One number of a `sizes` placement.

    rows: if the number is the length of an axis with these rows, so that each rank has another number. None: the number
        is the same on all ranks.
    value: the number, if `rows` is None and the number is fixed. `Size()` is an unknown number.
    """

    rows: Rows | None = None
    value: int | None = None


class Placement(NamedTuple):
    """How the tensors of the ranks make up the tensor of the script, by `kind`:

        replicated   each rank has the script's tensor
        sharded      the script's tensor is the concatenation of the ranks' tensors along an axis
        partial      the script's tensor is the sum, maximum or minimum of the ranks' tensors
        piece        the script's tensor, flattened, is the concatenation of the ranks' vectors
        sizes        an integer scalar or short vector whose numbers have placements of their own: a tensor's shape
        list         a TensorList, or an optional, whose items have one placement
        any          no op uses the value, such as a residual of a branch that was not taken

    Sharded:
        axis: the axis along which the ranks' tensors are concatenated.
        rows: the entries along the axis that a rank holds.
        index_rows: None, or rows: each value of the tensor is the index, in the script's tensor, of an entry along an
            axis with these rows. An example is `tf.range(len(batch))`.
    Partial:
        reduction: "sum", "max" or "min".
        owned: the tensor is made of the ranks' pieces, so a rank without rows has a term, too.
    Replicated:
        is_zero: the tensor is 0 everywhere, so it is a partial sum, too.
        axes: for a vector of axes of a tensor, such as the axes of a reduction: for each axis of that tensor, whether
            the vector names it; None: unknown.
        feed: for an iterator, a dataset or an optional: the `feeds.Feed`, which gives each rank its rows of a batch;
            None: each rank gets whole batches.
        variable: for the handle of a variable in pieces: the number of the variable among the captured tensors.
    Piece, and the handle of a variable in pieces:
        cuts: the first entry of each rank's piece, and the end of the last piece.
    Sizes, and a replicated vector whose numbers a rule knows:
        sizes: the numbers.
    List:
        item: the placement of the items; None: the list is empty.
        dtype: the dtype of the items.
    """

    kind: str
    axis: int = 0
    rows: Rows = Rows()
    index_rows: Rows | None = None
    is_zero: bool = False
    sizes: tuple[Size, ...] = ()
    item: Placement | None = None
    reduction: str = "sum"
    dtype: Any = None
    axes: tuple[bool | None, ...] | None = None
    feed: Any = None
    cuts: tuple[int, ...] = ()
    variable: int = -1
    owned: bool = False

    @property
    def is_replicated(self) -> bool:
        return self.kind == REPLICATED

    @property
    def is_sharded(self) -> bool:
        return self.kind == SHARDED

    @property
    def is_partial(self) -> bool:
        """Whether it is a sum over the ranks' rows, which linear ops keep: 2 * s of a sum s is such a sum, too.

        Narrower than `kind == PARTIAL`: linear ops need maxima, minima and sums over pieces (`owned`) whole.
        """
        return self.kind == PARTIAL and self.reduction == "sum" and not self.owned

    @property
    def is_piece(self) -> bool:
        return self.kind == PIECE

    @property
    def is_piece_handle(self) -> bool:
        """Whether the tensor is the handle of a variable that ranks hold in pieces."""
        return self.kind == REPLICATED and bool(self.cuts)

    @property
    def layout(self) -> tuple[int, Rows]:
        """Sharded tensors with the same layout have matching entries on each rank."""
        return self.axis, self.rows

    def has_layout(self, other: Placement) -> bool:
        """Whether both are sharded alike, or are pieces with the same cuts."""
        if self.is_piece:
            return other.is_piece and self.cuts == other.cuts
        return self.is_sharded and other.is_sharded and self.layout == other.layout


WHOLE = Placement(REPLICATED)
ZERO = Placement(REPLICATED, is_zero=True)
SUM = Placement(PARTIAL)
BATCH = Placement(SHARDED)
UNUSED = Placement(ANY)


def shard(axis: int, rows: Rows = Rows()) -> Placement:  # noqa: B008 - a tuple that nothing changes
    return Placement(SHARDED, axis, rows)


def cut(cuts: tuple[int, ...]) -> Placement:
    return Placement(PIECE, cuts=cuts)


def hold(cuts: tuple[int, ...], variable: int) -> Placement:
    """The placement of the handle of a variable in pieces; see `Placement` for the arguments."""
    return Placement(REPLICATED, cuts=cuts, variable=variable)


def list_of(item: Placement | None, dtype: Any = None) -> Placement:
    return Placement(LIST, item=item, dtype=dtype)


def make_sizes(sizes: Sequence[Size]) -> Placement:
    """The placement of a vector of these sizes. If all numbers are the same on all ranks, the vector is replicated; the
    reader makes a constant of fixed numbers (`constants.note_sizes`).
    """
    return Placement(SIZES if any(size.rows for size in sizes) else REPLICATED, sizes=tuple(sizes))


def multiply_sizes(sizes: Sequence[Size]) -> Size | None:
    """The product of sizes. None if no `Size` describes it, for example if two of the sizes are numbers of rows."""
    row_sizes = [size.rows for size in sizes if size.rows is not None]
    numbers = [size.value for size in sizes if size.rows is None]
    product = None if None in numbers else math.prod(number for number in numbers if number is not None)
    if not row_sizes:
        return Size(None, product)
    if len(row_sizes) > 1 or (product is None and len(row_sizes[0].blocks) > 1):
        return None
    return Size(row_sizes[0].scale(product))


def join(first: Placement, second: Placement) -> Placement:
    """A placement to which both can be brought, for example after a branch or a turn of a loop."""
    if first == second:
        return first
    if ANY in (first.kind, second.kind):
        return second if first.kind == ANY else first
    # Two lists: an empty one takes the placement of the other's items.
    if LIST in (first.kind, second.kind):
        if first.kind != second.kind:
            return WHOLE
        if first.item is None or second.item is None:
            return first if second.item is None else second
        return list_of(first.item if first.item == second.item else WHOLE, first.dtype)
    # Equal except for facts that hold for one of them only.
    plain = [placement._replace(is_zero=False, index_rows=None) for placement in (first, second)]
    if plain[0] == plain[1]:
        return plain[0]
    # A replicated tensor becomes a partial sum: rank 0 keeps it, the others have 0.
    kinds = {placement.kind for placement in plain}
    if kinds == {REPLICATED, PARTIAL} and any(placement.is_partial for placement in plain):
        return SUM
    # Sizes that count the same rows, with different fixed numbers: these become unknown numbers.
    pairs = list(zip(first.sizes, second.sizes))
    is_same_shape = kinds == {SIZES} and len(first.sizes) == len(second.sizes)
    if is_same_shape and all(a.rows == b.rows for a, b in pairs):
        return make_sizes([a if a == b else Size(a.rows) for a, b in pairs])
    return WHOLE
