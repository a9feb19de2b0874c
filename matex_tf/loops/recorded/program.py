"""A gradient as a program: the ops that lead to what is differentiated, with the tensors that they begin with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from matex_tf.gradients import reduction
from matex_tf.loops.recorded import recording

LATER = "what is differentiated was not computed under the tape alone"
OPAQUE = "gradients go back through what no op tells of ({}), as a tf.custom_gradient or a tf.function that is called"
INNER = "a gradient is taken with respect to a value that is computed under the tape"
BOTH = "a variable is read as a whole and by rows"
NO_TENSOR = "it begins with what is no array of numbers"
_SMALL = 16

Place = tuple[int, int]
"""Of a tensor: the place of its op among `Program.ops` and which output it is; or -1 and its place among the leaves."""


class Gather(NamedTuple):
    """Rows that are read of a variable: of `leaf`, their values, and where their indices are."""

    leaf: int
    indices: Place


class Source(NamedTuple):
    """What a gradient is taken with respect to: a variable, by what was read of it, or a leaf; or nothing of both."""

    variable: Any = None
    reads: tuple[int, ...] = ()
    gathers: tuple[Gather, ...] = ()
    leaf: int | None = None

    @property
    def leaves(self) -> list[int]:
        of_tensor = [] if self.leaf is None else [self.leaf]
        return [*self.reads, *(one.leaf for one in self.gathers), *of_tensor]


class Program:
    """Of `targets` with respect to `sources`, both flat, as recorded in `of`.

    why: not empty if it cannot be made again.
    """

    def __init__(self, of: recording.Recording, targets: Sequence[Any], sources: Sequence[Any]):
        self._of = of
        self.why = ""
        self.ops: list[recording.Op] = []
        self.inputs: list[tuple[Place, ...]] = []
        self.leaves: list[Any] = []
        self._places: dict[int, Place] = {}
        self.targets = self._collect_ops([getattr(one, "_id", -1) for one in targets])
        self.sources = [] if self.why else [self._make_source(one) for one in sources]

    def _collect_ops(self, targets: Sequence[int]) -> list[Place]:
        """Take over the ops that lead to the tensors with these numbers, and give the places of those."""
        of = self._of
        if not targets or any(one not in of.made for one in targets):
            self.why = LATER
            return []
        pending, needed = list(targets), set()
        while pending:
            number = pending.pop()
            if number in of.opaque:
                self.why = OPAQUE.format(of.opaque[number])
                return []
            if number in of.made:
                at = of.made[number][0]
                if at not in needed:
                    needed.add(at)
                    pending.extend(of.ops[at].inputs)
            elif number in of.reads and of.reads[number][0].kind == "ResourceGather":
                pending.append(of.reads[number][0].inputs[1])
        order = {at: place for place, at in enumerate(sorted(needed))}
        for at in sorted(needed):
            self.ops.append(of.ops[at])
            self.inputs.append(tuple(self._place_tensor(number, order) for number in of.ops[at].inputs))
        for number in list(self._places):
            if number in of.reads and of.reads[number][0].kind == "ResourceGather":
                self._place_tensor(of.reads[number][0].inputs[1], order)
        return [self._place_tensor(number, order) for number in targets]

    def _place_tensor(self, number: int, order: dict[int, int]) -> Place:
        if number in self._places:
            return self._places[number]
        if number in self._of.made:
            at, index = self._of.made[number]
            place = order[at], index
        else:
            leaf = self._of.leaves.get(number)
            if leaf is None or not _is_numbers(leaf):
                self.why = NO_TENSOR
            place = -1, len(self.leaves)
            self.leaves.append(leaf)
        self._places[number] = place
        return place

    def _make_source(self, source: Any) -> Source:
        variable = reduction.find_tf_variable(source)
        if not hasattr(variable, "assign"):
            number = getattr(source, "_id", None)
            if number in self._of.made:
                self.why = INNER
            known = self._places.get(number) if number in self._of.watched else None
            return Source(leaf=known[1] if known else None)
        handle = getattr(getattr(variable, "handle", None), "_id", None)
        reads, gathers = [], []
        for number, place in self._places.items():
            op, of_handle = self._of.reads.get(number, (None, None))
            if op is None or of_handle != handle:
                continue
            if op.kind == "ReadVariableOp":
                reads.append(place[1])
            elif _pair_attributes(op).get("batch_dims"):
                self.why = OPAQUE.format(op.kind)
            else:
                gathers.append(Gather(place[1], self._places[op.inputs[1]]))
        if gathers and (reads or len(gathers) > 1):
            self.why = BOTH
        return Source(source, tuple(reads), tuple(gathers))

    def is_read(self, leaf: int) -> bool:
        """Whether a leaf is the value of a variable."""
        read = self._of.reads.get(self.leaves[leaf]._id)
        return read is not None and read[0].kind == "ReadVariableOp"

    def list_batch_sizes(self) -> list[int]:
        """Numbers of rows that the batch may have, the likeliest first: of most of the numbers that it begins with."""
        sizes: dict[int, int] = {}
        for place, leaf in enumerate(self.leaves):
            if leaf.shape.rank and not self.is_read(place):
                rows = leaf.shape.as_list()[0]
                sizes[rows] = sizes.get(rows, 0) + leaf.shape.num_elements()
        return sorted((rows for rows in sizes if rows > 1), key=lambda rows: -sizes[rows])

    def is_of(self, leaf: int, rows: int) -> bool:
        """Whether a leaf holds rows of a batch that has so many."""
        one = self.leaves[leaf]
        return bool(one.shape.rank) and one.shape.as_list()[0] == rows and not self.is_read(leaf)

    def is_fixed(self, leaf: int, rows: int) -> bool:
        """Whether a leaf is a constant by its value: few whole numbers, such as axes and sizes."""
        one = self.leaves[leaf]
        is_whole = one.dtype.is_integer or one.dtype.is_bool
        return is_whole and one.shape.num_elements() <= _SMALL and not self.is_of(leaf, rows)

    def make_key(self, rows: int) -> Any:
        """What another program has in common for which the same graph does, with so many rows in this one's batch."""
        leaves: list[Any] = []
        for place, one in enumerate(self.leaves):
            shape = tuple(one.shape.as_list())
            if self.is_fixed(place, rows):
                leaves.append((one.dtype, shape, one.numpy().tobytes()))
            else:
                is_of = self.is_of(place, rows)
                leaves.append((is_of, one.dtype, shape[1:] if is_of else shape))
        ops = tuple((op.kind, repr(op.attributes), op.dtypes, op.followed) for op in self.ops)
        sources = tuple((_identify_handle(one.variable), one[1:]) for one in self.sources)
        return ops, tuple(self.inputs), tuple(self.targets), tuple(leaves), sources

    def compute_digest(self) -> int:
        """A number that another program, or this one on another rank, hardly has in common."""
        ops = [(op.kind, repr(op.attributes), op.followed) for op in self.ops]
        return zlib.crc32(repr((ops, self.inputs, self.targets)).encode())

    def list_attributes(self, op: recording.Op) -> dict[str, Any]:
        return _pair_attributes(op)


def _pair_attributes(op: recording.Op) -> dict[str, Any]:
    return dict(zip(op.attributes[::2], op.attributes[1::2]))


def _identify_handle(variable: Any) -> Any:
    return None if variable is None else reduction.find_tf_variable(variable).handle._id


def _is_numbers(leaf: Any) -> bool:
    made = leaf.dtype
    return bool(made.is_floating or made.is_integer or made.is_bool or made.is_complex)
