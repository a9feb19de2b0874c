"""Selects the ops of a step that run part by part, to use less memory, and replaces them by nodes, the regions.

A *part* is some rows of this rank's slice, such as 8 of 32. A *region* is a set of ops that a loop computes for one
part after the other (`region`). Its inputs with rows are sliced, its partial sums are added up, and its rows are
concatenated. A region ends before the next *wave*, a set of collectives that travel together (`rewrite.waves`). So a
step without batch normalization has one region, from the batch to the gradients of the rank. An op that may run only
once, because it has effects or collectives, is outside of all regions.

The *position* of an op is a level, the number of waves before it, and a stage within the level. An op outside of a
region that needs a result of it is in the next stage. The ops on rows of one stage are a region.

A program (`rewrite.programs`) has the ops of a step's graph. A `Node` of it is an op, a `Value` a tensor with its
placement. The `Decision` of a node has the placements that the op needs for its inputs (`needs`), and those of its
outputs. A `need` is one of `needs`; None: the input's own placement. Another placement may take a collective
(`Placement.needs_exchange`). Two kinds of placements are not in docs/concepts.md: ItemList, a TensorList whose items
have a placement, and Sizes, the numbers of a tensor's shape, of which some count this rank's rows.
"""

from __future__ import annotations

import copy as copies
import dataclasses
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

from matex_tf.rewrite import tensors, waves
from matex_tf.rewrite.compiled import is_compiled
from matex_tf.rewrite.functions import read_only_types
from matex_tf.rewrite.graph_ops import HANDLES, is_stateful
from matex_tf.rewrite.nodes import Decision, Node, StandIn, Value
from matex_tf.rewrite.placement import WHOLE, ItemList, Partial, Placement, Replicated, Sharded, Sizes
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sources import is_batch
from matex_tf.rewrite.whole_sums import CONVERTED_SUM

EFFECT = "it has effects or a state, so that it runs once for all rows"
COLLECTIVE = "collectives are within it"
COMPILED = "XLA compiles it"
LISTED = "rows that a list holds, or that a mask chose, go from before a collective to after it"
"""The reasons why an op on rows is outside of all regions."""


class Region(NamedTuple):
    """Ops that run once for each part.

    takes: values from outside, each with the placement in which the region takes it; None: its own placement.
    gives: values that ops outside use.
    awaited: nodes that ops outside wait for, by control edges.
    """

    nodes: list[Node]
    takes: list[tuple[Value, Placement | None]]
    gives: list[Value]
    awaited: list[Node]


def list_kept(regions: Sequence[Region]) -> list[tuple[Value, int]]:
    """Values with rows that one region computes and another takes, with the axis of the rows. The rows of all parts
    stay in memory.
    """
    inputs = {value for region in regions for value, need in region.takes if need is None}
    kept = [value for region in regions for value in region.gives if value in inputs]
    return [(value, value.placement.axis) for value in kept if isinstance(value.placement, Sharded)]


class LeftOut(NamedTuple):
    """An op on rows outside of all regions, and the reason."""

    node: Node
    why: str


def cut(program: Program, make_emit: Callable[[Region], Any], left_out: list[LeftOut]) -> Program:
    """The program with each region replaced by one node.

    make_emit: returns the `Decision.emit` of a region's node.
    left_out: receives the ops on rows outside of all regions.
    """
    waves.schedule(program, is_early=_is_end_of_rows)  # sets the levels of nodes
    nodes = sorted(program.nodes, key=lambda node: node.level)
    program = dataclasses.replace(program, nodes=nodes)
    # Find the regions. An op that cannot be in its region moves other ops to other positions: find them again.
    why_outside = {node: why for node in nodes if (why := _find_obstacle(node))}
    positions = _find_positions(nodes, why_outside)
    while why_refused := _find_refused(program, positions):
        why_outside.update(why_refused)
        positions = _find_positions(nodes, why_outside)
    left_out += [LeftOut(node, why_outside[node]) for node in nodes if node in why_outside and _has_rows_of_rank(node)]
    return _Rebuilt(program, positions, make_emit).program


