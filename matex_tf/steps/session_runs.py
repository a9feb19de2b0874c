"""Runs of sessions of `tf.compat.v1`: a plan for each set of fetches and feeds.

The hook of `Session.run` calls `run_session`. The batch is what the script feeds to placeholders with an open first
dimension, such as an array of 32 rows; without such feeds, it is the batch of an iterator. If ranks can share the run,
the plan adds a copy of the ops that depend on these rows to the script's graph, and runs fetch the tensors of the copy:
with 2 ranks, rank 0 computes rows 0-15. Otherwise every rank runs the script's own fetches, or a copy for all rows if
it draws random numbers that other runs continue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from matex_tf import ops, tags
from matex_tf.lazy import tf
from matex_tf.rewrite import own_batches, sources
from matex_tf.rewrite.graph_ops import iterate_nodes
from matex_tf.rewrite.placement import BATCH, WHOLE
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.rewrite.rules.randoms import has_no_seed, is_seeded
from matex_tf.rewrite.subgraphs import SessionSubgraph, list_needed
from matex_tf.runtime import notes, real_files
from matex_tf.steps import capture, cond_turns, events, failures, gradients, report, session_graphs, slices
from matex_tf.steps.agreement import COMPUTED_PATHS, agree_on_plan
from matex_tf.steps.batches import WholeBatch
from matex_tf.steps.exchanger import RankExchanger
from matex_tf.steps.plan import NO_WORK, StepPlan
from matex_tf.steps.session_graphs import SessionCopy
from matex_tf.steps.session_variables import SessionVariables, is_inside, list_changed, list_trained, list_variables
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import world

PLACE = "a run of a session"
NO_BATCH = "it takes no batch of two rows or more from a placeholder or an iterator of an open first dimension (None)"
Run = Callable[..., list[Any]]
_PLANS, _VARIABLES = "plans of runs", "known state of variables"
_lock = threading.RLock()  # threads may run a session at once, and plans change its graph
feeds_shares = ThreadFlag()
"""Whether the run in this thread is fed this rank's own rows. The hook of `Session.run` sets it."""


def run_session(
    session: Any, operations: Sequence[Any], tensors: Sequence[Any], feeds: Mapping[Any, Any], run: Run
) -> list[Any]:
    """The values of `tensors` after a run of a session. Collective if ranks share the run.

    operations: the fetches without values.
    feeds: arrays, by references to the tensors that they are fed to.
    run: runs other operations and returns the values of other tensors, with the same feeds and further feeds.
    """
    if is_inside or not world.is_active():
        return run(operations, tensors)
    arrays = {reference.deref(): array for reference, array in feeds.items()}
    open_tensors = [tensor for tensor in arrays if sources.has_open_rows(tensor.shape)]
    batch = open_tensors if feeds_shares else _find_fed_batch({tensor: arrays[tensor] for tensor in open_tensors})
    names = [tuple(item.name for item in group) for group in (operations, tensors, batch)]
    key = (*names, frozenset(tensor.name for tensor in arrays), bool(feeds_shares))
    with _lock:
        plans = tags.get_or_make_tag(session.graph, _PLANS, dict)
        if key not in plans:
            plans[key] = SessionPlan(session.graph, operations, tensors, list(arrays), batch, bool(feeds_shares))
        plan = plans[key]
        variables = tags.get_or_make_tag(session, _VARIABLES, SessionVariables)
    values = plan.run(session, variables, [arrays[tensor] for tensor in batch], run)
    if plan.trained:
        events.step_trained(None)
    return values


def _find_fed_batch(feeds: Mapping[Any, Any]) -> list[Any]:
    """The tensors that are fed the most common number of rows above 1; none without such a number."""
    counts = {tensor: len(array) for tensor, array in feeds.items()}
    rows = sources.choose_rows(counts.values())
    return [tensor for tensor, count in counts.items() if rows and count == rows]


def _find_iterator_batch(needed: Sequence[Any]) -> list[Any]:
    """The tensors with rows that the first iterator gives; none without an iterator of such tensors."""
    takers = [op for op in needed if op.type in sources.SOURCES]
    tensors_with_rows = ([tensor for tensor in op.outputs if sources.has_open_rows(tensor.shape)] for op in takers)
    return next(filter(None, tensors_with_rows), [])


