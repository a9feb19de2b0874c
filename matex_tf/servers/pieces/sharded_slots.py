"""The slots of an optimizer in pieces: each rank holds its own, and whoever else reads a slot gets the whole of it.

A slot, such as Adam's first moment of a weight, is a variable of the optimizer; `Holding` explains its two states.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from matex_tf import ops, settings, tags
from matex_tf.gradients import reduction, variables
from matex_tf.ops import overlap
from matex_tf.rewrite import graph_ops
from matex_tf.runtime import objects
from matex_tf.servers.pieces import owners, partition, piece_variables
from matex_tf.servers.variable_swap import find_handle, find_inner, put_value
from matex_tf.world import membership, world

_HOLDING = "holding"
_WHOLE_AT = "whole at"  # of a graph: how many ops it had when a holding was made whole there
_MOST_DIMENSIONS = 8  # of a variable of TensorFlow

Places = Sequence[Any]
"""Of each variable of a holding, where this rank's piece of it begins and how long it is, one after the other."""

_begun: list[None] = []  # one for each that was begun, on every rank in the same order
_parts: weakref.WeakKeyDictionary[Any, dict[int, Part]] = weakref.WeakKeyDictionary()
_holdings: weakref.WeakSet[Holding] = weakref.WeakSet()
_watched: dict[type, type] = {}
_state = threading.local()


def find_parts(optimizer: Any) -> dict[int, Part]:
    """What is held of an optimizer, by the ids of the model's variables."""
    return _parts.setdefault(optimizer, {})


def find_holdings(variables: Sequence[Any]) -> list[Holding]:
    """Those that hold some of these variables of TensorFlow, in their order."""
    found = (tags.get_tag(variable, _HOLDING) for variable in variables)
    return list(dict.fromkeys(one for one in found if one is not None))


def list_holdings() -> dict[int, Holding]:
    """All that have begun, by their numbers."""
    return {one.number: one for one in _holdings}


def put_as_is(variable: Any, value: Any, known: Sequence[Holding]) -> None:
    """Give a variable of TensorFlow what was read of it within `leave_as_is`, when `known` had begun."""
    if tags.get_tag(variable, _HOLDING) in known:
        put_value(variable, value)
    else:
        variable.assign(value)


def make_whole() -> None:
    """Put together all slots that are held in pieces. Collective; eager.

    Of an optimizer that the script has dropped a rank may still have them, and another not.
    """
    if _begun:
        mine = {number: one for number, one in list_holdings().items() if one.is_apart()}
        everyone = objects.allgather(sorted(mine), "which optimizers are held in pieces")
        for number in sorted(set(everyone[0]).intersection(*everyone)):
            mine[number].make_whole()


@contextlib.contextmanager
def leave_as_is() -> Iterator[None]:
    """Within it slots are taken as they are: what is traced is never run."""
    before, _state.as_they_are = getattr(_state, "as_they_are", False), True
    try:
        yield
    finally:
        _state.as_they_are = before


@dataclass
class Part:
    """A variable of a model with this rank's piece of it, and its slots with theirs."""

    holding: Holding
    number: int  # its place in the holding
    pairs: list[tuple[Any, Any]]

    @property
    def variable(self) -> Any:
        return self.pairs[0][0]

    @property
    def piece(self) -> Any:
        return self.pairs[0][1]

    @property
    def slots(self) -> list[tuple[Any, Any]]:
        return self.pairs[1:]

    def cut_own(self, tensor: Any, places: Places) -> Any:
        """This rank's piece of a whole tensor that is shaped as the variable; `places` are those of the holding."""
        import tensorflow as tf

        first, count = places[2 * self.number : 2 * self.number + 2]
        return tf.slice(tf.reshape(tensor, [-1]), first, count)

    def list_cuts(self) -> list[int]:
        """Where in the entries of the variable each rank's piece begins, and where the last rank's ends."""
        bounds = [mine[self.number] for mine in self.holding.bounds]
        return [0, *itertools.accumulate(last - first for first, last in bounds)]