def _is_end_of_rows(node: Node) -> bool:
    """Whether an op takes rows and returns none, such as a sum over rows or `tf.shape`. Such an op runs in its earliest
    level, other ops in their latest (`waves.schedule`), so that the rows need not stay in memory.
    """
    return _has_rows_of_rank(node) and all(
        isinstance(placement, (Partial, Replicated, Sizes)) for placement in node.decision.gives
    )


def _has_rows(placement: Placement) -> bool:
    return isinstance(placement, (Sharded, ItemList)) and placement.has_parts


def _has_rows_of_rank(node: Node) -> bool:
    """Whether an op takes an input of which this rank has only its rows, and that no collective makes whole."""
    inputs = [(value.placement, need) for value, need in zip(node.inputs, node.decision.needs)]
    return any(_has_rows(placement) and not placement.needs_exchange(need) for placement, need in inputs)


def _is_on_rows(node: Node) -> bool:
    """Whether the results of an op depend on which rows it gets."""
    if _has_rows_of_rank(node) or any(map(_has_rows, node.decision.gives)):
        return True
    inputs = zip(node.inputs, node.decision.needs)  # sizes are numbers of this rank's rows, unless made whole
    return any(isinstance(value.placement, Sizes) and not isinstance(need, Replicated) for value, need in inputs)


def _find_obstacle(node: Node) -> str:
    """The reason why an op cannot run part by part; empty if it can."""
    # A reused op is the script's own op in a session's graph. The copy of the step does not build it, so no loop can
    # contain it. The op that takes the batch runs once: it gives the rank's slice, and regions compute parts of that
    # slice. But an op of the same type that takes rows of this rank (from an optional, as gradients of branches do)
    # takes no batch, and only reads them.
    if node.is_reused or (is_batch(node) and not _has_rows_of_rank(node)):
        return EFFECT
    if node.bodies and is_compiled(node.op):
        return COMPILED
    if node.decision.communicates or any(body.has_collectives for body in node.bodies):
        return COLLECTIVE
    if node.bodies:
        obstacles = (_find_obstacle(inner_node) for body in node.bodies for inner_node in body.nodes)
        return next(filter(None, obstacles), "")
    # A converted sum's node only returns its input, which a collective before the node has converted. `is_stateful` is
    # true for its type, which TensorFlow does not know.
    is_pure = node.type == CONVERTED_SUM or not is_stateful(node.type) or node.type in read_only_types()
    return "" if is_pure else EFFECT


def _list_used(node: Node) -> Iterator[tuple[Value, Placement | None]]:
    """The inputs of an op and their needs, without inputs whose tensor the op does not use (`tensors.uses_tensor`): the
    copy computes numbers of rows, such as n = tf.shape(x)[0], from its slice.
    """
    for value, need in zip(node.inputs, node.decision.needs):
        if tensors.uses_tensor(value, need):
            yield value, need


class _Position(NamedTuple):
    """The position of an op. Ops run in the order of these fields (`_Rebuilt`): within a stage, the ops outside of the
    region come before it.
    """

    level: int
    stage: int
    is_in_region: bool


def _find_positions(nodes: Sequence[Node], outside: Container[Node]) -> dict[Node, _Position]:
    """The position of each node.

    A region has the ops on rows, and the ops without rows between them, which need an op on rows and are needed by one,
    directly or through other ops, also through ops outside.

    nodes: in the order of levels; a node comes after its inputs.
    outside: ops that are in no region.
    """
    needed_nodes = {node: list(_list_needed(node)) for node in nodes}
    on_rows = {node for node in nodes if node not in outside and _is_on_rows(node)}
    # Backward: the ops on rows, and the ops of the same level that these need, directly or not.
    before_rows = set(on_rows)
    for node in reversed(nodes):
        if node in before_rows:
            before_rows.update(needed_nodes[node])
    # Forward: the ops that need ops on rows, directly or not, and the position of each op.
    after_rows: set[Node] = set()
    positions: dict[Node, _Position] = {}
    for node in nodes:
        if any(needed_node in on_rows or needed_node in after_rows for needed_node in needed_nodes[node]):
            after_rows.add(node)
        is_between = node in after_rows and node in before_rows and node not in outside
        is_in_region = (node in on_rows or is_between) and not tensors.is_constant(node)
        # An op outside comes a stage after each region that it needs. Any other op is in the stage of what it needs.
        needed_positions = [positions[needed_node] for needed_node in needed_nodes[node]]
        stage = max(
            (position.stage + (position.is_in_region and not is_in_region) for position in needed_positions), default=0
        )
        positions[node] = _Position(node.level, stage, is_in_region)
    return positions


