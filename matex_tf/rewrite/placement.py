"""Placements: how the tensors of the ranks make up the tensor of the script.

Example: a batch of 5 rows on 2 ranks is `BATCH`, sharded along axis 0: rank 0 has rows 0-2, rank 1 has rows 3-4. The
weights are `WHOLE`, replicated. The sum over the batch is `SUM`, partial: each rank has the sum over its rows.
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
    """One number of a vector of sizes (`Placement.sizes`). It counts rows, or is the same on all ranks.

    rows: the number is the length of an axis with these rows, so each rank has another number. None: all ranks have the
        same number.
    value: the number, if `rows` is None and the number is known before the graph runs. `Size()` is a number that is
        equal on all ranks, and unknown.
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
        owned: each term is computed from the piece that a rank owns, so a rank without rows has a term, too.
    Replicated:
        is_zero: the tensor is 0 everywhere, so ops may take it as a partial sum, too.
        axes: for a vector of axes of a tensor, such as the axes of a reduction: for each axis of that tensor, whether
            the vector names it; None: unknown.
        feed: for an iterator, a dataset or an optional: the `feeds.Feed`, which gives each rank its rows of a batch;
            None: each rank gets whole batches.
    Piece, and a replicated handle of a variable whose value the ranks hold in pieces:
        cuts: the first entry of each rank's piece, and the end of the last piece.
        variable: of a handle: the number of the variable among the captured tensors.
    Sizes, and a replicated vector whose numbers a rule knows:
        sizes: the numbers of the vector.
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
        """Whether it is a sum over the ranks' rows, which linear ops keep: for such a sum s, 2 * s is one, too.

        This is narrower than `kind == PARTIAL`, because linear ops need maxima, minima and `owned` sums whole.
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
        """Whether both are sharded along the same axis with the same rows, or are pieces with the same cuts."""
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


def make_piece(cuts: tuple[int, ...]) -> Placement:
    return Placement(PIECE, cuts=cuts)


def make_piece_handle(cuts: tuple[int, ...], variable: int) -> Placement:
    """The placement of the handle of a variable in pieces; see `Placement` for the arguments."""
    return Placement(REPLICATED, cuts=cuts, variable=variable)


def list_of(item: Placement | None, dtype: Any = None) -> Placement:
    return Placement(LIST, item=item, dtype=dtype)


def make_sizes(sizes: Sequence[Size]) -> Placement:
    """The placement of a vector of these sizes: of the kind SIZES if a number counts rows, else replicated.

    `propagate` makes a constant of a replicated vector if all `sizes` are known (`constants.note_sizes`).
    """
    return Placement(SIZES if any(size.rows for size in sizes) else REPLICATED, sizes=tuple(sizes))


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


def join(first: Placement, second: Placement) -> Placement:
    """A placement to which both can be brought, for example after a branch or a turn of a loop."""
    if first == second:
        return first
    if ANY in (first.kind, second.kind):
        return second if first.kind == ANY else first
    # Two lists: an empty list gets the placement of the items of the other list.
    if LIST in (first.kind, second.kind):
        if first.kind != second.kind:
            return WHOLE
        if first.item is None or second.item is None:
            return first if second.item is None else second
        return list_of(first.item if first.item == second.item else WHOLE, first.dtype)
    # Facts that may hold for one placement only are dropped. Then both may be equal.
    plain_placements = [placement._replace(is_zero=False, index_rows=None) for placement in (first, second)]
    if plain_placements[0] == plain_placements[1]:
        return plain_placements[0]
    # A replicated tensor can become a partial sum: rank 0 keeps it, the other ranks have 0.
    kinds = {placement.kind for placement in plain_placements}
    if kinds == {REPLICATED, PARTIAL} and any(placement.is_partial for placement in plain_placements):
        return SUM
    # Two vectors of sizes that count rows at the same positions: other numbers that differ become unknown.
    size_pairs = list(zip(first.sizes, second.sizes))
    are_alike = kinds == {SIZES} and len(first.sizes) == len(second.sizes)
    if are_alike and all(a.rows == b.rows for a, b in size_pairs):
        return make_sizes([a if a == b else Size(a.rows) for a, b in size_pairs])
    return WHOLE