class SessionPlan(StepPlan):
    """How runs with the same fetches, and feeds of the same tensors, are computed.

    Every run:
        operations, tensors: the fetches of a run: of the copy if ranks share the runs, else of the script.
        part: the ops that a run needs.
        variables: the variable ops among these.
        changed: the names of variables that a run may leave different on the ranks.
        trained: the names of the weights that a run trains.
        has_collectives: the script runs collectives, also in functions of its ops.
        starts: the operations that start sequences of random numbers (`SessionCopy`).
        counters: the variable ops of the positions in these sequences.
    Runs that ranks share:
        sliced_count: the number of tensors that ranks slice, the first inputs of `part`.
        own_row_count: a placeholder for the number of this rank's own rows; None without `has_own_rows`.
    Runs with collectives of the script, which is written for ranks:
        turns: the numbers of these collectives, by which they are ordered (`cond_turns`).
    """

    def __init__(
        self, graph: Any, operations: Sequence[Any], tensors: Sequence[Any], fed_tensors: Any, batch: Any, are_own: bool
    ):
        """Plan the runs. Collective if they have work that can be shared: all ranks make the same plan.

        operations, tensors: the fetches of the script.
        fed_tensors: a list of the tensors that are fed.
        batch: a list of the tensors among these whose rows ranks divide.

        Raises UnsupportedError on every rank if each rank has its own rows and they cannot be combined.
        """
        super().__init__(graph, PLACE, f"the arrays fed to {PLACE}")
        self.operations, self.tensors = list(operations), list(tensors)
        self.has_own_rows, self.lone_reasons = are_own, () if are_own else (NO_BATCH, NO_WORK)
        self.turns: list[int] = []
        self.starts: dict[str, Any] = {}
        self.counters: list[Any] = []
        self.own_row_count: Any = None
        needed = list_needed(graph, {tensor.name for tensor in fed_tensors}, tensors, operations)
        batch = batch or ([] if are_own else _find_iterator_batch(needed))
        self.sliced_count = len(batch)
        # Ops that depend on rows are copied; the others are reused, which means that the script's own op runs
        # (`subgraphs`). Random ops without a seed are copied, too: reused, they would give each rank other numbers. A
        # random op with a seed continues a sequence of numbers. If its copy cannot (not `is_counted`), it is reused.
        tensors_with_rows = batch or [tensor for tensor in fed_tensors if sources.has_open_rows(tensor.shape)]
        reused_randoms = [op for op in needed if is_seeded(op) and not session_graphs.is_counted(op) and not are_own]
        self.part = SessionSubgraph(
            needed, fed_tensors, tensors_with_rows, tensors, operations, filter(has_no_seed, needed), reused_randoms
        )
        self.variables = list_variables(needed)
        self.changed, self.trained = list_changed(needed, bool(fed_tensors)), list_trained(graph, needed)
        self.has_collectives = any(node.op in ops.OP_TYPES for node in iterate_nodes(graph, needed))
        self.decide()
        if self.why_whole and self.has_collectives:
            # The added operations complete the turns of collectives in branches that are not taken.
            added_operations, self.turns = cond_turns.order_collectives(graph, needed)
            self.operations += added_operations

    def find_obstacle(self) -> str:
        if not self.list_divided():
            return NO_BATCH
        if self.has_collectives:
            return "it has collectives of its own"
        loop = self.part.find_loop()
        if loop is not None:
            return f"rows go through a loop of tf.compat.v1 (op '{loop.name}')"
        return ""

    def list_divided(self) -> list[Any]:
        return self.part.inputs[: self.sliced_count]

    def read_graph(self) -> Program:
        return self._read(self.sliced_count)

    def _read(self, sliced_count: int) -> Program:
        """The placements if ranks slice so many tensors."""
        from tensorflow.python.eager import context

        placements = [BATCH] * sliced_count + [WHOLE] * (len(self.part.inputs) - sliced_count)
        with session_graphs.use_v2_behavior(), context.eager_mode():  # reading computes constant values
            return read_program(self.part, placements, takes_batches=False, reused=self.part.reused)

    def make_copy(self) -> None:
        assert self.program is not None
        self._copied_fetches = self._build(self.program, self.sliced_count)

    def compare(self) -> str:
        nodes = [op.node_def for op in self.part.needed]
        if not self.why_whole and any(map(real_files.finds_files, nodes)):
            self.why_whole = COMPUTED_PATHS
        digest = capture.digest_nodes(nodes, {}, for_ranks=True)
        return agree_on_plan(digest, self.why_whole, PLACE)

    def explain(self) -> None:
        super().explain()
        if not self.why_whole:
            self.operations, self.tensors = self._copied_fetches  # of a copy that all ranks have
            events.unmeasured(PLACE)

    def refuse_own_rows(self) -> str:
        return (
            f"{PLACE} was fed rows of one rank alone (of a reader, or of matex_tf.shard), but every rank would compute "
            f"it by itself: {self.why_whole}. Feed such a run arrays that all ranks have whole."
        )

    def leave_whole(self, why: str) -> None:  # a script may make such a run on some ranks only
        if self.trained:
            report.say_whole(PLACE, why, is_usual=False)
        # Random numbers that shared runs draw in copies: this run must continue their sequences in a copy for all rows.
        copied = self.part.copied
        draws = any(map(session_graphs.is_counted, copied)) and not any(map(has_no_seed, copied))
        if not draws or self.part.find_loop() is not None or self.has_collectives:
            return  # with such ops, the script's own ops draw in runs of more rows, too
        try:
            self.operations, self.tensors = self._build(self._read(0), 0)
        except Exception as error:  # an error in any op: the script's own fetches remain
            notes.print_note(
                f"{PLACE} draws other random numbers than the script alone, because its copy cannot be made "
                f"({type(error).__name__}: {error})"
            )

    def _build(self, program: Program, count: int) -> tuple[list[Any], list[Any]]:
        """The fetches of a copy in the same graph that replace the script's. Ranks slice the first `count` inputs."""
        part = self.part
        with session_graphs.add_to(self.graph):
            exchanger = RankExchanger(PLACE, SessionCopy.is_ordered, gradients.are_checked(program))
            copy = SessionCopy(self.graph, slices.make_empty_slice(), exchanger, slices.make_checked_slice)
            if count:
                events.copy_begins(self, copy)
            if self.has_own_rows:
                self.own_row_count = tf.compat.v1.placeholder(tf.int64, [])
                own_tensors = [tensor[: self.own_row_count] for tensor in part.inputs[:count]]
                own_rows = slices.make_own_slice(exchanger, own_tensors, tf.constant(True))
                copy.batch_slice = own_rows.batch_slice
                inputs = own_batches.fill_rows(own_tensors, own_rows) + part.inputs[count:]
            else:
                are_rows = [index < count for index in range(len(part.inputs))]
                inputs = sources.take_rows(copy, list(part.inputs), are_rows)
            outputs, effects = copy.build_apart(program, inputs)
        self.starts, self.counters = copy.starts, copy.counters
        copied_outputs = {tensor.name: output for tensor, output in zip(part.outputs, outputs)}
        reused_operations = [op for op in self.operations if op in part.reused]
        return reused_operations + effects, [copied_outputs.get(tensor.name, tensor) for tensor in self.tensors]

    def run(self, session: Any, variables: SessionVariables, rows: Sequence[Any], run: Run) -> list[Any]:
        """The results of the script's run. Collective, if ranks share it.

        variables: the known state of the session's variables.
        rows: the arrays with rows, if any are fed.
        run: see `run_session`.
        """
        if self.why_whole:
            variables.start(session, self.starts)
            # A script may make this run on some ranks only, so the counters of its random numbers may differ, too.
            variables.forget([*self.changed, *(op.name for op in self.counters)])
            return self._run_in_turns(run)
        self.require_ranks()
        variables.start(session, self.starts)
        variables.agree(session, [*self.variables, *self.counters])
        batch = None if self.has_own_rows else WholeBatch(rows, [True] * len(rows))
        further_feeds = {} if self.own_row_count is None else {self.own_row_count: np.int64(len(rows[0]))}
        try:
            with self.batches.compare_batches((), batch), failures.fail_together(PLACE):
                return run(self.operations, self.tensors, further_feeds)
        except tf.errors.OpError:  # some ranks may have assigned variables that others have not
            variables.forget(op.name for op in (*self.variables, *self.counters))
            raise

    def _run_in_turns(self, run: Run) -> list[Any]:
        """Run the script's fetches with the script's own collectives in the order of their creation."""
        if len(self.turns) < 2:
            return run(self.operations, self.tensors)
        ops.announce_turns(self.turns)
        try:
            return run(self.operations, self.tensors)
        finally:
            ops.announce_turns([])