def _list_needed(node: Node) -> Iterator[Node]:
    """The nodes of the same level that an op needs."""
    for value, need in _list_used(node):
        source = value.node
        if source is not None and source.level == node.level and not value.placement.needs_exchange(need):
            yield source
    yield from (control for control in node.controls if control.level == node.level)


def _find_refused(program: Program, positions: dict[Node, _Position]) -> dict[Node, str]:
    """The ops that cannot be in their regions, with the reason: the region cannot slice an input that comes from
    outside, or cannot combine the parts' results to a value that is used outside.
    """
    why_refused: dict[Node, str] = {}
    for value, need, user in _list_crossings(program, positions):
        # The value cannot leave a region: the op that makes it goes outside. `value.node` is None for an input of the
        # program.
        if value.node is not None and positions[value.node].is_in_region and not _can_leave(value):
            why_refused[value.node] = LISTED
        # The value cannot enter a region: the op that takes it goes outside.
        is_whole = _find_input_placement(value, need) == WHOLE
        if user is not None and positions[user].is_in_region and not is_whole and not _can_enter(value.placement):
            why_refused[user] = LISTED
    return why_refused


def _list_crossings(
    program: Program, positions: dict[Node, _Position]
) -> Iterator[tuple[Value, Placement | None, Node | None]]:
    """Each value that an op in another position uses, with the placement that the op needs, and the op.

    The op is None for an output of the program, and the placement then the one in `Program.gives`.
    """
    for node in program.nodes:
        for value, need in _list_used(node):
            if value.node is None or positions[value.node] != positions[node]:
                yield value, need, node
    for value, placement in zip(program.outputs, program.gives):
        if tensors.uses_tensor(value, placement):
            yield value, placement, None


def _can_enter(placement: Placement) -> bool:
    """Whether a region can take a value with this placement: it has no rows, or the rows of a part can be found in it.

    If a mask has selected rows (`Rows.chosen`), nobody knows how many of them belong to a part.
    """
    if isinstance(placement, ItemList):
        return not _has_rows(placement)  # no op slices the items of a list
    if isinstance(placement, Sizes):
        return not any(size.counts_chosen for size in placement.sizes)
    return not isinstance(placement, Sharded) or (placement.rows.chosen is None and _has_known_blocks(placement))


def _can_leave(value: Value) -> bool:
    """Whether the results of parts can be combined to this value. Rows that a mask has selected can: each part's
    selected rows follow the previous part's.
    """
    placement = value.placement
    if value.dtype.name in HANDLES:  # also lists: no op concatenates their items' rows
        return False
    if isinstance(placement, Sharded):
        return _has_known_blocks(placement)
    return isinstance(placement, (Partial, Replicated, Sizes))


def _has_known_blocks(placement: Sharded) -> bool:
    """Whether a part's entries can be found in each block of the axis with rows.

    `Rows.blocks` has the number of entries for each row, by block. For two concatenated batches, (1, 1), a part has
    entries in both. For a single block the number may be unknown (None): it follows from the length of the axis.
    """
    return len(placement.rows.blocks) == 1 or None not in placement.rows.blocks


