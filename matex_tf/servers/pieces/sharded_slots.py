"""The slots of an optimizer in pieces: each rank holds its own, and whoever else reads a slot gets the whole of it.

A slot, such as Adam's first moment of a weight, is a variable of the optimizer; `Holding` explains its two states.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matex_tf import ops, tags
from matex_tf.analysis import declarations, graph_ops
from matex_tf.analysis.placement import SAME
from matex_tf.gradients import reduction, variables
from matex_tf.ops import overlap
from matex_tf.runtime import objects
from matex_tf.servers.pieces import partition
from matex_tf.servers.variable_swap import find_handle, find_inner, put_value
from matex_tf.world import world

_HOLDING = "holding"
_WHOLE_AT = "whole at"  # of a graph: how many ops it had when a holding was made whole there
_MOST_DIMENSIONS = 8  # of a variable of TensorFlow

Places = Sequence[Any]
"""Of each variable of a holding, where this rank's piece of it begins and how long it is, one after the other."""

_begun: list[None] = []  # one for each that was begun, on every rank in the same order
_noted: dict[int, tuple[Any, Any]] = {}
_parts: weakref.WeakKeyDictionary[Any, dict[int, Part]] = weakref.WeakKeyDictionary()
_holdings: weakref.WeakSet[Holding] = weakref.WeakSet()
_watched: dict[type, type] = {}
_state = threading.local()


def note_slot(slot: Any, variable: Any) -> None:
    """Note that `slot` is a variable that an optimizer has for each entry of `variable`."""
    whole, of = find_inner(slot), find_inner(variable)
    if whole.shape == of.shape and whole.dtype == of.dtype:
        key = id(whole)
        _noted[key] = weakref.ref(slot, lambda _: _noted.pop(key, None)), weakref.ref(of)


def list_slots(variables: Sequence[Any], handles: Sequence[Any]) -> list[list[Any]]:
    """Of each variable its slots with one of these handles, in their order."""
    numbers = {id(find_inner(variable)): index for index, variable in enumerate(variables)}
    found: list[list[Any]] = [[] for _ in variables]
    slots = {
        id(find_handle(find_inner(slot()))): (slot(), of()) for slot, of in list(_noted.values()) if slot() is not None
    }
    for one in handles:
        slot, of = slots.get(id(one), (None, None))
        if id(of) in numbers:
            found[numbers[id(of)]].append(slot)
    return found


def list_noted() -> list[Any]:
    """The slots of all optimizers that there are."""
    return [slot() for slot, _ in list(_noted.values()) if slot() is not None]


def find_parts(optimizer: Any) -> dict[int, Part]:
    """What is held of an optimizer, by the ids of the model's variables."""
    return _parts.setdefault(optimizer, {})


def make_whole() -> None:
    """Put together all slots that are held in pieces. Collective; eager.

    Of an optimizer that the script has dropped a rank may still have them, and another not.
    """
    if _begun:
        mine = {one.number: one for one in _holdings if one.is_apart()}
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
        return self.holding.list_starts([self])


class Holding:
    """Variables of one type that are cut together, with their slots, which are whole or in pieces, all of them.

    The ranks `owners`, which are in their order, have a piece each. While a slot is in pieces its own memory is given
    back. Whatever reads or writes it takes its handle; the slots are put together first then, by all ranks: where a
    function is traced, by what is put into its graph. The next update takes them apart again.
    """

    def __init__(self, variables: Sequence[Any], slots: Sequence[Sequence[Any]], owners: Sequence[int]):
        import tensorflow as tf

        self._owners, self._width = owners, find_inner(variables[0]).dtype.size
        self._sizes = [find_inner(one).shape.num_elements() for one in variables]
        with tf.init_scope():
            mine = self._bounds[world.get_world().rank]
            numbers = [number for first, last in mine for number in (first, last - first)]
            self._places = _make_variable(tf.constant(numbers, tf.int64))
            self._nothing = _make_variable(tf.zeros([_MOST_DIMENSIONS], tf.int64))
            self._is_whole = _make_variable(tf.constant(True))
            self.parts = [
                Part(self, number, [(one, _make_room(one)) for one in (variable, *slots[number])])
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
        """Where in each variable this rank's piece begins, and its length. The graph is to know neither."""
        import tensorflow as tf

        return tf.split(self._places, 2 * len(self.parts))

    def list_starts(self, parts: Sequence[Part]) -> list[int]:
        """Of the entries of `parts` of this holding, counted through, where each rank's begin, and where they end."""
        owned = [sum(mine[part.number][1] - mine[part.number][0] for part in parts) for mine in self._bounds]
        return [0, *itertools.accumulate(owned)]

    @functools.cached_property
    def _bounds(self) -> list[list[tuple[int, int]]]:
        """Of each rank, of each variable, from which entry to which it owns them."""
        cut = dict(zip(self._owners, partition.cut_variables(self._sizes, len(self._owners), self._width)))
        nothing = [(0, 0)] * len(self._sizes)
        return [cut.get(rank, nothing) for rank in range(world.get_world().size)]

    def take_apart(self) -> None:
        """In a graph: give this rank its pieces of slots that are whole, and the memory of these back."""
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
                    value = gather_pieces(piece.read_value(), reduction.find_name(slot))
                    put_value(find_inner(slot), tf.reshape(value, find_inner(slot).shape))
            self._is_whole.assign(True)


def gather_pieces(piece: Any, name: str) -> Any:
    """All ranks' pieces, one after the other. Collective."""
    import tensorflow as tf

    whole = ops.allgather(piece, name)
    if not tf.executing_eagerly():
        declarations.declare_placement(whole, SAME)
    return whole


def _make_variable(value: Any, **more: Any) -> Any:
    """A variable of ours, which may be made whenever a function is traced."""
    from tensorflow.python.ops import resource_variable_ops

    return resource_variable_ops.ResourceVariable(value, trainable=False, **more)


def _make_room(variable: Any) -> Any:
    """A variable for a piece, of which functions are not to know the length, with the identity of the whole one."""
    import tensorflow as tf

    whole = find_inner(variable)
    piece = _make_variable(tf.zeros([0], whole.dtype), shape=[None], name=whole.name.split(":")[0])
    piece._unique_id = whole._unique_id
    return piece


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
