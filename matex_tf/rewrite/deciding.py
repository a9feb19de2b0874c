"""Decides on the ops of a graph, one after the other: which placements an op needs, and which it gives.

The first of these that applies decides: the feed of an input; the bodies of a branch or loop; pieces of variables;
compilation; the rule of the op's type. Otherwise the op takes whole inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from matex_tf.rewrite import compiled, control, pieces
from matex_tf.rewrite.graph_ops import has_op
from matex_tf.rewrite.nodes import Decision, Expansion, Node, NoRuleError, Value
from matex_tf.rewrite.placement import WHOLE, FedHandle, Piece, PieceHandle, Placement, Replicated, Sharded
from matex_tf.rewrite.rules import RULES
from matex_tf.rewrite.rules.randoms import draw_once, has_no_seed
from matex_tf.rewrite.rules.registry import decide_without_rule
from matex_tf.rewrite.sources import SOURCES, count_rows, place_batch

ALIASES = frozenset(("Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot"))
"""Ops whose outputs are their inputs."""


class Decider:
    """Decides on ops. `propagate.Reader`, which reads the ops, is a subclass.

    takes_batches: an op may return the batch (`sources`). If no input of a program has rows, the first such op returns
        the batch that the ranks divide; any further op returns whole tensors.
    in_session: the graph is a part of a session's graph (`subgraphs`), whose ops may run in any order. Otherwise it is
        the function of a call in eager code.
    refused: an op that takes a variable whole which ranks would hold in pieces, by the number of the variable.
    loops: the number of loops around the op that is being read.
    batch_rows: the number of rows of the batch of the program that is being read, if it is fixed.
    have_batch: for each program that is being read, the outermost first, whether it has a batch so far.
    """

    def __init__(self, takes_batches: bool, in_session: bool):
        self.takes_batches, self.in_session = takes_batches, in_session
        self.refused: dict[int, Any] = {}
        self.loops = 0
        self.batch_rows: int | None = None
        self.have_batch: list[bool] = []

    @contextlib.contextmanager
    def enter(self, inputs: Iterable[Value], repeats: bool) -> Iterator[bool]:
        """The context in which a program with these inputs is read; `as` whether it has a batch before its first op:
        one of its inputs has rows, or the program around it has a batch. repeats: it is the body of a loop.
        """
        outer_rows, outer_loops = self.batch_rows, self.loops
        if not self.have_batch:
            self.batch_rows = count_rows(inputs)
        self.loops += repeats
        self.have_batch.append(_has_parts(inputs) or self.have_batch[-1:] == [True])
        try:
            yield self.have_batch[-1]
        finally:
            self.have_batch.pop()
            self.batch_rows, self.loops = outer_rows, outer_loops

    def note_batch(self, outputs: Iterable[Value]) -> None:
        """Record that an op with these outputs takes the batch of the program."""
        self.have_batch[-1], self.batch_rows = True, count_rows(outputs)

    def reads_functions(self, op: Any, inputs: Iterable[Value]) -> bool:
        """Whether the functions that `op` calls must be read: an input is not whole, or they may take the batch.

        Otherwise the copy calls the functions as they are.
        """
        if _has_parts(inputs) or any(isinstance(value.placement, (FedHandle, PieceHandle)) for value in inputs):
            return True
        return self._may_take_batch and has_op(op, SOURCES)

    def decide(self, node: Node) -> Decision | Expansion:
        special_placements = [value.placement for value in node.inputs if value.placement is not WHOLE]
        # An input with a feed: an iterator, dataset or optional of batches that ranks share (`feeds`).
        fed_handle = next((placement for placement in special_placements if isinstance(placement, FedHandle)), None)
        if node.type in SOURCES:
            has_whole_inputs = all(isinstance(placement, Replicated) for placement in special_placements)
            if fed_handle or (self._may_take_batch and has_whole_inputs):
                return self._decide_on_source(node, fed_handle)
        if fed_handle and node.type == "OptionalHasValue":
            return fed_handle.feed.place_end_check(node)
        if node.type in ALIASES:
            return Decision([None] * len(node.inputs), node.placements)
        try:
            decision = self._decide_by_rule(node, special_placements)
            if decision is not None:
                return decision
        except NoRuleError:
            node.bodies = []  # a rule that failed may have set them
        # No rule applies: the op takes whole inputs.
        for placement in special_placements:
            if isinstance(placement, PieceHandle):
                self.refused.setdefault(placement.variable, node.op)
        if fed_handle:
            return fed_handle.feed.place_other(node, fed_handle)
        # All ranks use the random numbers of one rank. They travel as a sum, and there are no sums of strings.
        is_drawn = has_no_seed(node.op) and not any(value.dtype.name == "string" for value in node.outputs)
        return draw_once(node) if is_drawn else decide_without_rule(node)

    @property
    def _may_take_batch(self) -> bool:
        """Whether an op that returns a batch would return the one that the ranks divide."""
        return self.takes_batches and not self.have_batch[-1]

    def _decide_by_rule(self, node: Node, special_placements: Sequence[Placement]) -> Decision | Expansion | None:
        """The decision by a rule; None if the op has none. Raises NoRuleError if its rule does not apply.

        special_placements: the placements of the inputs that are not simply whole.
        """
        if node.type in control.FLOW and self.reads_functions(node.op, node.inputs):
            return control.FLOW[node.type](self, node)
        if any(isinstance(placement, (PieceHandle, Piece)) for placement in special_placements):
            return pieces.place(node)
        # A session cannot run collectives in a compiled function. There each rank calls the function with all rows.
        if special_placements and not self.in_session and compiled.is_compiled(node.op) and _has_parts(node.inputs):
            return compiled.place_call(self, node)
        return RULES[node.type](node) if node.type in RULES else None

    def _decide_on_source(self, node: Node, fed_handle: FedHandle | None) -> Decision:
        """Decide on an op that returns a batch. fed_handle: the placement of its input, if this has a feed.

        The first batch of a program is the one that the ranks divide. Any other batch has the rows of all ranks.
        """
        is_sliced = self._may_take_batch
        decision = fed_handle.feed.place_batch(node, is_sliced) if fed_handle else place_batch(node)
        if is_sliced and any(isinstance(placement, Sharded) for placement in decision.gives):
            for value, placement in zip(node.outputs, decision.gives):
                value.placement = placement
            self.note_batch(node.outputs)
        return decision


def _has_parts(inputs: Iterable[Value]) -> bool:
    """Whether a rank has only a part of an input, such as its rows, so that a function with these inputs is copied."""
    return any(value.placement.has_parts for value in inputs)
