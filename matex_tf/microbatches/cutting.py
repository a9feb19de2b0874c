"""Selects the ops of a program that run part by part: regions, each between two waves of collectives.

The inputs of a region that have rows are sliced; its partial sums are added up, and its rows are concatenated. An op
that may run only once, because it has effects or collectives, is outside of all regions.
"""

from __future__ import annotations

import copy as copies
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from matex_tf.rewrite import paths, waves
from matex_tf.rewrite.compiled import is_compiled
from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.functions import is_stateful, read_only_types
from matex_tf.rewrite.nodes import Decision, Node, StandIn, Value
from matex_tf.rewrite.own_batches import has_collective
from matex_tf.rewrite.placement import LIST, PARTIAL, REPLICATED, SHARDED, SIZES, WHOLE, Placement
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.rules.sizes import mark_taker
from matex_tf.rewrite.sources import is_batch
from matex_tf.rewrite.whole_sums import WHOLE_SUM

EFFECT = "it has effects or a state, so that it runs once for all rows"
COLLECTIVE = "collectives are within it"
COMPILED = "XLA compiles it"
LISTED = "rows that a list holds, or that a mask chose, go from before a collective to after it"
_HANDLES = ("resource", "variant")


class Region(NamedTuple):
    """Ops that run once for each part.

    takes: values from outside, each with the placement in which the region takes it; None: unchanged.
    gives: values that ops outside use.
    awaited: nodes that ops outside wait for.
    """

    nodes: list[Node]
    takes: list[tuple[Value, Placement | None]]
    gives: list[Value]
    awaited: list[Node]


def list_kept(regions: Sequence[Region]) -> list[Value]:
    """Rows that one region computes and another takes, which stay in memory for all parts."""
    taken = {id(value) for region in regions for value, need in region.takes if need is None}
    return [value for region in regions for value in region.gives if id(value) in taken and _has_rows(value.placement)]


class Left(NamedTuple):
    """An op on rows outside of all regions, and the reason."""

    node: Node
    why: str


def cut(program: Program, gives: Sequence[Placement], make_emit: Callable[[Region], Any], left: list[Left]) -> Program:
    """The program with each region replaced by one node.

    Args:
        gives: the placements that the outputs are brought to.
        make_emit: returns the `Decision.emit` of a region's node.
        left: receives the ops on rows outside of all regions.
    """
    program = paths.drop_unused(program, gives)
    waves.schedule(program, list(gives), is_early=_is_end_of_rows)
    nodes = sorted(program.nodes, key=lambda node: node.level)
    program = Program(nodes, program.inputs, program.outputs, program.effects, program.takes_batch)
    outside = {id(node): why for node in nodes if (why := _find_obstacle(node))}
    while True:
        places = _find_places(nodes, outside)
        refused = _find_refused(program, gives, places)
        if not refused:
            break
        outside.update(refused)
    left += [Left(node, outside[id(node)]) for node in nodes if id(node) in outside and _has_rows_of_rank(node)]
    return _Rebuilt(program, gives, places, make_emit).program


def _is_end_of_rows(node: Node) -> bool:
    """Whether it takes rows and returns none: it runs early, so that the rows need not stay in memory."""
    return _has_rows_of_rank(node) and all(one.kind in (PARTIAL, REPLICATED, SIZES) for one in node.decision.gives)


def _has_rows(placement: Placement) -> bool:
    item = placement.item
    return placement.is_sharded or (placement.kind == LIST and item is not None and not item.is_replicated)


def _has_rows_of_rank(node: Node) -> bool:
    """Whether an input has rows of this rank only."""
    return any(
        _has_rows(value.placement) and not needs_exchange(value.placement, need)
        for value, need in zip(node.inputs, node.decision.needs)
    )


def _is_on_rows(node: Node) -> bool:
    """Whether the results of an op depend on which rows it gets."""
    if _has_rows_of_rank(node) or any(map(_has_rows, node.decision.gives)):
        return True
    return any(
        value.placement.kind == SIZES and (need is None or need.kind != REPLICATED)
        for value, need in zip(node.inputs, node.decision.needs)
    )


