"""Times the first calls of a training step to choose the fastest way to run it, where settings are `auto`.

MATEX_OVERLAP=auto chooses between two kinds of updates: an overlapped update sums gradients while later gradients are
computed, an inline update sums all gradients at the end. MATEX_STRATEGY=auto chooses between two forms of an
optimizer's variables: in pieces, one on each rank (`sharded`), or whole on every rank (`allreduce`). A `Way` is a kind
of updates and a form of variables. All ways give the same bits. Each training step has a `Trial`, which listens to the
events of its calls.

A trial has up to three parts. Each part times one way, with `IGNORED` and then `TIMED` calls that update weights:

1. The usual way: on one host inline updates, on several hosts overlapped updates, with variables in pieces if the step
   has such variables. If sums take less than `LEAST_SHARE` of a call, the trial ends here.
2. If variables are in pieces: the same updates with whole variables. The faster way decides the strategy.
3. The faster way so far, with the other kind of updates.

A machine that is busy for some seconds may make one way seem slow. So another way that seems faster than the best one
replaces it only if it still does after the best one was timed again.

Parts 2 and 3 need further copies of the step. The slowest rank gives the time of a way, so all ranks choose alike.
Two attributes of a `PieceVariable` keep the decision, because steps share variables. `is_settled`: a trial has chosen
the form, so later trials keep it. `is_refused`: the variable stays whole, by a trial or because a step takes it whole.
"""

from __future__ import annotations

import functools
import os
import time
from statistics import median
from typing import Any, NamedTuple

from matex_tf import memory, ops, settings, tags
from matex_tf.ops import overlap
from matex_tf.rewrite.graph_ops import has_sequence, iterate_nodes
from matex_tf.runtime import notes, objects
from matex_tf.steps import events, pieces, report
from matex_tf.world import world

TIMED = 8
"""Number of timed calls for each way. Only calls with an update count."""
IGNORED = {False: 3, True: 16}
"""Number of calls before the timed ones, by `is_overlapped`. The first calls allocate memory and wake up threads; the
overlapped way chooses its buckets, the groups of gradients that are sent together, after the 13th update."""
LEAST_BYTES = 1 << 20
"""Steps that sum fewer bytes have no trial."""
LEAST_SHARE = 0.1
"""No other way is tried if sums that no computation hides take a smaller fraction of a call."""
GAIN = 0.95
"""Another way replaces the best one only if its call takes less than this fraction of the best time."""

_CORES = os.cpu_count() or 1
_is_strategy_reported = False  # only the first step reports the strategy, except with MATEX_EXPLAIN

TRIAL = "trial of ways"
"""The tag under which a plan has its `Trial`."""


class Way(NamedTuple):
    """A way to run a step, one of four."""

    in_pieces: bool  # the optimizer's variables are in pieces
    is_overlapped: bool  # updates overlap computation


def start_trials() -> None:
    """Add the listeners of trials if a setting is `auto`."""
    if may_overlap() or pieces.is_left_open:
        events.step_begins.add_listener(_begin_call)
        events.step_ended.add_listener(_end_call)


def may_overlap(in_pieces: bool = False) -> bool:
    """Whether trials may choose overlapped updates: the setting is `auto`, and they can be faster."""
    if settings.get_settings().overlap != "auto" or not world.is_active():
        return False
    own_world = world.get_world()
    if in_pieces and not own_world.has_several_nodes:
        return False  # inline updates sum a piece on each rank, overlapped ones the whole gradient
    # Overlapped sums need a further thread on each rank. With fewer cores than ranks no core is free for it; on several
    # hosts the thread mostly waits for the network.
    return (own_world.has_several_nodes or own_world.local_size <= _CORES) and world.has_threads()


def _begin_call(plan: Any) -> None:
    if plan.trained:  # the weights that the step changes
        tags.get_or_make_tag(plan, TRIAL, lambda: Trial(plan)).begin_call()


def _end_call(plan: Any) -> None:
    trial = tags.get_tag(plan, TRIAL)
    if trial is not None:
        trial.end_call(plan)