class _Rebuilt:
    """The program with regions as nodes. Its nodes and values are copies."""

    def __init__(self, program: Program, positions: dict[Node, _Position], make_emit: Any):
        self._make_emit = make_emit
        self._values: dict[Value, Value] = {}  # the new value, by the original
        self._nodes: dict[Node, Node] = {}  # the new node, or the region, by the original
        # The values and nodes that ops in other positions use or wait for.
        used = {value for value, _, _ in _list_crossings(program, positions)}
        control_edges = [(control, node) for node in program.nodes for control in node.controls]
        awaited = {control for control, node in control_edges if positions[control] != positions[node]}
        awaited.update(program.effects)
        # The nodes of each position, in order: one node for a region, copies of the others.
        new_nodes: list[Node] = []
        ordered_nodes = sorted(program.nodes, key=lambda node: positions[node])
        for position, group in itertools.groupby(ordered_nodes, key=lambda node: positions[node]):
            nodes = list(group)
            if position.is_in_region:
                new_nodes.append(self._make_region(nodes, used, awaited))
            else:
                new_nodes += map(self._copy, nodes)
        outputs = [self._values.get(value, value) for value in program.outputs]
        effects = list(dict.fromkeys(self._nodes[node] for node in program.effects))
        self.program = dataclasses.replace(program, nodes=new_nodes, outputs=outputs, effects=effects)

    def _copy(self, node: Node) -> Node:
        new_node = copies.copy(node)
        new_node.inputs = [self._values.get(value, value) for value in node.inputs]
        new_node.controls = self._find_controls([node])
        new_node.outputs = [self._copy_value(value, new_node) for value in node.outputs]
        self._nodes[node] = new_node
        return new_node

    def _copy_value(self, value: Value, node: Node) -> Value:
        new_value = self._values[value] = copies.copy(value)
        new_value.node = node
        return new_value

    def _find_controls(self, nodes: Sequence[Node]) -> list[Node]:
        """The new nodes that `nodes` wait for, without `nodes` themselves."""
        own_nodes = set(nodes)
        controls = [control for node in nodes for control in node.controls if control not in own_nodes]
        return list(dict.fromkeys(self._nodes.get(control, control) for control in controls))

    def _make_region(self, nodes: list[Node], used: set[Value], awaited: set[Node]) -> Node:
        """The node of a region, which has its own copies of constants.

        used, awaited: the values and nodes that ops in other positions use or wait for.
        """
        own_nodes = set(nodes)
        constants: dict[Node, None] = {}  # an ordered set, as `takes`
        takes: dict[tuple[Value, Placement | None], None] = {}
        for value, need in itertools.chain.from_iterable(map(_list_used, nodes)):
            if value.node is not None and tensors.is_constant(value.node):
                constants[value.node] = None
            elif value.node not in own_nodes:
                takes[value, _find_input_placement(value, need)] = None
        gives = [value for node in nodes for value in node.outputs if value in used]
        region = Region([*constants, *nodes], list(takes), gives, [node for node in nodes if node in awaited])
        inputs = [self._values.get(value, value) for value, _ in region.takes]
        # The node of the region has a `StandIn`, because the script's graph has no such op.
        region_node = Node(StandIn("Parts", []), ("parts", *nodes[0].key), inputs, self._find_controls(nodes))
        needs = [need for _, need in region.takes]
        region_node.decision = Decision(needs, [value.placement for value in gives], self._make_emit(region))
        region_node.outputs = [self._copy_value(value, region_node) for value in gives]
        self._nodes.update(dict.fromkeys(nodes, region_node))
        return region_node


def _find_input_placement(value: Value, need: Placement | None) -> Placement | None:
    """The placement in which a region takes a value (`Region.takes`).

    WHOLE if the value is made whole before the region: by a collective, or, if it is numbers of this rank's rows, by
    ops that compute the script's numbers from them (`tensors.CONVERTED`). None: its own placement. From a replicated
    value, ops of the region can take their part's rows.
    """
    if isinstance(value.placement, Replicated):
        return None
    is_whole = value.placement.needs_exchange(need) or tensors.find_path(value, need) == tensors.CONVERTED
    return WHOLE if is_whole else None
