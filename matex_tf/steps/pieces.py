"""The variables that ranks hold in pieces (`piece_variables`), and the code that cuts them or makes them whole."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.rewrite.placement import Placement, hold
from matex_tf.runtime import objects
from matex_tf.steps import events, whole_code

_VARIABLE = "variable in pieces"
THREADED = "the script has a thread of its own, which may read an optimizer's variables by itself"
ASKED = "the script asks for its rank, and may read an optimizer's variables on one rank alone"

is_left_open = False
"""Whether ranks choose between variables in pieces and whole ones by trial: `MATEX_STRATEGY=auto`."""

_variables: dict[int, weakref.ref[Any]] = {}
_are_made = False


def note_variable(variable: Any) -> None:
    """Record a new `PieceVariable`."""
    global _are_made
    _are_made = True
    number = variable.number
    _variables[number] = weakref.ref(variable, lambda _: _variables.pop(number, None))
    tags.set_tag(variable.handle, _VARIABLE, weakref.ref(variable))


def list_variables() -> list[Any]:
    """The existing ones on this rank, in the order of their creation."""
    found = [refer() for _, refer in sorted(_variables.items())]
    return [one for one in found if one is not None]


def find_variables(graph: Any) -> list[Any]:
    """For each tensor that a graph captures: the variable of ours whose handle it is, or None."""
    return [tags.get_tag(outer, _VARIABLE, lambda: None)() for outer, _ in graph.captures]


def make_whole() -> None:
    """Make all variables whole that are in pieces. Collective; eager.

    One rank may still hold variables that the script has dropped, and another may not.
    """
    if _are_made:
        mine = {one.number: one for one in list_variables() if one.is_apart()}
        everyone = objects.allgather(sorted(mine), "which variables are in pieces")
        for number in sorted(set(everyone[0]).intersection(*everyone)):
            mine[number].make_whole()


def keep_whole() -> None:
    """Make all variables whole that are in pieces, for good. Collective; eager.

    From then on a rank may read them by itself, and no new ones are created.
    """
    global _are_made
    make_whole()
    for one in list_variables():
        one.is_refused = True
    _are_made = False


def prepare_whole_call(function: Any, args: Sequence[Any], kwargs: dict[str, Any], why: str) -> None:
    """Prepare a `tf.function` that every rank calls by itself: the variables that it uses become whole. Collective if
    so.

    why: the reason why the call is not shared; told if the function changes such variables.
    """
    if not _are_made:
        return
    graph = function.get_concrete_function(*args, **kwargs).graph
    found = [one for one in find_variables(graph) if one is not None]
    for one in found:
        one.make_whole()
    if threading.current_thread() is not threading.main_thread():
        return
    written = {id(one) for one in whole_code.list_written(graph)} if found else set()
    if any(id(inner) in written for (_, inner), one in zip(graph.captures, find_variables(graph)) if one is not None):
        events.pieces_refused(found, why)


def list_kept(variables: Iterable[Any]) -> list[Any]:
    """The TensorFlow variables that hold the values of these while ours are in pieces."""
    return [one.piece if getattr(one, "cuts", ()) and not one.is_refused else one for one in variables]


class Holding:
    """The variables in pieces that a step uses, among the tensors that its trace captures."""

    def __init__(self, graph: Any, takes_whole: bool = False):
        """takes_whole: the step takes the variables whole, and makes them whole before each call."""
        self._captured = [None if one is None or one.is_refused else one for one in find_variables(graph)]
        if found := self.list_variables():
            events.pieces_are_used(found)
        self._captured = [one if one is not None and one.cuts else None for one in self._captured]
        self._whole = self.list_variables() if takes_whole else []
        if takes_whole:
            self._captured = [None] * len(self._captured)
        self._cuts = [() if one is None else one.cuts for one in self._captured]
        self._count_whole: Any = None

    def list_variables(self) -> list[Any]:
        return [one for one in self._captured if one is not None]

    @property
    def holds(self) -> bool:
        """Whether the cuts are unchanged, and no variable has become one that stays whole."""
        return all(
            one is None or (one.cuts == cuts and not one.is_refused) for one, cuts in zip(self._captured, self._cuts)
        )

    def place(self) -> list[Placement | None]:
        """The placements of the captured handles; None for a handle that is not ours."""
        return [
            None if one is None else hold(cuts, at) for at, (one, cuts) in enumerate(zip(self._captured, self._cuts))
        ]

    def refuse(self, refused: dict[int, Any], place: str) -> None:
        """Keep whole the variables that ops take whole, by the numbers in their placements. Collective."""
        for number in sorted(refused):
            variable: Any = self._captured[number]
            variable.make_whole()
            variable.is_refused, self._captured[number] = True, None
            events.pieces_refused([variable], f"{refused[number].type} takes '{variable.name}' whole in {place}")

    def find_handles(self, outer: Iterable[Any]) -> list[Any]:
        """The handles that a copy of the step captures for these tensors."""
        return [one if mine is None else mine.piece.handle for one, mine in zip(outer, self._captured)]

    def prepare(self) -> None:
        """Bring the variables to the form that the step takes, before a call. Collective if they are in pieces and the
        step takes them whole.
        """
        found = self._whole or self.list_variables()
        if not found:
            return
        if self._count_whole is None:
            self._count_whole = _make_count([one.handle for one in found])
        if self._count_whole().numpy() != len(self._whole):
            for one in found:
                one.make_whole() if self._whole else one.take_apart()


def _make_count(handles: Sequence[Any]) -> Any:
    """A function that counts the existing resources among these."""

    def count() -> Any:
        exist = [tf.raw_ops.VarIsInitializedOp(resource=one) for one in handles]
        return tf.math.count_nonzero(tf.stack(exist))

    return tf.function(count, autograph=False).get_concrete_function()