class Trial:
    """The trial of one step."""

    def __init__(self, plan: Any) -> None:
        self._variables = plan.copies.pieces.list_variables()  # the optimizer's variables in pieces (`PieceVariable`)
        self.way = Way(bool(self._variables), overlap.is_usual())  # the way of the next call
        self._best = self.way  # the best of the timed ways
        self._candidate: Way | None = None  # seems faster than the best way, which is timed again
        self._seconds: dict[Way, float] = {}  # the least time of a call, by timed way
        self._reason = ""  # why the trial ends after part 1; empty if it goes on
        self._holdings = {
            self.way.in_pieces: plan.copies.pieces
        }  # the `pieces.StepPieces` of the variables, by `in_pieces`
        trace_other_way = functools.partial(overlap.trace_as, not self.way.is_overlapped)
        self.kinds = {  # the `CopyKind` of the step's copies, by `is_overlapped`
            self.way.is_overlapped: plan.copies.kind,
            not self.way.is_overlapped: plan.copies.kind._replace(make_within=trace_other_way),
        }
        update_bytes = 0 if plan.program is None else report.count_summed_bytes(plan.program) or 0
        has_choice = self._is_strategy_open() or may_overlap(self.way.in_pieces)
        self.is_over = update_bytes < LEAST_BYTES or not has_choice
        self._begin_timing()

    def _is_strategy_open(self) -> bool:
        """Whether the form of any variable of the step, in pieces or whole, is still to be chosen."""
        is_decided = all(variable.is_refused or variable.is_settled for variable in self._variables)
        return pieces.is_left_open and not is_decided

    def _begin_timing(self) -> None:
        """Forget the calls of the last way."""
        self._calls = 0
        self._call_seconds, self._sum_seconds = list[float](), list[float]()

    def _read_clocks(self) -> tuple[float, float, int]:
        """The time (perf_counter), and the seconds and the number of all sums of gradients so far."""
        count = ops.count_updates()
        return time.perf_counter(), ops.get_collective_seconds(ops.Kind.GRADIENTS), count

    def begin_call(self) -> None:
        if not self.is_over:
            self._begin, self._sums_before, self._updates_before = self._read_clocks()

    def end_call(self, plan: Any) -> None:
        if self.is_over:
            return
        now, sum_seconds, update_count = self._read_clocks()
        if update_count == self._updates_before:
            return  # a call without an update
        self._calls += 1
        is_new = self.way not in self._seconds  # ways that were timed before have chosen their buckets
        if self._calls > IGNORED[self.way.is_overlapped and is_new]:
            self._call_seconds.append(now - self._begin)
            self._sum_seconds.append(sum_seconds - self._sums_before)
        if len(self._call_seconds) == TIMED:
            self._end_part(plan)

    def _end_part(self, plan: Any) -> None:
        """Record the time of the current way, then begin the next part or end the trial. Collective."""
        self._record_time(plan)
        if self._begin_again(plan) or self._begin_whole(plan) or self._begin_other_updates(plan):
            return
        self.is_over = True
        if self.way != self._best:
            self._switch_to(plan, self._best)

    def _record_time(self, plan: Any) -> None:
        """Record the time of the current way. Collective."""
        own_seconds = median(self._call_seconds), median(self._sum_seconds)
        seconds_of_ranks = objects.allgather(own_seconds, "how long steps take")
        seconds = max(call for call, _ in seconds_of_ranks)
        self._seconds[self.way] = min(seconds, self._seconds.get(self.way, seconds))
        if len(self._seconds) == 1:  # the end of part 1
            self._reason = self._find_reason(plan, seconds, [sums for _, sums in seconds_of_ranks])

    def _begin_again(self, plan: Any) -> bool:
        """Begin to time the best way again if the current way seems faster; after that, find the best way.

        Returns whether it has begun.
        """
        if self.way != self._best and self._seconds[self.way] < GAIN * self._seconds[self._best]:
            self._candidate = self.way
            self._switch_to(plan, self._best)
            return True
        if self._candidate is not None:
            if self._seconds[self._candidate] < GAIN * self._seconds[self._best]:
                self._best = self._candidate
            self._candidate = None
        if not self._is_strategy_open() and any(not variable.is_refused for variable in self._variables):
            self._best = self._best._replace(in_pieces=True)  # the trial of another step has chosen pieces
        return False

    def _begin_whole(self, plan: Any) -> bool:
        """Begin part 2 if it is to come, or settle the strategy after it. Returns whether it has begun. Collective."""
        if not self._is_strategy_open():
            return False
        whole_way = self._best._replace(in_pieces=False)
        if not self._reason and whole_way not in self._seconds and self._has_memory_for_whole():
            self._switch_to(plan, whole_way)
            return True
        self._settle_strategy()
        return False

    def _begin_other_updates(self, plan: Any) -> bool:
        """Begin part 3 if it is to come. Returns whether it has begun; if not, the current way may not be the best."""
        other_way = self._best._replace(is_overlapped=not self._best.is_overlapped)
        if self._reason or other_way in self._seconds or not may_overlap(self._best.in_pieces):
            return False
        # Without overlapped ops in either copy, as under XLA, the two ways are the same.
        copies = [self._make_copy(plan, self._best), self._make_copy(plan, other_way)]
        if not any(node.op in overlap.OP_TYPES for copy in copies for node in iterate_nodes(copy.graph)):
            return False
        self._switch_to(plan, other_way)
        return True

    def _find_reason(self, plan: Any, seconds: float, sums: list[float]) -> str:
        """Why the trial ends after part 1; empty if it goes on.

        seconds: the time of a call.
        sums: the time of the sums of a call, on each rank.
        """
        # The last rank that comes to a sum waits for no other rank, so its time is the shortest.
        if min(sums) < LEAST_SHARE * seconds:
            return f"sums take {min(sums) / seconds:.0%} of a step, so that no other way is tried"
        if has_sequence(plan.traced.graph):
            return "another copy of the step would begin its random numbers again, so that no other way is tried"
        return ""

    def _has_memory_for_whole(self) -> bool:
        """Whether every rank has memory for the whole variables. Collective."""
        needed_bytes = sum(variable.shape.num_elements() * variable.dtype.size for variable in self._variables)
        free_bytes = memory.measure_free(world.get_world().local_size)
        return min(objects.allgather(free_bytes, "memory for an optimizer's variables")) > memory.MARGIN * needed_bytes

    def _settle_strategy(self) -> None:
        """Settle the form that all variables have in the best way, and report it. Collective if they become whole."""
        in_pieces = self._best.in_pieces
        for variable in self._variables:
            variable.is_settled = True
            if not in_pieces:
                variable.make_whole()
                variable.is_refused = True
        strategy_names = {way: "sharded" if way.in_pieces else "allreduce" for way in self._seconds}
        milliseconds = {strategy_names[way]: 1e3 * seconds for way, seconds in self._seconds.items()}
        strategy, other_strategy = ("sharded", "allreduce") if in_pieces else ("allreduce", "sharded")
        reason = self._reason or "the whole variables of the optimizer do not fit in every rank's memory"
        if other_strategy in milliseconds:
            reason = (
                f"a step takes {milliseconds[strategy]:.1f} ms, and with {other_strategy} "
                f"{milliseconds[other_strategy]:.1f} ms"
            )
        global _is_strategy_reported
        if not _is_strategy_reported or settings.get_settings().explain:
            _is_strategy_reported = True
            notes.print_note(f"MATEX_STRATEGY=auto: {strategy}: {reason}")

    def _make_copy(self, plan: Any, way: Way) -> Any:
        """The copy of the step for `way`, which the next calls then use."""
        self._use(plan, way)
        return plan.copies.find()

    def _switch_to(self, plan: Any, way: Way) -> None:
        self._use(plan, way)
        self._begin_timing()

    def _use(self, plan: Any, way: Way) -> None:
        """Let the next calls of the step run `way`."""
        if way.in_pieces not in self._holdings:
            self._holdings[way.in_pieces] = pieces.StepPieces(plan.traced.graph, takes_whole=True)
        self.way = way
        plan.copies.kind, plan.copies.pieces = self.kinds[way.is_overlapped], self._holdings[way.in_pieces]