def _find_obstacle(node: Node) -> str:
    """The reason why an op cannot run part by part; empty if it can."""
    if node.is_reused or (is_batch(node) and not _has_rows_of_rank(node)):
        return EFFECT
    if has_collective(node) or any(body.has_collectives or body.takes_batch for body in node.bodies):
        return COMPILED if node.bodies and is_compiled(node.op) else COLLECTIVE
    if node.bodies and is_compiled(node.op):
        return COMPILED
    if node.bodies:
        return next((why for body in node.bodies for one in body.nodes if (why := _find_obstacle(one))), "")
    is_pure = node.type == WHOLE_SUM or not is_stateful(node.op) or node.type in read_only_types()
    return "" if is_pure else EFFECT


def _list_used(node: Node) -> Iterator[tuple[Value, Placement | None]]:
    """The values whose own tensors are used, or exchanged, for an op."""
    for value, need in zip(node.inputs, node.decision.needs):
        if paths.uses_tensor(value, need):
            yield value, need


_Place = tuple[int, int, bool]
"""A position: the level, the stage within it, and whether the op is in the region of the stage or before it."""


def _find_places(nodes: Sequence[Node], outside: Any) -> dict[int, _Place]:
    before = {id(node): list(_list_before(node)) for node in nodes}
    core = {id(node) for node in nodes if id(node) not in outside and _is_on_rows(node)}
    feeds = set(core)  # ops that ops on rows need, in their own level
    for node in reversed(nodes):
        if id(node) in feeds:
            feeds.update(map(id, before[id(node)]))
    follows: set[int] = set()  # ops that need rows
    places: dict[int, _Place] = {}
    for node in nodes:
        number, stage = id(node), 0
        if any(id(one) in core or id(one) in follows for one in before[number]):
            follows.add(number)
        is_in = number in core or (number in follows and number in feeds and number not in outside)
        is_in = is_in and not paths.is_constant(node)
        for one in before[number]:
            _, other, is_other_in = places[id(one)]
            stage = max(stage, other + (is_other_in and not is_in))
        places[number] = node.level, stage, is_in
    return places


def _list_before(node: Node) -> Iterator[Node]:
    """The nodes of the same level that an op needs."""
    for value, need in _list_used(node):
        one = value.node
        if one is not None and one.level == node.level and not needs_exchange(value.placement, need):
            yield one
    yield from (one for one in node.controls if one.level == node.level)


def _find_refused(program: Program, gives: Sequence[Placement], places: dict[int, _Place]) -> dict[int, str]:
    """Ops of regions whose inputs cannot be sliced, or whose results cannot be combined."""
    refused: dict[int, str] = {}

    def check(value: Value, need: Placement | None, at: _Place | None, user: Node | None) -> None:
        made = None if value.node is None else places.get(id(value.node))
        if made is not None and made == at:
            return
        if made is not None and made[2] and value.node is not None and not _can_leave(value):
            refused[id(value.node)] = LISTED
        if at is not None and at[2] and user is not None:
            is_whole = value.placement.is_replicated or needs_exchange(value.placement, need)
            if not is_whole and not _can_enter(value.placement):
                refused[id(user)] = LISTED

    for node in program.nodes:
        for value, need in _list_used(node):
            check(value, need, places[id(node)], node)
    for value, need in zip(program.outputs, gives):
        if paths.uses_tensor(value, need):
            check(value, need, None, None)
    return refused


def _can_enter(placement: Placement) -> bool:
    if placement.kind == LIST:
        return not _has_rows(placement)
    if placement.kind == SIZES:
        return all(one.rows is None or one.rows.chosen is None for one in placement.sizes)
    return placement.kind != SHARDED or (placement.rows.chosen is None and _has_known_blocks(placement))


def _can_leave(value: Value) -> bool:
    placement = value.placement
    if value.dtype.name in _HANDLES:
        return False
    return placement.kind in (PARTIAL, REPLICATED, SIZES) or (placement.is_sharded and _has_known_blocks(placement))