class Holding:
    """Variables of one type that are cut together, with their slots, which are whole or in pieces, all of them.

    The ranks `owning`, which are in their order, have a piece each. While a slot is in pieces its own memory is given
    back. Whatever reads or writes it takes its handle; the slots are put together first then, by all ranks: where a
    function is traced, by what is put into its graph. The next update takes them apart again.
    """

    is_lent: bool
    """Whether pieces lie in the whole variables, in host memory, and a trace has their places in its ops."""
    is_sent: bool
    """Whether such pieces travel in messages: each rank then has one of each variable."""
    ranks: list[int]
    """Those that it is cut for, by the numbers that they had when the run began."""
    bounds: list[list[tuple[int, int]]]
    """Of each of them, of each variable, from which entry to which it owns them."""

    def __init__(self, variables: Sequence[Any], slots: Sequence[Sequence[Any]], owning: Sequence[int]):
        import tensorflow as tf

        self.width = find_inner(variables[0]).dtype.size
        self.is_lent = _can_be_lent(variables)
        self.is_sent = self.is_lent and not owners.is_memory_shared()
        self._sizes = [find_inner(one).shape.num_elements() for one in variables]
        with tf.init_scope():
            self._places = piece_variables.make_variable(tf.constant(self._cut_variables(owning), tf.int64))
            self._nothing = piece_variables.make_variable(tf.zeros([_MOST_DIMENSIONS], tf.int64))
            self._is_whole = piece_variables.make_variable(tf.constant(True))
            self._updates = piece_variables.make_variable(tf.constant(0, tf.int64))
            self.parts = [
                Part(self, number, [(one, piece_variables.make_room(one)) for one in (variable, *slots[number])])
                for number, variable in enumerate(variables)
            ]

    def begin_holding(self) -> None:
        """Hold the slots in pieces from the next update on."""
        self.number = len(_begun)
        _begun.append(None)
        _holdings.add(self)
        weakref.finalize(self, ops.get_library().c.matex_drop_homes, self.number).atexit = False
        for part in self.parts:
            for slot, _ in part.slots:
                _watch_variable(find_inner(slot), self)
        variables.leave_out([slot for part in self.parts for slot, _ in part.slots], self.is_apart)

    def find_places(self) -> Places:
        """The graph is to know none of them."""
        import tensorflow as tf

        return tf.split(self._places, 2 * len(self.parts))

    def _cut_variables(self, owning: Sequence[int]) -> list[int]:
        """Cut for the ranks that there are; gives the places of this rank's pieces."""
        cut_variables = partition.cut_each_variable if self.is_sent else partition.cut_variables
        cut = dict(zip(owning, cut_variables(self._sizes, len(owning), self.width)))
        nothing = [(0, 0)] * len(self._sizes)
        self.ranks = membership.list_origins()
        self.bounds = [cut.get(rank, nothing) for rank in range(len(self.ranks))]
        mine = self.bounds[world.get_world().rank]
        return [number for first, last in mine for number in (first, last - first)]

    def cut_anew(self, wholes: Sequence[np.ndarray]) -> None:
        """Ranks were lost: cut for those that are left, and have slots that were in pieces be `wholes`, one after
        another.
        """
        for (slot, _), value in zip((pair for part in self.parts for pair in part.slots), wholes):
            put_value(find_inner(slot), value)
        if wholes:
            self._is_whole.assign(True)
        self._places.assign(self._cut_variables(owners.list_owners()))

    def list_state(self) -> list[Any]:
        """The variables of TensorFlow in which it is."""
        slots = [find_inner(one) for part in self.parts for pair in part.slots for one in pair]
        return [self._is_whole, self._updates, *slots]

    def count_updates(self) -> int:
        """How many there were, with MATEX_ELASTIC: pieces are the same as long as this is."""
        return int(self._updates.numpy())

    def take_apart(self, gradients: Sequence[Any]) -> None:
        """In a graph: give this rank its pieces of slots that are whole, and the memory of these back.

        The update that comes counts once `gradients` are there: where data are at their end, there is none.
        """
        import tensorflow as tf

        def take() -> None:
            places = self.find_places()
            slots = [(part, find_inner(slot), piece) for part in self.parts for slot, piece in part.slots]
            ranks = sorted({whole.shape.rank for _, whole, _ in slots})
            nothing = {rank: tf.zeros(self._nothing[:rank], find_inner(self.parts[0].variable).dtype) for rank in ranks}
            for part, whole, piece in slots:
                value = tf.raw_ops.ReadVariableOp(resource=find_handle(whole), dtype=whole.dtype)
                piece.assign(part.cut_own(tf.ensure_shape(value, whole.shape), places))
                if whole.shape.rank:
                    put_value(whole, nothing[whole.shape.rank])
            self._is_whole.assign(False)

        if settings.get_settings().elastic:
            with tf.control_dependencies(list(gradients)):
                self._updates.assign_add(1)
        tf.cond(self._is_whole, take, lambda: None)

    def make_whole(self) -> None:
        """Put the slots together where they are in pieces: now, or, in a graph, when that is run. Collective."""
        import tensorflow as tf

        if getattr(_state, "as_they_are", False):
            return
        if overlap.is_for_xla() and not tf.executing_eagerly():
            self._need_whole_before_xla()
        elif not tf.executing_eagerly():
            self._make_whole_in(tf.compat.v1.get_default_graph())
        elif self.is_apart():
            if threading.current_thread() is not threading.main_thread():
                raise world.RankError(
                    f"a thread of the script reads '{self._name_slots()}', a variable of an optimizer that the ranks "
                    "hold in pieces and can put together in its main thread only: read it there, or set MATEX_STRATEGY."
                )
            self._gather_slots()

    def _make_whole_in(self, graph: Any) -> None:
        """In a graph slots stay whole until it calls a function, as that which takes them apart is one."""
        import tensorflow as tf

        known: dict[int, int] = tags.get_or_make_tag(graph, _WHOLE_AT, dict)
        since = graph.get_operations()[known.get(self.number, 0) :]
        if self.number not in known or any(graph_ops.list_functions(op.node_def) for op in since):
            tf.cond(self._is_whole, lambda: None, self._gather_slots)
        known[self.number] = len(graph.get_operations())

    def is_apart(self) -> bool:
        return not self._is_whole.numpy()

    def _need_whole_before_xla(self) -> None:
        """XLA takes variables as they are. Before eager code calls a function that it compiles, they are whole."""
        import tensorflow as tf

        around = getattr(tf.compat.v1.get_default_graph(), "outer_graph", None)
        if getattr(around, "building_function", False):
            raise world.RankError(
                f"a function that XLA compiles within another reads '{self._name_slots()}', a variable of an "
                "optimizer that the ranks hold in pieces (MATEX_STRATEGY). Set MATEX_STRATEGY=allreduce."
            )

    def _name_slots(self) -> str:
        return reduction.find_name(next(slot for part in self.parts for slot, _ in part.slots))

    def _gather_slots(self) -> None:
        import tensorflow as tf

        with leave_as_is():
            for part in self.parts:
                for slot, piece in part.slots:
                    value = piece_variables.gather_pieces(piece.read_value(), reduction.find_name(slot))
                    put_value(find_inner(slot), tf.reshape(value, find_inner(slot).shape))
            self._is_whole.assign(True)


def _can_be_lent(variables: Sequence[Any]) -> bool:
    is_on_device = any("GPU" in find_handle(find_inner(one)).device for one in variables)
    return not is_on_device and not settings.get_settings().elastic


def _watch_variable(variable: Any, holding: Holding) -> None:
    """Have whoever takes the handle of `variable` find it whole."""
    kind = type(variable)
    if kind not in _watched:
        _watched[kind] = type(kind.__name__, (_Watched, kind), {"__module__": kind.__module__})
    tags.set_tag(variable, _HOLDING, holding)
    object.__setattr__(variable, "__class__", _watched[kind])


class _Watched:
    @property
    def _handle(self) -> Any:
        holding = tags.get_tag(self, _HOLDING)  # a piece that stands in for it has none
        if holding is not None:
            holding.make_whole()
        return find_handle(self)
