"""A program: the ops of a graph, with the placements of their tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import Placement, Replicated


@dataclasses.dataclass(eq=False, repr=False)
class Program:
    """The ops of a graph, in an order in which they can run, with the placements of their tensors.

    inputs, outputs: the values of the graph's inputs and outputs.
    effects: the nodes that run although no output needs them, such as assignments.
    takes_batch: one of the ops takes the batch, for example from an iterator. Each rank computes its slice from there.
    gives: the placements to which the copy brings the outputs. By default an output keeps its own placement. The
        branches of a `tf.cond`, or the turns of a loop, must return an output in one placement, so `control` sets it.
        The program of a step returns whole outputs (`propagate.read_program`).
    """

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    effects: list[Node]
    takes_batch: bool = False
    gives: list[Placement] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.gives = self.gives or [value.placement for value in self.outputs]

    def iterate_programs(self) -> Iterator[Program]:
        """This program, and the programs of branches, loops and compiled functions within it."""
        yield self
        for node in self.nodes:
            for body in node.bodies:
                yield from body.iterate_programs()

    def iterate_nodes(self) -> Iterator[Node]:
        """The nodes of this program, and of the programs within it."""
        return (node for program in self.iterate_programs() for node in program.nodes)

    def iterate_needs(self) -> Iterator[tuple[Value, Placement | None, Node | None]]:
        """(value, need, node) for each node that takes a value that is not replicated, and for each such output.

        need: the placement to which the value is brought; None if the node takes the value unchanged.
        node: the node that takes the value; None for an output of the program.
        """
        for node in self.nodes:
            for value, need in zip(node.inputs, node.decision.needs):
                if not isinstance(value.placement, Replicated):
                    yield value, need, node
        for value, need in zip(self.outputs, self.gives):
            if not isinstance(value.placement, Replicated):
                yield value, need, None

    def iterate_exchanged(self) -> Iterator[tuple[Value, Node | None]]:
        """(value, node) of `iterate_needs` for each need that takes a collective, also in programs of called functions.

        Collectives of the ops themselves (`Decision.communicates`) are not among these.
        """
        for program in self.iterate_programs():
            for value, need, node in program.iterate_needs():
                if value.placement.needs_exchange(need):
                    yield value, node

    @property
    def has_collectives(self) -> bool:
        """Whether the copy has collectives: for placements, or of an op itself, also in called functions."""
        is_exchanged = any(True for _ in self.iterate_exchanged())
        return is_exchanged or any(node.decision.communicates for node in self.iterate_nodes())


def drop_unneeded(nodes: list[Node], outputs: Iterable[Value], effects: Iterable[Node]) -> list[Node]:
    """The nodes that outputs or effects need, in the order of `nodes`."""
    needed_nodes = {value.node for value in outputs}.union(effects)
    for node in reversed(nodes):
        if node in needed_nodes:
            needed_nodes.update(node.predecessors)
    return [node for node in nodes if node in needed_nodes]