def _has_known_blocks(placement: Placement) -> bool:
    return len(placement.rows.blocks) == 1 or None not in placement.rows.blocks


class _Rebuilt:
    """The program with regions as nodes. Its nodes and values are copies."""

    def __init__(
        self, program: Program, gives: Sequence[Placement], places: dict[int, _Place], make_emit: Callable[..., Any]
    ):
        self._places, self._make_emit = places, make_emit
        self._values: dict[int, Value] = {}
        self._nodes: dict[int, Node] = {}
        used = _list_used_elsewhere(program, gives, places)
        awaited = {id(one) for node in program.nodes for one in node.controls if places[id(one)] != places[id(node)]}
        awaited |= set(map(id, program.effects))
        made: list[Node] = []
        ordered = sorted(program.nodes, key=lambda node: places[id(node)])
        for (_, _, is_in), group in itertools.groupby(ordered, key=lambda node: places[id(node)]):
            nodes = list(group)
            made += [self._make_region(nodes, used, awaited)] if is_in else map(self._copy, nodes)
        outputs = [self._values.get(id(value), value) for value in program.outputs]
        effects = list(dict.fromkeys(self._nodes[id(node)] for node in program.effects))
        self.program = Program(made, program.inputs, outputs, effects, program.takes_batch)

    def _copy(self, node: Node) -> Node:
        new = copies.copy(node)
        new.inputs = [self._values.get(id(value), value) for value in node.inputs]
        new.controls = self._find_controls([node])
        new.outputs = [self._copy_value(value, new) for value in node.outputs]
        self._nodes[id(node)] = new
        return new

    def _copy_value(self, value: Value, node: Node) -> Value:
        new = self._values[id(value)] = copies.copy(value)
        new.node = node
        return new

    def _find_controls(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes outside that the given nodes wait for."""
        own = set(map(id, nodes))
        waited = {id(one): one for node in nodes for one in node.controls if id(one) not in own}
        return list(dict.fromkeys(self._nodes.get(number, one) for number, one in waited.items()))

    def _make_region(self, nodes: list[Node], used: set[int], awaited: set[int]) -> Node:
        own = set(map(id, nodes))
        constants: dict[int, Node] = {}
        takes: dict[tuple[int, Placement | None], tuple[Value, Placement | None]] = {}
        for node in nodes:
            for value, need in _list_used(node):
                if value.node is not None and paths.is_constant(value.node):
                    constants[id(value.node)] = value.node
                elif id(value.node) not in own:
                    taken = _find_taken(value, need)
                    takes[id(value), taken] = value, taken
        gives = [value for node in nodes for value in node.outputs if id(value) in used]
        waited = [node for node in nodes if id(node) in awaited]
        region = Region([*constants.values(), *nodes], list(takes.values()), gives, waited)
        inputs = [self._values.get(id(value), value) for value, _ in region.takes]
        new = Node(StandIn("Parts", []), ("parts", *nodes[0].key), inputs, self._find_controls(nodes))
        new.decision = Decision(
            [need for _, need in region.takes],
            [value.placement for value in gives],
            mark_taker(self._make_emit(region)),
        )
        new.outputs = [self._copy_value(value, new) for value in gives]
        self._nodes.update((number, new) for number in own)
        return new


def _find_taken(value: Value, need: Placement | None) -> Placement | None:
    """The placement in which a region takes a value: a value that an op outside makes whole is whole."""
    if value.placement.is_replicated:
        return None
    is_whole = needs_exchange(value.placement, need) or paths.find_path(value, need) == paths.CONVERTED
    return WHOLE if is_whole else None


def _list_used_elsewhere(program: Program, gives: Sequence[Placement], places: dict[int, _Place]) -> set[int]:
    found = {id(value) for value, need in zip(program.outputs, gives) if paths.uses_tensor(value, need)}
    for node in program.nodes:
        for value, _ in _list_used(node):
            if value.node is not None and places.get(id(value.node)) != places[id(node)]:
                found.add(id(value))
    return found
