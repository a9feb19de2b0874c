"""How the value that a rank has of a tensor makes up the value that the script alone has of it: its placement.

`Placement` defines the kinds and their powers; `is_aligned` compares two of them, and `join_placements` keeps what
holds of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

_Known = TypeVar("_Known")

REPLICATED, SHARDED, PARTIAL, DERIVED, ROW_NUMBERS, EMPTY, UNKNOWN = (
    "replicated", "sharded", "partial", "derived", "row numbers", "empty", "unknown",
)  # fmt: skip


class Element(NamedTuple):
    """One entry of a vector of whole numbers, such as a shape: replicated with `power`, with its value if it is fixed.

    power: None if it is not replicated.
    unit: how many times the number of rows it is, where that is known: its power is -1 then.
    sums: it is not replicated, but what it is alone is the sum of what the ranks have.
    """

    power: int | None = 0
    value: int | None = None
    unit: int | None = None
    sums: bool = False


class Placement(NamedTuple):
    """What T_r, the value of rank r, says of T, the value alone; w_r is the rank's share of the rows of the batch.

        replicated     T = w_r^k T_r on every rank
        sharded        T = the ranks' w_r^k T_r one after the other along an axis
        partial        T = the sum over the ranks of w_r^k T_r: a partial sum for k = 0, a partial mean for k = 1
        derived        T = f(...), where the op's inputs are partial or replicated: whole once they are
        row_numbers    T_r numbers rows within the slice (`tf.range(rows)`, `tf.where(mask)`)
        empty          a list into which nothing was put yet
        unknown        none of these is proved

    The power k is 0 for most tensors. The row count of a slice is replicated with k = -1, since all rows are n_r / w_r;
    a sum over rows that is divided by it is partial with k = 1: a mean. So no number is ever compared with a row count.
    `axis`, `even`, `unit`, `blocks` and `chosen` are of sharded tensors.

    axis: the dimension along which the ranks' parts follow one another.
    even: a rank's part has a fixed number of entries along it for each of its rows (not so after a mask).
    unit: that number, where it is known.
    blocks: not empty if several sharded tensors were joined along the axis: the sizes of each, in rows. A rank then has
        its part of each block, so that only the order within the axis differs from the order alone.
    chosen: where it is not even, what chose its entries: those of two such tensors match only if it is the same. None:
        that is not known.
    drawn: its entries along the axis are drawn at random, or made of such, so that any order of them is as good.
    zero: the value is 0 everywhere, which is partial, too, for any power.
    elements: the entries of a short vector or scalar of whole numbers.
    why: of an unknown placement, the op that nothing is proved of, and a clause that says why.
    shape: of an unknown placement: its sizes, where at least these are the same on all ranks.
    """

    kind: str
    power: int = 0
    axis: int = 0
    even: bool = True
    unit: int | None = 1
    blocks: tuple[Any, ...] = ()
    chosen: Any = None
    drawn: bool = False
    zero: bool = False
    elements: tuple[Element, ...] | None = None
    why: tuple[Any, str] | None = None
    shape: tuple[int | None, ...] | None = None

    @property
    def is_same(self) -> bool:
        """Whether every rank has the value that the script alone has."""
        return self.kind == REPLICATED and self.power == 0 and not self.is_mixed

    @property
    def form(self) -> tuple[Any, ...]:
        """What a function that was traced for it relies on."""
        return self.kind, self.power, self.axis, self.even, self.blocks

    @property
    def is_mixed(self) -> bool:
        """Whether it is a vector whose entries have different powers, as the shape of a sharded tensor."""
        return self.elements is not None and any(one.power != self.power for one in self.elements)

    @property
    def is_sharded(self) -> bool:
        return self.kind == SHARDED

    @property
    def is_figure(self) -> bool:
        """Whether it is whole once figures of all ranks are put together, with no rows in it."""
        return self.kind in (PARTIAL, DERIVED) or (self.kind == REPLICATED and not self.is_mixed)

    @property
    def can_be_whole(self) -> bool:
        """Whether the ranks' parts of it can be put together."""
        if self.kind == SHARDED:
            return self.power == 0 and not self.blocks and self.axis == 0
        is_open = any(one.power is None for one in self.elements or ())
        return self.kind in (PARTIAL, DERIVED, REPLICATED) and not is_open


