"""A graph that was read: its ops, with the placements of their tensors."""

from __future__ import annotations

from collections.abc import Iterable

from matex_tf.rewrite import control, own_batches
from matex_tf.rewrite.nodes import Node, Value


class Program:
    """The ops of a graph, in an order in which they can run, with the placements of their tensors.

    inputs, outputs: the values of the graph's.
    effects: the nodes that run although no output needs them.
    takes_batch: whether it takes the batch by itself, of which ranks have shares.
    """

    def __init__(
        self,
        nodes: list[Node],
        inputs: list[Value],
        outputs: list[Value],
        effects: list[Node],
        takes_batch: bool = False,
    ):
        self.nodes, self.inputs, self.outputs, self.effects = nodes, inputs, outputs, effects
        self.takes_batch = takes_batch

    @property
    def has_collectives(self) -> bool:
        exchanges = any(
            need is not None and control.needs_exchange(value.placement, need)
            for node in self.nodes
            for value, need in zip(node.inputs, node.decision.needs)
        )
        exchanges = exchanges or any(map(own_batches.has_collective, self.nodes))
        return exchanges or any(body.has_collectives for node in self.nodes for body in node.bodies)


def drop_unneeded(nodes: list[Node], outputs: Iterable[Value], effects: Iterable[Node]) -> list[Node]:
    needed = {id(value.node) for value in outputs}
    needed.update(map(id, effects))
    found = []
    for node in reversed(nodes):
        if id(node) in needed:
            found.append(node)
            for value in node.inputs:
                needed.add(id(value.node))
            for one in node.controls:
                needed.add(id(one))
    found.reverse()
    return found
