"""The copy of a step that a rank computes without the other ranks, for `local:H`.

It computes as if every other rank had the rows of this rank: where the usual copy sums a tensor over the ranks, this
one multiplies it by the number of ranks; where that gathers rows, this one repeats its own. A rank without rows
contributes nothing. `local` makes the copy with `OwnCopy` and `OwnExchanger` in place of the classes that exchange
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.rewrite.control import needs_exchange
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.placement import REPLICATED, SHARDED
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.sharing import Publication, Request, Slice
from matex_tf.rewrite.sources import is_batch
from matex_tf.world import world

MIXES = "its step uses rows of other ranks"


class OwnCopy(Copy):
    """Scales replicated terms of a sum by 1/ranks, so that their sum over the ranks is the original value."""

    def keep_once(self, tensor: Any) -> Any:
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return super().keep_once(tensor)
        return tensor / world.get_world().trainers


class OwnExchanger:
    """Uses this rank's data for every rank; see `rewrite.sharing.Exchanger` and `steps.exchanger`."""

    sums_early = False

    def __init__(self, place: str, is_ordered: bool = True, checked: bool = False):
        self.is_ordered = is_ordered

    @property
    def rank(self) -> int:
        return world.get_world().rank

    def can_publish(self, handle: Any, dtype: Any) -> bool:
        return False

    def publish(self, publications: Sequence[Publication]) -> list[Any]:
        raise AssertionError("a step that a rank runs by itself publishes nothing")

    def exchange(
        self, requests: Sequence[Request], batch_slice: Slice, labels: Sequence[Any] = (), is_last: bool = False,
        can_wait: Sequence[bool] = (),
    ) -> list[Any]:  # fmt: skip
        import tensorflow as tf

        contributes = batch_slice.contributes
        ranks = world.get_world().trainers

        def estimate(kind: str, tensor: Any) -> Any:
            if kind == "gather":
                rows = tf.cond(contributes, lambda: tensor, lambda: tensor[:0])
                rows.set_shape([None, *tensor.shape[1:]])
                return tf.concat([rows] * ranks, 0)
            if tensor.dtype.is_bool:
                return tf.logical_and(tensor, contributes)
            return tf.where(contributes, tensor * ranks, tf.zeros_like(tensor))

        return [estimate(request.kind, request.tensor) for request in requests]


def find_obstacle(program: Program) -> str:
    """The reason why a rank cannot run a step by itself; "" if it can.

    A step must not slice gathered rows, because its own rows are at the same place for every rank. It must not use a
    maximum or minimum over all rows, because other ranks have other rows.
    """
    gathered: set[int] = set()  # ids of values that depend on gathered rows
    for node in program.nodes:
        if node.decision.communicates and not is_batch(node):
            return MIXES
        for value, need in zip(node.inputs, node.decision.needs):  # need: the placement that the op needs
            if need is None:
                continue
            exchanges = needs_exchange(value.placement, need)
            slices = need.kind == SHARDED and (exchanges or id(value) in gathered)
            if slices or (exchanges and value.placement.reduction != "sum"):
                return MIXES
            if exchanges and value.placement.is_sharded:
                gathered.add(id(value))
        if any(id(value) in gathered for value in node.inputs):
            gathered.update(map(id, node.outputs))
        if any(map(_has_gathered, node.bodies)):
            return MIXES
    return MIXES if any(value.placement.is_sharded for value in program.outputs) else ""


def _has_gathered(program: Program) -> bool:
    """Whether a branch or a loop gathers rows."""
    return any(
        need is not None and need.kind == REPLICATED and value.placement.is_sharded
        for node in program.nodes
        for value, need in zip(node.inputs, node.decision.needs)
    ) or any(_has_gathered(body) for node in program.nodes for body in node.bodies)
