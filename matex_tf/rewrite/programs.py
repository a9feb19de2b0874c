"""A program: the ops of a graph, with the placements of their tensors. `propagate` makes it, `bodies` copies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.own_batches import has_collective
from matex_tf.rewrite.placement import REPLICATED, Placement


@dataclasses.dataclass(eq=False, repr=False)
class Program:
    """The ops of a graph, in an order in which they can run, with the placements of their tensors.

    inputs, outputs: the values of the graph's inputs and outputs.
    effects: the nodes that run although no output needs them.
    takes_batch: one of the ops takes the batch, for example from an iterator, and each rank goes on with a slice of it.
    gives: the placements that the outputs are brought to. Outputs of branches, and of the turns of a loop, may be
        brought to other placements than their own.
    """

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    effects: list[Node]
    takes_batch: bool = False
    gives: list[Placement] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.gives = [value.placement for value in self.outputs]

    def iterate_needs(
        self, gives: Sequence[Placement] | None = None
    ) -> Iterator[tuple[Value, Placement | None, Node | None]]:
        """Each use of a value that is not replicated: the value, the placement to which it is brought, and the node.

        The placement is None if the node takes the value unchanged. The node is None for an output of the program,
        which is brought to `gives` (default: the attribute).
        """
        for node in self.nodes:
            for value, need in zip(node.inputs, node.decision.needs):
                if value.placement.kind != REPLICATED:
                    yield value, need, node
        for value, need in zip(self.outputs, self.gives if gives is None else gives):
            if value.placement.kind != REPLICATED:
                yield value, need, None

    def iterate_exchanged(self, gives: Sequence[Placement] | None = None) -> Iterator[tuple[Value, Node | None]]:
        """Each use of a value for which a collective is needed, here and in the programs of called functions."""
        for value, need, node in self.iterate_needs(gives):
            if needs_exchange(value.placement, need):
                yield value, node
        for body in (body for node in self.nodes for body in node.bodies):
            yield from body.iterate_exchanged()

    @property
    def has_collectives(self) -> bool:
        if any(needs_exchange(value.placement, need) for value, need, _ in self.iterate_needs()):
            return True
        return any(has_collective(node) or any(body.has_collectives for body in node.bodies) for node in self.nodes)


def drop_unneeded(
    nodes: list[Node], outputs: Iterable[Value], effects: Iterable[Node],
    is_used: Callable[[Value, Placement | None], bool] | None = None,
) -> list[Node]:  # fmt: skip
    """The nodes that outputs or effects need, in their order.

    is_used: `is_used(value, need)` tells whether the tensor of a value is needed in order to bring the value to the
        placement `need`; None: always.
    """
    needed = {value.node for value in outputs}.union(effects)
    for node in reversed(nodes):
        if node in needed:
            for value, need in zip(node.inputs, node.decision.needs):
                if is_used is None or is_used(value, need):
                    needed.add(value.node)
            needed.update(node.controls)
    return [node for node in nodes if node in needed]
