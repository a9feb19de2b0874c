"""How the tensor that a rank has makes up the tensor that the script alone has."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

REPLICATED, SHARDED, PARTIAL, PIECE = "replicated", "sharded", "partial", "piece"
SIZES, LIST, ANY = "sizes", "list", "any"
HALF = ("float16", "bfloat16")
"""Dtypes of half precision: a sum is made whole where it arises, by float32 numbers, and rounded once.

So it overflows and is rounded where the script's is: whether gradients are finite is decided as it is alone. What the
turns of a loop add up is whole after the loop: else there were a collective in each turn.
"""


class Rows(NamedTuple):
    """Which entries along an axis a rank has.

    blocks: a rank has, of each block, the part that belongs to its rows of the batch; a block has so many entries for
        each row, None where that number is not known. (1,): the rows of the batch themselves.
    chosen: not None if a mask chose some of these entries, which only the data tell; equal for equal masks.
    """

    blocks: tuple[int | None, ...] = (1,)
    chosen: Hashable = None

    @property
    def unit(self) -> int | None:
        """Entries for each row of the batch; None where that number is not known or not fixed."""
        if self.chosen is not None or None in self.blocks:
            return None
        return sum(block for block in self.blocks if block is not None)

    def scale(self, factor: int | None) -> Rows:
        """The rows of an axis that has `factor` entries in the place of each one."""
        return self._replace(
            blocks=tuple(None if block is None or factor is None else block * factor for block in self.blocks)
        )


class Size(NamedTuple):
    """One number of a `sizes` placement.

    rows: the number counts the entries of such an axis; None: the number is replicated.
    value: the number, where it is fixed.
    """

    rows: Rows | None = None
    value: int | None = None


class Placement(NamedTuple):
    """What the ranks' tensors say of the script's, by `kind`:

    replicated   both are equal
    sharded      the script's tensor has the ranks' tensors one after the other along an axis
    partial      the script's tensor is the sum (or `by`: the maximum, the minimum) of the ranks' tensors
    piece        the script's tensor, flattened, has the ranks' vectors one after the other, cut at `cuts`
    sizes        a scalar or short vector of whole numbers, each with its own placement: a sharded tensor's shape
    list         a TensorList (or an optional) whose items have the placement `item`; None: nothing was put into it
    any          nobody looks at it, as at what the branch that is not taken would have kept for the backward pass

    `axis`, `rows` and `numbers` are of sharded tensors, `sizes` of sizes, `item` of lists.

    numbers: the tensor's values number entries of such an axis of the script's tensor, as those of `tf.range(batch)`.
    zero: the tensor is 0 everywhere, so that it is partial, too.
    dtype: of the items of a list.
    axes: of a replicated vector that names axes: whether it names each of them, None where that is not known.
    feed: of an iterator, a dataset or an optional, replicated: how it gives each rank its rows (`feeds`); None where it
        gives whole batches.
    cuts: where the entries of each rank's piece begin, and where the last rank's end; of a replicated handle: those of
        the pieces of its variable that the ranks hold, and `variable` is its number.
    owned: of a partial tensor: made of each rank's pieces, so that a rank without rows has a part of it, too.
    """

    kind: str
    axis: int = 0
    rows: Rows = Rows()
    numbers: Rows | None = None
    zero: bool = False
    sizes: tuple[Size, ...] = ()
    item: Placement | None = None
    by: str = "sum"
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
        """Whether it is a sum, which linear ops keep."""
        return self.kind == PARTIAL and self.by == "sum" and not self.owned

    @property
    def is_piece(self) -> bool:
        return self.kind == PIECE

    @property
    def is_held(self) -> bool:
        """Whether it is of the handle of a variable of which each rank holds a piece."""
        return self.kind == REPLICATED and bool(self.cuts)

    @property
    def layout(self) -> tuple[int, Rows]:
        """Two sharded tensors with the same layout have entries of the same rows beside one another."""
        return self.axis, self.rows

    def has_layout(self, other: Placement) -> bool:
        """Whether both are sharded, or cut into pieces, alike."""
        if self.is_piece:
            return other.is_piece and self.cuts == other.cuts
        return self.is_sharded and other.is_sharded and self.layout == other.layout

    def __str__(self) -> str:
        if self.kind == SHARDED:
            return f"sharded along axis {self.axis}"
        if self.kind == LIST:
            return f"list of {self.item}" if self.item else "empty list"
        return self.kind


WHOLE = Placement(REPLICATED)
ZERO = Placement(REPLICATED, zero=True)
SUM = Placement(PARTIAL)
BATCH = Placement(SHARDED)
EMPTY = Placement(LIST)
NOBODYS = Placement(ANY)


def shard(axis: int, rows: Rows = Rows()) -> Placement:  # noqa: B008 - a tuple that nothing changes
    return Placement(SHARDED, axis, rows)


def cut(cuts: tuple[int, ...]) -> Placement:
    return Placement(PIECE, cuts=cuts)


def hold(cuts: tuple[int, ...], variable: int) -> Placement:
    """Of the handle of a variable in pieces."""
    return Placement(REPLICATED, cuts=cuts, variable=variable)


def list_of(item: Placement | None, dtype: Any = None) -> Placement:
    return Placement(LIST, item=item, dtype=dtype)


def make_sizes(sizes: Sequence[Size]) -> Placement:
    """Replicated, if each number is; then `sizes` are there until the reader has noted their values."""
    return Placement(SIZES if any(one.rows for one in sizes) else REPLICATED, sizes=tuple(sizes))


def multiply_sizes(sizes: Sequence[Size]) -> Size | None:
    """The product; None where it counts no entries of an axis that is known."""
    counts = [one for one in sizes if one.rows is not None]
    others = [one.value for one in sizes if one.rows is None]
    product = None if None in others else math.prod(value for value in others if value is not None)
    if not counts:
        return Size(None, product)
    rows = counts[0].rows
    if len(counts) > 1 or rows is None or (product is None and len(rows.blocks) > 1):
        return None
    return Size(rows.scale(product))


def join(first: Placement, second: Placement) -> Placement:
    """A placement that both can be brought to, as after a branch or a turn of a loop.

    Replicated becomes partial (rank 0 keeps it, the others have 0). What else differs becomes replicated.
    """
    if first == second:
        return first
    if ANY in (first.kind, second.kind):
        return second if first.kind == ANY else first
    if LIST in (first.kind, second.kind):
        if first.kind != second.kind:
            return WHOLE
        if first.item is None or second.item is None:
            return first if second.item is None else second
        return list_of(first.item if first.item == second.item else WHOLE, first.dtype)
    plain = [one._replace(zero=False, numbers=None) for one in (first, second)]
    if plain[0] == plain[1]:
        return plain[0]
    kinds = {one.kind for one in plain}
    if kinds == {REPLICATED, PARTIAL} and any(one.is_partial for one in plain):
        return SUM
    if kinds == {SIZES} and len(first.sizes) == len(second.sizes):
        same = [
            Size(a.rows, a.value if a.value == b.value else None) if a.rows == b.rows else None
            for a, b in zip(first.sizes, second.sizes)
        ]
        if None not in same:
            return make_sizes([one for one in same if one is not None])
    return WHOLE
