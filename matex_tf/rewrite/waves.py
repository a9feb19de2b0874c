"""Schedules the collectives of a program in waves: collectives that do not depend on one another travel together.

The ops of a program run in levels: the ops of level 0, then the collectives of wave 0, the ops of level 1, wave 1, and
so on. An op that takes the result of a collective of wave 0 is in level 1 or later. For example, batch normalization
takes the mean over all rows: its sum is wave 0. The loss, the metrics and the gradients follow from the normalized
rows, and do not depend on one another: they are wave 1. No schedule has fewer waves, because a collective cannot share
a wave with a collective whose result it needs.

Ops and collectives run as late as possible. But a sum that could travel in several waves joins the last wave that has
sums anyway, so that it causes no further message. If gradients are summed while other gradients are computed
(`Exchanger.sums_early`), their sums run as early as possible instead: in a backward pass through normalizations, the
waves of the normalizations carry gradients, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any

from matex_tf.rewrite.nodes import USUAL_SIZE, Node, Value
from matex_tf.rewrite.placement import Piece, Placement
from matex_tf.rewrite.programs import Program

_MIN_EARLY_BYTES = 256 << 10
"""The minimum size of early sums in a wave: over Ethernet of 1 Gbit/s so many bytes take 2 ms, and the rendezvous of
their message takes only 0.1 ms."""
_MAX_EARLY_WAVES = 16


@dataclasses.dataclass(eq=False, repr=False)
class Exchange:
    """A collective on a value.

    first_wave: the number of the first wave in which it can run.
    wave: the number of its wave, from 0.
    first_use: the lowest level of an op that takes the result.
    needs: the placements to which ops need the value brought.
    label: the label of the gradient to which the value belongs, see `labels.label_waves`.
    """

    value: Value
    first_wave: int
    wave: int
    first_use: int
    needs: set[Placement] = dataclasses.field(default_factory=set)
    label: Any = None

    @property
    def can_wait(self) -> bool:
        """Whether no op of the next level takes the result."""
        return self.first_use > self.wave + 1

    def find_piece(self) -> Piece | None:
        """The piece that all ops need of a sum, if it is the same; None: the whole value is needed."""
        need = next(iter(self.needs))
        return need if self.value.placement.is_row_sum and len(self.needs) == 1 and isinstance(need, Piece) else None


def schedule(
    program: Program, publishing: Container[int] = (), is_early: Callable[[Node], bool] | None = None,
    is_early_sum: Callable[[Value], bool] | None = None,
) -> list[list[Exchange]]:  # fmt: skip
    """Set the level of each node, and list the exchanges of each wave.

    publishing: the ids of nodes that a publication replaces: it assigns a rank's piece of a variable and sends it to
        all ranks (`bodies`). It runs in the wave before the node's level, so the node's level is at least one after the
        levels of its controls.
    is_early: whether a node runs as early as it can; else it runs as late as it can.
    is_early_sum: whether the sum of a value runs as early as it can (see `_group_early`).
    """
    earliest = _find_earliest(program, publishing)
    output_levels = (_find_ready(earliest, value, need) for value, need in zip(program.outputs, program.gives))
    last_level = max([0, *earliest.values(), *output_levels])

    def place_exchanges(choose_wave: Callable[[Value, int, int], int]) -> dict[int, Exchange]:
        """Set the levels of nodes. Returns the exchanges, by the ids of their values, each as late as possible.

        Walks back from the outputs: each use of a value lowers the latest level of the node that makes it.

        choose_wave: `choose_wave(sum, latest, first)` returns the wave of a sum, between the first and latest possible.
        """
        latest_levels = {id(node): last_level for node in program.nodes}
        exchanges: dict[int, Exchange] = {}

        def note_use(value: Value, need: Placement | None, level: int) -> None:
            """Record that the ops of a level take a value in the placement `need`."""
            if value.placement.needs_exchange(need):
                first_wave, wave = earliest.get(id(value.node), 0), level - 1  # the last wave before the level
                if value.placement.is_row_sum:
                    wave = choose_wave(value, wave, first_wave)
                exchange = exchanges.setdefault(id(value), Exchange(value, first_wave, wave, level))
                exchange.wave, exchange.first_use = min(exchange.wave, wave), min(exchange.first_use, level)
                exchange.needs.add(need)  # type: ignore[arg-type]
                level = exchange.wave  # the value must be there before the wave
            if value.node is not None and id(value.node) in latest_levels:
                latest_levels[id(value.node)] = min(latest_levels[id(value.node)], level)

        for output, output_need in zip(program.outputs, program.gives):
            note_use(output, output_need, last_level)
        for node in reversed(program.nodes):
            runs_early = is_early is not None and is_early(node)
            node.level = earliest[id(node)] if runs_early else latest_levels[id(node)]
            for value, need in zip(node.inputs, node.decision.needs):
                note_use(value, need, node.level)
            # The latest level of the controls.
            latest_of_controls = node.level - 1 if id(node) in publishing else node.level
            for control in node.controls:
                if id(control) in latest_levels:
                    latest_levels[id(control)] = min(latest_levels[id(control)], latest_of_controls)
        return exchanges

    # Place all exchanges as late as possible. If `_choose_waves` has other waves for the sums, place all again.
    exchanges = place_exchanges(lambda value, latest, first: latest)
    sums = [exchange for exchange in exchanges.values() if exchange.value.placement.is_row_sum]
    choose_wave = _choose_waves(sums, is_early_sum)
    if any(exchange.wave != choose_wave(exchange.value, exchange.wave, exchange.first_wave) for exchange in sums):
        exchanges = place_exchanges(choose_wave)
    # List each wave in the order of the values, which is the same on all ranks. The order of their uses may differ: a
    # script may keep variables in a set.
    waves: list[list[Exchange]] = [[] for _ in range(last_level)]
    for value in (*program.inputs, *(value for node in program.nodes for value in node.outputs)):
        if id(value) in exchanges:
            waves[exchanges[id(value)].wave].append(exchanges[id(value)])
    return waves


def _choose_waves(
    sums: Sequence[Exchange], is_early_sum: Callable[[Value], bool] | None
) -> Callable[[Value, int, int], int]:
    """The function `choose_wave` of `schedule`. sums: in their latest waves.

    A wave that is both the first and the latest possible of some sum has sums anyway. Any other sum that is not early
    joins the last such wave in which it can travel. Of the waves of early sums only the last is such a wave. In the
    others, early sums have a message of their own (`steps.exchanger`), so another sum would cause a further message.
    """
    early_waves = _group_early(
        [exchange for exchange in sums if is_early_sum is not None and is_early_sum(exchange.value)]
    )
    late_sums = [exchange for exchange in sums if id(exchange.value) not in early_waves]
    sum_waves = {exchange.wave for exchange in late_sums if exchange.wave == exchange.first_wave}
    if early_waves:
        sum_waves.add(max(early_waves.values()))

    def choose_wave(value: Value, latest_wave: int, first_wave: int) -> int:
        if id(value) in early_waves:
            return min(latest_wave, early_waves[id(value)])
        return next((wave for wave in range(latest_wave, first_wave - 1, -1) if wave in sum_waves), latest_wave)

    return choose_wave


def _group_early(sums: Sequence[Exchange]) -> dict[int, int]:
    """The wave of each of these sums, by the id of its value: as early as possible, but with at least
    `_MIN_EARLY_BYTES` in a wave, except in the last, and in at most `_MAX_EARLY_WAVES`.
    """
    byte_counts = {id(exchange.value): exchange.value.estimate_bytes(USUAL_SIZE) for exchange in sums}
    min_bytes = max(_MIN_EARLY_BYTES, sum(byte_counts.values()) // _MAX_EARLY_WAVES)
    chosen_waves: dict[int, int] = {}
    group: list[Exchange] = []
    waves = sorted({exchange.first_wave for exchange in sums})
    for wave in waves:
        group += [exchange for exchange in sums if exchange.first_wave == wave]
        if wave == waves[-1] or sum(byte_counts[id(exchange.value)] for exchange in group) >= min_bytes:
            # `exchange.wave` is the latest possible.
            chosen_waves.update((id(exchange.value), min(wave, exchange.wave)) for exchange in group)
            group = []
    return chosen_waves


def _find_earliest(program: Program, publishing: Container[int]) -> dict[int, int]:
    """The first level in which each node can run, by the ids of nodes."""
    earliest: dict[int, int] = {}
    for node in program.nodes:
        after_controls = max((earliest.get(id(control), 0) for control in node.controls), default=0)
        if id(node) in publishing:  # the publication runs in the wave between the controls and the node
            after_controls += 1
        ready_levels = (_find_ready(earliest, value, need) for value, need in zip(node.inputs, node.decision.needs))
        earliest[id(node)] = max([after_controls, *ready_levels])
    return earliest


def _find_ready(earliest: dict[int, int], value: Value, need: Placement | None) -> int:
    """The first level whose ops can take a value in the placement `need`: one level later if that needs a wave."""
    return earliest.get(id(value.node), 0) + value.placement.needs_exchange(need)