SAME = Placement(REPLICATED)
ROWS = Placement(SHARDED)
DERIVATION = Placement(DERIVED)
EMPTY_LIST = Placement(EMPTY)


def make_replicated(power: int = 0, elements: tuple[Element, ...] | None = None) -> Placement:
    return Placement(REPLICATED, power, elements=elements)


def make_vector(elements: list[Element] | tuple[Element, ...]) -> Placement:
    """A vector, or scalar, of whole numbers with these entries."""
    elements = tuple(elements)
    powers = {one.power for one in elements}
    return Placement(REPLICATED, powers.pop() or 0 if len(powers) == 1 else 0, elements=elements)


def make_partial(power: int) -> Placement:
    return Placement(PARTIAL, power)


def make_unknown(op: Any, why: str) -> Placement:
    return Placement(UNKNOWN, why=(op, why))


def require_known(values: Iterable[_Known | None]) -> list[_Known] | None:
    """The values as a list; None where one of them is not known."""
    known = list(values)
    return None if None in known else [value for value in known if value is not None]


def as_partial(one: Placement) -> Placement | None:
    """`one` as a partial placement, if it is one: what is replicated is the mean over rows of itself."""
    if one.kind == PARTIAL:
        return one
    if one.kind == REPLICATED and not one.is_mixed:
        return make_partial(one.power + 1)
    return None


def is_aligned(first: Placement, second: Placement) -> bool:
    """Whether the entries of two sharded tensors are beside each other on every rank as they are alone."""
    same_units = first.unit == second.unit or None in (first.unit, second.unit)
    if (first.drawn or second.drawn) and first.even and second.even:
        return same_units
    if first.blocks != second.blocks or None in first.blocks or first.even != second.even:
        return False
    if not first.even and (first.chosen is None or first.chosen != second.chosen):
        return False
    return same_units


def choose_order(sharded: Sequence[Placement]) -> Placement:
    """Of tensors that fit, the one in whose order the rows are."""
    return next((one for one in sharded if not one.drawn), sharded[0])


def join_placements(op: Any, first: Placement, second: Placement) -> Placement:
    """What is known of a tensor that is one or the other, as after a branch or a turn of a loop."""
    if first == second:
        return first
    for one, other in ((first, second), (second, first)):
        if one.kind == EMPTY:
            return other
        if one.zero and one.kind == REPLICATED and other.kind in (REPLICATED, PARTIAL):
            return other._replace(zero=other.zero and one.zero)
    if first._replace(elements=None, zero=False) == second._replace(elements=None, zero=False):
        if not (first.is_mixed or second.is_mixed):
            return first._replace(elements=None, zero=False)
        if first.elements and second.elements and len(first.elements) == len(second.elements):
            return make_vector([_join_elements(a, b) for a, b in zip(first.elements, second.elements)])
    part = as_partial(first)
    if part is not None and part == as_partial(second):
        return part
    for one in (first, second):
        if one.kind == UNKNOWN:
            return one
    if first.is_sharded and second.is_sharded and (first.axis, first.power, first.blocks) == (
        second.axis, second.power, second.blocks,
    ):  # fmt: skip
        even, unit = first.even and second.even, first.unit if first.unit == second.unit else None
        chosen = first.chosen if first.even == second.even and first.chosen == second.chosen else None
        if None in first.blocks:
            return make_unknown(op, "its parts are joined of others of which the sizes are not known")
        return first._replace(even=even, unit=unit, chosen=chosen, zero=first.zero and second.zero, elements=None)
    return make_unknown(op, f"it is {first.kind} in one case and {second.kind} in another")


def _join_elements(first: Element, second: Element) -> Element:
    if first == second:
        return first
    return Element(first.power if first.power == second.power else None, sums=first.sums and second.sums)
