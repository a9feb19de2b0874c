"""Runs of sessions of `tf.compat.v1`: the plan of each set of fetches and feeds, and the run by it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matex_tf import ops, tags
from matex_tf.loops import explain
from matex_tf.rewrite import sources
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.parts import Part, list_needed
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.propagate import Program, read_program
from matex_tf.rewrite.rules.randoms import has_no_seed
from matex_tf.sharding import fingerprint
from matex_tf.steps import session_graphs, shares, worth
from matex_tf.steps.agreement import agree_on_plan
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.steps.plan import NO_BATCH, NO_WORK
from matex_tf.steps.session_variables import SessionVariables, is_inside
from matex_tf.v1 import cond_turns
from matex_tf.world import world

PLACE = "a run of a session"
_PLANS = "plans of runs"
_lock = threading.RLock()
_variables: weakref.WeakKeyDictionary[Any, SessionVariables] = weakref.WeakKeyDictionary()


def run_session(
    session: Any,
    operations: Sequence[Any],
    tensors: Sequence[Any],
    feeds: Mapping[Any, Any],
    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
) -> list[Any]:
    """The values of `tensors` after a run of a session, computed by all ranks where they can. Collective there.

    Args:
        operations: those that run besides.
        feeds: arrays, by references to the tensors that they are fed to.
        run: runs other operations and gives the values of other tensors, with the same feeds.
    """
    if is_inside or not world.is_active():
        return run(operations, tensors)
    given = {reference.deref(): value for reference, value in feeds.items()}
    rows = _find_rows(given)
    names = [[one.name for one in some] for some in (operations, tensors, rows)]
    key = (*map(tuple, names), frozenset(one.name for one in given))
    with _lock:
        plans = tags.get_or_make_tag(session.graph, _PLANS, dict)
        if key not in plans:
            plans[key] = SessionPlan(session.graph, operations, tensors, list(given), rows)
        plan = plans[key]
        held = _variables.setdefault(session, SessionVariables(session))
    return plan.run(held, [given[one] for one in rows], run)


def _find_rows(feeds: Mapping[Any, Any]) -> list[Any]:
    """The tensors that are fed the most common number of rows, of those that take any number; it is 2 or more."""
    counts = {one: len(value) for one, value in feeds.items() if sources.has_open_rows(one.shape)}
    known = [count for count in counts.values() if count > 1]
    most = max(known, key=known.count) if known else 0
    return [one for one, count in counts.items() if count == most]


class SessionPlan:
    """How runs that ask for the same, and are fed alike, are computed.

    why_whole: why every rank computes the runs whole; empty where ranks share them.
    """

    def __init__(
        self,
        graph: Any,
        operations: Sequence[Any],
        tensors: Sequence[Any],
        given: Sequence[Any],
        rows: Sequence[Any],
    ):
        """Plan the runs. Collective where they have work that can be shared: all ranks come to the same plan."""
        self.graph, self.operations, self.tensors = graph, list(operations), list(tensors)
        self.needed = list_needed(graph, {one.name for one in given}, tensors, operations)
        self.has_feeds = bool(given)
        self.rows = list(rows)
        self.program: Program | None = None
        self.part = Part(graph, given, rows or self._list_batch(), tensors, operations, self._list_apart())
        self.turns: list[int] = []
        self.why_whole = self._find_obstacle()
        if self.why_whole not in (NO_BATCH, NO_WORK):
            if not self.why_whole:
                try:
                    self._build()
                except Exception as error:  # of any op: the script's own fetches are always right
                    self.why_whole = f"its copy cannot be made ({type(error).__name__}: {error})"
            self.why_whole = agree_on_plan(self.part.copied, self.why_whole, PLACE)
            if self.why_whole:
                explain.say_whole(self.why_whole, PLACE)
            else:
                explain.say_shared(PLACE)
        if self.why_whole:
            self.operations, self.tensors = [*operations, *self._order_collectives()], list(tensors)

    def _list_batch(self) -> list[Any]:
        """The tensors with rows that the first iterator gives, where none are fed."""
        for op in self.needed:
            found = [one for one in op.outputs if sources.has_open_rows(one.shape)] if op.type in sources.SOURCES else []
            if found:
                return found
        return []

    def _list_apart(self) -> list[Any]:
        """The ops that draw other numbers on each rank."""
        return [op for op in self.needed if has_no_seed(op)]

    def _list_collectives(self) -> list[Any]:
        return [op for op in self.needed if op.type in ops.OP_TYPES]

    def _find_obstacle(self) -> str:
        part = self.part
        count = sum(one.is_split for one in part.inputs_kinds)
        return ""

    def run(self, variables: SessionVariables, rows: list[Any], run: Callable[..., list[Any]]) -> list[Any]:
        return []
