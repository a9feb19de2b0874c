"""Schedules collectives in waves (ALAP): independent ones travel together, each as late as possible.

The number of waves is the length of the longest chain of dependent collectives. The loss, the metrics and the gradients
of a step without batch statistics are one wave. A sum that could travel in several waves joins the last wave that has
sums anyway, so that it causes no further message.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.nodes import Node, Value
from matex_tf.rewrite.placement import Placement
from matex_tf.rewrite.programs import Program


class Exchange:
    """A collective on a value. needs: the placements that ops need. wave: the level after which it travels."""

    __slots__ = ("needs", "value", "wave")

    def __init__(self, value: Value, wave: int):
        self.value, self.wave = value, wave
        self.needs: set[Placement] = set()

    def find_piece(self) -> Placement | None:
        """The piece of a sum, if no op needs more of it; None: the whole value is needed."""
        need = next(iter(self.needs))
        return need if self.value.placement.is_partial and len(self.needs) == 1 and need.is_piece else None


def schedule(
    program: Program,
    needs: list[Placement],
    publishing: Container[int] = (),
    is_early: Callable[[Node], bool] | None = None,
) -> list[list[Exchange]]:
    """Set the level of each node, its number of preceding waves, and list the exchanges of each wave.

    needs: the placements that the outputs are brought to.
    publishing: the ids of nodes that an exchange replaces: the exchange runs one level after the inputs of the node.
    is_early: whether a node runs as early as it can; else it runs as late as it can.
    """
    earliest: dict[int, int] = {}
    for node in program.nodes:
        level = max((earliest[id(one)] for one in node.controls if id(one) in earliest), default=0)
        level += id(node) in publishing
        for value, need in zip(node.inputs, node.decision.needs):
            made = 0 if value.node is None else earliest.get(id(value.node), 0)
            level = max(level, made + needs_exchange(value.placement, need))
        earliest[id(node)] = level
    last = max(earliest.values(), default=0)
    ends = [
        (0 if value.node is None else earliest.get(id(value.node), 0)) + needs_exchange(value.placement, need)
        for value, need in zip(program.outputs, needs)
    ]
    last = max([last, *ends])

    def place(of_sums: Container[int]) -> dict[int, Exchange]:
        """The exchanges, by the ids of their values, each as late as possible; sums in one of the waves `of_sums` if
        they can.
        """
        latest = {id(node): last for node in program.nodes}
        waves: dict[int, Exchange] = {}

        def take(value: Value, need: Placement | None, level: int) -> None:
            if needs_exchange(value.placement, need):
                wave = level - 1
                if value.placement.is_partial:
                    first = earliest.get(id(value.node), 0)
                    wave = next((one for one in range(wave, first - 1, -1) if one in of_sums), wave)
                found = waves.setdefault(id(value), Exchange(value, wave))
                level = found.wave = min(found.wave, wave)
                found.needs.add(need)  # type: ignore[arg-type]
            if value.node is not None and id(value.node) in latest:
                latest[id(value.node)] = min(latest[id(value.node)], level)

        for output, wanted in zip(program.outputs, needs):
            take(output, wanted, last)
        for node in reversed(program.nodes):
            node.level = (earliest if is_early is not None and is_early(node) else latest)[id(node)]
            for value, need in zip(node.inputs, node.decision.needs):
                take(value, need, node.level)
            for one in node.controls:
                if id(one) in latest:
                    latest[id(one)] = min(latest[id(one)], node.level - (id(node) in publishing))
        return waves

    waves = place(())
    sums = [one for one in waves.values() if one.value.placement.is_partial]
    of_sums = {one.wave for one in sums if one.wave == earliest.get(id(one.value.node), 0)}
    if any(one.wave not in of_sums for one in sums):
        waves = place(of_sums)
    found: list[list[Exchange]] = [[] for _ in range(last)]
    # Ordered by the ops that make them. The order of their users may differ between ranks, if a script keeps variables
    # in a set.
    order = {id(one): place for place, one in enumerate([*program.inputs, *_list_outputs(program)])}
    for exchange in sorted(waves.values(), key=lambda one: order[id(one.value)]):
        found[exchange.wave].append(exchange)
    return found


def _list_outputs(program: Program) -> list[Value]:
    return [value for node in program.nodes for value in node.outputs]
