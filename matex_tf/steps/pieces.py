"""Finds the variables that ranks hold in pieces, and brings them to the form, pieces or whole, that a step takes.

With `MATEX_STRATEGY=sharded`, and in trials of `auto`, each rank stores a piece of each large optimizer variable, a
`PieceVariable` (`piece_variables`). The step of each plan uses them by `StepPieces`. Code that may read such a variable
on one rank alone needs whole variables.

The *cuts* of a variable are the index of the first entry of each rank's piece, and the end of the last piece. They may
be empty until ranks have chosen them. A variable that is *refused* stays whole for good.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from matex_tf import tags
from matex_tf.lazy import tf
from matex_tf.own_functions import trace_own
from matex_tf.rewrite.placement import PieceHandle, Placement
from matex_tf.runtime import objects
from matex_tf.steps import capture, events, whole_code
from matex_tf.thread_flag import is_main_thread

_VARIABLE = "variable in pieces"
# Reasons to keep all variables whole (`servers.pieces.owners`):
THREADED = "the script has a thread of its own, which may read an optimizer's variables by itself"
ASKED = "the script asks for its rank, and may read an optimizer's variables on one rank alone"

is_left_open = False
"""Whether ranks choose between variables in pieces and whole ones by trial. `servers.pieces` sets it: with `auto`."""

_variables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by their numbers
_are_made = False  # there may be variables in pieces: one was created, and `keep_all_whole` was not called since


def note_variable(variable: Any) -> None:
    global _are_made
    _are_made = True
    _variables[variable.number] = variable
    tags.set_tag(variable.handle, _VARIABLE, weakref.ref(variable))


def list_variables() -> list[Any]:
    """The existing `PieceVariable`s of this rank, in the order of their creation."""
    return [variable for _, variable in sorted(_variables.items())]


def forget_variable(number: int) -> None:
    """List a `PieceVariable` no longer: no code of the script can use it, and Python has not yet collected it here."""
    _variables.pop(number, None)


def find_variables(graph: Any) -> dict[int, Any]:
    """The `PieceVariable`s whose handles a graph captures, by the indices of the captured tensors."""
    indexed_variables = enumerate(
        tags.get_tag(outer_tensor, _VARIABLE, lambda: None)() for outer_tensor, _ in graph.captures
    )
    return {index: variable for index, variable in indexed_variables if variable is not None}


def make_all_whole() -> None:
    """Make all variables whole that are in pieces, such as before rank 0 saves a model. Collective; eager.

    Ranks collect garbage at different times: only variables that exist on all ranks are gathered.
    """
    if _are_made:
        own_variables = {variable.number: variable for variable in list_variables() if variable.is_in_pieces()}
        numbers_of_ranks = objects.allgather(sorted(own_variables), "which variables are in pieces")
        for number in sorted(set(numbers_of_ranks[0]).intersection(*numbers_of_ranks)):
            own_variables[number].make_whole()


def keep_all_whole() -> None:
    """Make all variables whole that are in pieces, for good. Collective; eager.

    Then a rank may read them by itself. The caller creates no more `PieceVariable`s.
    """
    global _are_made
    make_all_whole()
    for variable in list_variables():
        variable.is_refused = True
    _are_made = False


def prepare_whole_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> None:
    """Before every rank calls a function by itself: make whole its variables. Collective if some are in pieces.

    why: the reason why the call is not shared; told if the function changes such variables.
    """
    if not _are_made:
        return
    graph = capture.find_trace(function, args, kwargs).graph
    used_variables = find_variables(graph)
    for variable in used_variables.values():
        variable.make_whole()
    handles = {id(inner_handle) for index, (_, inner_handle) in enumerate(graph.captures) if index in used_variables}
    if is_main_thread() and any(id(handle) in handles for handle in whole_code.list_written(graph)):
        events.pieces_refused(list(used_variables.values()), why)


def list_stored(variables: Iterable[Any]) -> list[Any]:
    """The TensorFlow variables that a shared step changes when it changes `variables`: for one in pieces, its piece."""
    return [
        variable.piece if getattr(variable, "cuts", ()) and not variable.is_refused else variable
        for variable in variables
    ]


class StepPieces:
    """The `PieceVariable`s that a step uses, by their indices among the tensors that its trace captures.

    _in_pieces: the variables that the step takes in pieces.
    _cuts: the cuts of these variables when the step was planned.
    _whole: the variables that the step takes whole, in trials (`takes_whole`): then `_in_pieces` is empty.
    _count_whole: a function that counts the variables of the step that are whole now; made at the first call.
    """

    def __init__(self, graph: Any, takes_whole: bool = False):
        """takes_whole: the step takes the variables whole, and makes them whole before each call."""
        used_variables = {
            index: variable for index, variable in find_variables(graph).items() if not variable.is_refused
        }
        if used_variables:
            events.cuts_wanted(list(used_variables.values()))
        # A variable that still has no cuts stays whole on every rank.
        cut_variables = {index: variable for index, variable in used_variables.items() if variable.cuts}
        self._in_pieces = {} if takes_whole else cut_variables
        self._whole = list(cut_variables.values()) if takes_whole else []
        self._cuts = {index: variable.cuts for index, variable in self._in_pieces.items()}
        self._count_whole: Any = None

    def list_variables(self) -> list[Any]:
        """The variables that the step takes in pieces."""
        return list(self._in_pieces.values())

    @property
    def is_valid(self) -> bool:
        """Whether the step's variables still have the same cuts, and none was refused meanwhile."""
        return all(
            variable.cuts == self._cuts[index] and not variable.is_refused
            for index, variable in self._in_pieces.items()
        )

    def place(self) -> dict[int, Placement]:
        """The placements of the handles of variables in pieces, by the indices of the captured tensors."""
        return {index: PieceHandle(self._cuts[index], index) for index in self._in_pieces}

    def refuse(self, refused: dict[int, Any], place: str) -> None:
        """Keep whole, for good, the variables that ops take whole. Collective.

        refused: these ops, by the indices of the variables (`PieceHandle.variable`).
        place: names the step in messages.
        """
        for index in sorted(refused):
            variable = self._in_pieces.pop(index)
            variable.make_whole()
            variable.is_refused = True
            events.pieces_refused([variable], f"{refused[index].type} takes '{variable.name}' whole in {place}")

    def find_handles(self, captured: Iterable[Any]) -> list[Any]:
        """The tensors that a copy of the step captures in place of the tensors that its trace captures."""
        handles = {index: variable.piece.handle for index, variable in self._in_pieces.items()}
        return [handles.get(index, tensor) for index, tensor in enumerate(captured)]

    def prepare(self) -> None:
        """Bring the variables to the form that a step takes, before a call. Collective if they become whole."""
        variables = self._whole or self.list_variables()
        if not variables:
            return
        if self._count_whole is None:
            # The resource of a handle exists only while its variable is whole.
            handles = [variable.handle for variable in variables]
            self._count_whole = trace_own(
                lambda: tf.math.count_nonzero(
                    tf.stack([tf.raw_ops.VarIsInitializedOp(resource=one) for one in handles])
                )
            )
        # One op for all variables: nearly always they have the form already. All must be whole if the step takes whole
        # variables; none if it takes pieces, for which `_whole` is empty.
        if self._count_whole().numpy() == len(self._whole):
            return
        for variable in variables:
            if self._whole:
                variable.make_whole()
            else:
                variable.split()
