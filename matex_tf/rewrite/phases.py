"""In which order ops are copied: runs of ops that stay as they are together, between ops that are made one by one."""

from __future__ import annotations

from collections.abc import Sequence

from matex_tf.rewrite.control import is_other_list, needs_exchange
from matex_tf.rewrite.functions import is_movable
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import ANY, LIST, PARTIAL, PIECE, REPLICATED, SHARDED, SIZES, Placement, Size
from matex_tf.rewrite.programs import Program, drop_unneeded
from matex_tf.rewrite.sources import may_take_batch

SAME, COUNTED, EXCHANGED, CONVERTED = "same", "counted", "exchanged", "converted"
"""How an op of the copy gets a value in the placement that it needs: the tensor itself; numbers known from the rank's
share of the batch; the result of a collective; other ops make it of the tensor."""


def find_path(value: Value, need: Placement | None) -> str:
    placement = value.placement
    if placement.kind == REPLICATED and need is not None and need.kind == SIZES:
        return COUNTED
    if placement.kind == REPLICATED and (need is None or need.kind == REPLICATED):
        return SAME
    if (
        placement.kind == SIZES
        and find_counts(value) is not None
        and (need is None or need.kind in (SIZES, REPLICATED))
    ):
        return COUNTED
    if need is None or placement.has_layout(need):
        return SAME
    if need.kind == placement.kind and need.kind not in (SHARDED, PIECE, LIST):
        return SAME
    if placement.kind == LIST and not is_other_list(placement, need):
        return SAME
    if need.kind in (PARTIAL, SHARDED, PIECE):
        return CONVERTED
    if placement.kind in (REPLICATED, ANY):
        return SAME
    if needs_exchange(placement, need):
        return CONVERTED if placement.kind == SIZES else EXCHANGED
    return CONVERTED if placement.kind == SIZES else SAME


def uses_tensor(value: Value, need: Placement | None) -> bool:
    """Whether the tensor that the value's op makes is used for it, maybe by other ops or by a collective."""
    path = find_path(value, need)
    return path != COUNTED and not (path == CONVERTED and find_counts(value) is not None)


def find_counts(value: Value) -> tuple[Size, ...] | None:
    """The entries of a vector of sizes, if the rank's number of rows tells all of them."""
    if value.placement.kind != SIZES:
        return None
    sizes = value.placement.sizes
    for one in sizes:
        if (one.value is None) if one.rows is None else (one.rows.unit is None or one.value is not None):
            return None
    return sizes if value.shape in ([], [len(sizes)]) else None


def drop_unused(program: Program, gives: Sequence[Placement]) -> Program:
    """Without ops whose results the rank's share of the batch tells."""
    outputs = [value for value, need in zip(program.outputs, gives) if uses_tensor(value, need)]
    nodes = drop_unneeded(
        program.nodes,
        outputs,
        program.effects,
        lambda value, need: value.placement.kind != SIZES or uses_tensor(value, need),
    )
    return Program(nodes, program.inputs, program.outputs, program.effects, program.takes_batch)


def is_kept(node: Node) -> bool:
    """Whether the op stays as it is, so that it can be copied together with others."""
    return node.decision.emit is None and is_movable(node.op)


def is_constant(node: Node) -> bool:
    """Whether the op is copied wherever it is needed."""
    return node.type == "Const" and not node.controls and node.decision.emit is None and not node.is_reused


MADE, BEFORE, AFTER = 0, 1, 2
"""Where in a phase an op is: among those made one by one; in the run of ops that need no batch which the program takes;
in the run of those that do."""


class Phase:
    """Ops that are made one by one, and then ops that stay as they are, in two runs."""

    __slots__ = ("made", "runs")

    def __init__(self) -> None:
        self.made: list[Node] = []
        self.runs: tuple[list[Node], list[Node]] = [], []


def _find_after(program: Program) -> set[int]:
    """The ids of the nodes that need a batch which a node of the program takes, or a function that it calls."""
    found: set[int] = set()
    for node in program.nodes:
        before = (*(value.node for value in node.inputs), *node.controls)
        if any(id(one) in found for one in before) or may_take_batch(node):
            found.add(id(node))
    return found


class Phases:
    """The phases of each level of a program whose nodes have their levels; `has_runs`: whether ops are put together.

    A run waits for whatever one of its ops needs. Where the batches of a program end, its step fails, but TensorFlow
    runs all ops that need none: so these have runs of their own.

    exported, awaited: the ids of the values that are used, and of the nodes that are waited for, outside of their run.
    """

    def __init__(self, program: Program, gives: Sequence[Placement], count: int, has_runs: bool = True):
        self.has_runs = has_runs
        self.levels: list[list[Phase]] = [[] for _ in range(count)]
        self.exported: set[int] = set()
        self.awaited: set[int] = set()
        self._at: dict[int, tuple[int, int, int]] = {}
        self._after = _find_after(program)
        for node in program.nodes:
            if not is_constant(node):
                self._place(node)
        self._find_exported(program, gives)

    def _place(self, node: Node) -> None:
        level, phase = node.level, 0
        kept = (AFTER if id(node) in self._after else BEFORE) if self.has_runs and is_kept(node) else MADE
        for value, need in zip(node.inputs, node.decision.needs):
            at = None if value.node is None else self._at.get(id(value.node))
            if at is None or at[0] != level or at[1] + (at[2] > MADE) <= phase:
                continue
            path = find_path(value, need)
            if path in (SAME, CONVERTED):
                phase = max(phase, at[1] + (at[2] > (kept if path == SAME else MADE)))
        for one in node.controls:
            at = self._at.get(id(one))
            if at is not None and at[0] == level:
                phase = max(phase, at[1] + (at[2] > kept))
        phases = self.levels[level]
        while len(phases) <= phase:
            phases.append(Phase())
        (phases[phase].runs[kept - 1] if kept else phases[phase].made).append(node)
        self._at[id(node)] = level, phase, kept

    def _find_exported(self, program: Program, gives: Sequence[Placement]) -> None:
        for node in program.nodes:
            own = self._at.get(id(node))
            for value, need in zip(node.inputs, node.decision.needs):
                at = None if value.node is None else self._at.get(id(value.node))
                if at is not None and at[2]:
                    path = find_path(value, need)
                    if path != COUNTED and not (path == SAME and at == own):
                        self.exported.add(id(value))
            self.awaited.update(id(one) for one in node.controls if self._at.get(id(one)) != own)
        self.exported.update(id(value) for value, need in zip(program.outputs, gives) if uses_tensor(value, need))
        self.awaited.update(map(id, program.effects))
