"""The plan of a step: whether ranks share its calls.

Each of the three kinds of steps has a subclass of `StepPlan`, which says how the kind reads its graph, and makes its
copies. What ranks decide, in which order, is in `StepPlan.decide` alone.
"""

from __future__ import annotations

import abc
from typing import Any

from matex_tf import errors
from matex_tf.rewrite.own_batches import OwnRowsError
from matex_tf.rewrite.programs import Program
from matex_tf.runtime import excepthook
from matex_tf.steps import agreement, own_data, report
from matex_tf.steps.batch_watch import BatchWatch
from matex_tf.world import world

NO_BATCH = "it takes no batch of two rows or more"
DEFERRED = "it takes values that are known only when it is called"
NO_WORK = "it has no work that grows with the rows of its batch"


class StepPlan(abc.ABC):
    """How the calls of one step are computed.

    place: names the step in messages.
    graph: the script's graph of the step.
    ranks: the number of ranks when the plan was made.
    batches: compares the batches of calls between ranks.
    has_own_rows: each rank gives the step its own rows. Then no copy is an error.
    program: the placements; None if they could not be found.
    why_whole: the reason why every rank computes the calls whole; empty if ranks share them. Also the reason of another
        rank, since all must have a copy.
    lone_reasons: a rank with one of these reasons does not meet the other ranks: sharing would gain nothing, and all
        ranks find the same reason.
    """

    has_own_rows = False
    lone_reasons: tuple[str, ...] = (NO_BATCH, NO_WORK)

    def __init__(self, graph: Any, place: str, batch_name: str = ""):
        """batch_name: names the batch in messages."""
        self.graph, self.place, self.ranks = graph, place, world.get_world().size
        self.batches = BatchWatch(batch_name or f"a batch of {place}")
        self.program: Program | None = None
        self.why_whole = ""

    def decide(self) -> None:
        """Decide whether ranks share the calls, and tell the user. Collective, except with `lone_reasons`.

        Raises UnsupportedError or MismatchError on every rank if the ranks' own rows cannot be combined, or if the
        graphs differ.
        """
        self.why_whole = self.find_obstacle() or self._find_placements()
        if self.why_whole in self.lone_reasons:
            self.leave_whole(report.explain_no_work(self.program) or self.why_whole)
            return
        if not self.why_whole:
            try:
                self.make_copy()
            except Exception as error:  # an error in any op: the script's own code is always right
                self.why_whole = f"its copy cannot be made ({type(error).__name__}: {error})"
        self.why_whole = self.compare()
        self.explain()

    def _find_placements(self) -> str:
        """Find the placements. Returns the reason why ranks cannot share the calls, or would gain nothing; else ""."""
        try:
            self.program = self.read_graph()
        except OwnRowsError as error:
            return str(error)
        except Exception as error:  # an error in any rule: the script's own code is always right
            return f"its graph cannot be read ({type(error).__name__}: {error})"
        return "" if self.has_own_rows or report.has_shared_work(self.program) else NO_WORK

    def find_obstacle(self) -> str:
        """The reason, known before the graph is read, why ranks cannot share the calls; empty if there is none."""
        if getattr(self.graph, "deferred_external_captures", None):
            return DEFERRED
        return "" if self.has_batch() else NO_BATCH

    def has_batch(self) -> bool:
        """Whether the step has a batch that its copies can divide."""
        return bool(self.list_divided())

    @abc.abstractmethod
    def list_divided(self) -> list[Any]:
        """The inputs of the graph with the rows that ranks divide; none if ops of the graph take the batch."""

    @abc.abstractmethod
    def read_graph(self) -> Program:
        """The placements of all tensors of the graph."""

    @abc.abstractmethod
    def make_copy(self) -> None:
        """Make the copy for the current number of ranks."""

    def compare(self) -> str:
        """Let ranks compare their graphs, and `why_whole`. Returns the common `why_whole`. Collective."""
        rows = next((tensor.shape.as_list()[0] for tensor in self.list_divided()), None)  # None: any number
        return agreement.agree_on_trace(self.graph, self.why_whole, self.place, rows or 0)

    def leave_whole(self, why: str) -> None:  # noqa: B027
        """Called in place of the following methods if the reason is one of `lone_reasons`; `why` explains it."""

    def explain(self) -> None:
        """Tell the user how the calls are computed."""
        if not self.why_whole:
            assert self.program is not None
            report.say_shared(self.place, self.program)
        elif self.has_own_rows:
            raise errors.UnsupportedError(self.refuse_own_rows())
        else:
            report.say_whole(self.place, self.why_whole, is_usual=False)

    def refuse_own_rows(self) -> str:
        """The text of the error if ranks cannot share calls to which each rank gives its own rows."""
        return own_data.explain_obstacle(self.place, self.why_whole)

    def require_ranks(self) -> None:
        """Raise an error if ranks were lost since the plan was made, for a plan whose copies fit these ranks only."""
        if self.ranks != world.get_world().size:
            excepthook.refuse_after_loss(self.place)
