"""Finds the variables that ranks hold in pieces, and brings them to the form, pieces or whole, that a step takes.

With `MATEX_STRATEGY=sharded`, and in trials of `auto`, each rank stores a piece of each large optimizer variable
(`piece_variables`). Code that may read such a variable on one rank alone needs whole variables.
"""

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
    """The existing `PieceVariable`s of this rank, in the order of their creation."""
    found = [reference() for _, reference in sorted(_variables.items())]
    return [variable for variable in found if variable is not None]


def find_variables(graph: Any) -> list[Any]:
    """For each tensor that a graph captures: the `PieceVariable` whose handle it is, or None."""
    return [tags.get_tag(outer, _VARIABLE, lambda: None)() for outer, _ in graph.captures]


def make_whole() -> None:
    """Make all variables whole that are in pieces. Collective; eager.

    Ranks collect garbage at different times: only variables that exist on all ranks are gathered.
    """
    if _are_made:
        mine = {variable.number: variable for variable in list_variables() if variable.is_apart()}
        everyone = objects.allgather(sorted(mine), "which variables are in pieces")
        for number in sorted(set(everyone[0]).intersection(*everyone)):
            mine[number].make_whole()


def keep_whole() -> None:
    """Make all variables whole that are in pieces, for good. Collective; eager.

    Then a rank may read them by itself. The caller creates no more `PieceVariable`s.
    """
    global _are_made
    make_whole()
    for variable in list_variables():
        variable.is_refused = True
    _are_made = False


def prepare_whole_call(function: Any, args: Sequence[Any], kwargs: dict[str, Any], why: str) -> None:
    """Prepare a `tf.function` that every rank calls by itself: the variables that it uses become whole. Collective if
    so.

    why: the reason why the call is not shared; told if the function changes such variables.
    """
    if not _are_made:
        return
    graph = function.get_concrete_function(*args, **kwargs).graph
    captured = zip(graph.captures, find_variables(graph))
    used = {id(inner): variable for (_, inner), variable in captured if variable is not None}
    for variable in used.values():
        variable.make_whole()
    if not used or threading.current_thread() is not threading.main_thread():
        return
    if any(id(handle) in used for handle in whole_code.list_written(graph)):
        events.pieces_refused(list(used.values()), why)


def list_kept(variables: Iterable[Any]) -> list[Any]:
    """The TensorFlow variables that hold the values of `variables`: for one in pieces, the variable of its piece."""
    return [one.piece if getattr(one, "cuts", ()) and not one.is_refused else one for one in variables]


class Holding:
    """The variables in pieces that a step uses, among the tensors that its trace captures.

    _captured: for each captured tensor, the `PieceVariable` that the step takes in pieces, or None.
    _cuts: the cuts of these variables when the step was planned.
    _whole: the variables that the step takes whole; empty unless `takes_whole`.
    _count_whole: a function that counts those variables of the step that are whole now.
    """

    def __init__(self, graph: Any, takes_whole: bool = False):
        """takes_whole: the step takes the variables whole, and makes them whole before each call."""
        self._captured = [None if each is None or each.is_refused else each for each in find_variables(graph)]
        if used := self.list_variables():
            events.pieces_are_used(used)  # a listener may cut them now
        self._captured = [each if each is not None and each.cuts else None for each in self._captured]
        self._whole = self.list_variables() if takes_whole else []
        if takes_whole:
            self._captured = [None] * len(self._captured)
        self._cuts = [() if each is None else each.cuts for each in self._captured]
        self._count_whole: Any = None

    def list_variables(self) -> list[Any]:
        """The variables that the step takes in pieces."""
        return [variable for variable in self._captured if variable is not None]

    @property
    def holds(self) -> bool:
        """Whether the cuts are unchanged, and no variable has become one that stays whole."""
        return all(
            variable is None or (variable.cuts == cuts and not variable.is_refused)
            for variable, cuts in zip(self._captured, self._cuts)
        )

    def place(self) -> list[Placement | None]:
        """For each captured tensor, the placement of the handle of a variable in pieces; None for other tensors."""
        captured = enumerate(zip(self._captured, self._cuts))
        return [None if variable is None else hold(cuts, index) for index, (variable, cuts) in captured]

    def refuse(self, refused: dict[int, Any], place: str) -> None:
        """Keep whole the variables that ops take whole. Collective.

        Args:
            refused: these ops, by the numbers in the placements of the variables' handles.
            place: names the step in messages.
        """
        for number in sorted(refused):
            variable: Any = self._captured[number]
            variable.make_whole()
            variable.is_refused, self._captured[number] = True, None
            events.pieces_refused([variable], f"{refused[number].type} takes '{variable.name}' whole in {place}")

    def find_handles(self, captured: Iterable[Any]) -> list[Any]:
        """The tensors that a copy of the step captures in place of the tensors that its trace captures."""
        return [
            tensor if variable is None else variable.piece.handle for tensor, variable in zip(captured, self._captured)
        ]

    def prepare(self) -> None:
        """Bring the variables to the form that the step takes, before a call. Collective if they are in pieces and the
        step takes them whole.
        """
        variables = self._whole or self.list_variables()
        if not variables:
            return
        if self._count_whole is None:
            self._count_whole = _make_count([variable.handle for variable in variables])
        if self._count_whole().numpy() != len(self._whole):
            for variable in variables:
                variable.make_whole() if self._whole else variable.take_apart()


def _make_count(handles: Sequence[Any]) -> Any:
    """A function that counts the handles whose resources exist: those of variables that are whole."""

    def count() -> Any:
        exist = [tf.raw_ops.VarIsInitializedOp(resource=handle) for handle in handles]
        return tf.math.count_nonzero(tf.stack(exist))

    return tf.function(count, autograph=False).get_concrete_function()
