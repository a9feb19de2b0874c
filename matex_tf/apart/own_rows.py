"""The copy of a step that a rank computes without the other ranks, for `local:H`.

It computes as if every other rank had the rows of this rank. Where the usual copy sums a tensor over the ranks, this
copy multiplies the tensor by the number of ranks. Where the usual copy gathers rows, this copy repeats its own rows, so
that sums over the rows have the scale of the complete batch, and means are the means of its own rows. A rank without
rows contributes nothing. `local` makes the copy with `OwnCopy` and `OwnExchanger` in place of the classes that exchange
data (`Copy`, `RankExchanger`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.lazy import tf
from matex_tf.rewrite.emit import Copy
from matex_tf.rewrite.nodes import Value
from matex_tf.rewrite.placement import Partial, Placement, Sharded, Zeros
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.rules.randoms import has_no_seed
from matex_tf.rewrite.sharing import Exchanger, Request, Slice
from matex_tf.rewrite.sources import is_batch
from matex_tf.world import world

_USES_OTHERS = "its step uses rows of other ranks"
_KEEPS_INTEGERS = "its step adds an integer that all ranks have to a sum over the ranks"


class OwnCopy(Copy):
    """A copy in which each rank has an equal part of a replicated term of a sum."""

    def keep_once(self, tensor: Any) -> Any:
        """This rank's term of a sum that equals `tensor`: 1/ranks of it, which `OwnExchanger` multiplies by ranks.

        In the usual copy rank 0 has the term, and the other ranks have 0. An integer term would not be exact:
        `find_obstacle` refuses it. But zeros are exact.
        """
        return tensor / world.get_world().trainers if is_divisible(tensor.dtype) else tf.zeros_like(tensor)


def is_divisible(dtype: Any) -> bool:
    return dtype.is_floating or dtype.is_complex


class OwnExchanger(Exchanger):
    """Uses this rank's data for every rank, and publishes nothing. Arguments as of `steps.exchanger`."""

    def __init__(self, place: str, is_ordered: bool = True, checked: bool = False):
        """The arguments do not matter: there are no collectives, which would be named, ordered or checked."""

    @property
    def rank(self) -> int:
        return world.get_world().rank

    def exchange(self, requests: Sequence[Request], batch_slice: Slice, is_last: bool = False) -> list[Any]:
        """The results of the requests if the tensors of each rank were those of this rank."""
        contributes = batch_slice.contributes
        rank_count = world.get_world().trainers  # the ranks that compute rows

        def compute_result(kind: str, tensor: Any) -> Any:
            if kind == "gather":
                rows = tf.cond(contributes, lambda: tensor, lambda: tensor[:0])
                rows.set_shape([None, *tensor.shape[1:]])
                return tf.concat([rows] * rank_count, 0)
            if tensor.dtype.is_bool:
                return tf.logical_and(tensor, contributes)
            return tf.where(contributes, tensor * rank_count, tf.zeros_like(tensor))

        return [compute_result(request.kind, request.tensor) for request in requests]


def find_obstacle(program: Program) -> str:
    """The reason why a rank cannot run a step by itself; "" if it can.

    A collective is possible if it sums a tensor, or gathers rows that are not sliced again. The step must not:

    - slice gathered rows: row k of the repeated rows is not row k of the batch. The same holds for rows that are
      sliced along another axis than before;
    - use or return a maximum or minimum over all rows, because other ranks have other rows;
    - gather rows in a branch or a loop, since this function does not follow gathered rows within it;
    - run collectives of an op other than the op that takes the batch;
    - return rows, or keep gathered ones in a variable, because the script would get the repeated rows;
    - add an integer or a boolean that all ranks have to a sum over the ranks: 1/ranks of it is not exact.
    """
    if _keeps_integers(program):
        return _KEEPS_INTEGERS
    exchanged = program.iterate_exchanged()  # also in branches and loops
    if any(isinstance(value.placement, Partial) and value.placement.reduction != "sum" for value, _ in exchanged):
        return _USES_OTHERS
    if any(node.decision.communicates and not is_batch(node) for node in program.iterate_nodes()):
        return _USES_OTHERS
    bodies = [body for node in program.nodes for body in node.bodies]
    if any(isinstance(value.placement, Sharded) for body in bodies for value, _ in body.iterate_exchanged()):
        return _USES_OTHERS
    gathered: set[Value] = set()  # gathered values, and values that are computed from these
    for node in program.nodes:
        for value, need in zip(node.inputs, node.decision.needs):  # need: the placement that the op needs
            if need is None:
                continue
            is_exchanged = value.placement.needs_exchange(need)
            if isinstance(need, Sharded) and (is_exchanged or value in gathered):
                return _USES_OTHERS
            if is_exchanged and isinstance(value.placement, Sharded):
                gathered.add(value)
        if not gathered.isdisjoint(node.inputs):
            gathered.update(node.outputs)
    # The script must not get gathered rows, neither as a result nor later from a variable. A value that was computed
    # from gathered rows has rows itself only if an axis of it is as long as an axis of rows.
    node_outputs = [value for node in program.nodes for value in node.outputs]
    shapes = (
        (value.whole_shape, value.placement.axis)
        for value in (*program.inputs, *node_outputs)
        if isinstance(value.placement, Sharded)
    )
    row_counts = {shape[axis] for shape, axis in shapes if shape is not None}

    def may_be_rows(value: Value) -> bool:
        """Whether a value may have the rows of the batch: by its shape, or because its shape is unknown."""
        shape = value.whole_shape
        return shape is None or any(size is None or size in row_counts for size in shape)

    effect_inputs = [value for node in program.effects for value in node.inputs]  # such as a memory bank in a variable
    if any(value in gathered and may_be_rows(value) for value in (*program.outputs, *effect_inputs)):
        return _USES_OTHERS
    return _USES_OTHERS if any(isinstance(value.placement, Sharded) for value in program.outputs) else ""


def _keeps_integers(program: Program) -> bool:
    """Whether an integer or a boolean that all ranks have becomes a term of a sum, also in branches and loops."""
    values_and_needs: list[tuple[Value, Placement | None]] = []
    for inner_program in program.iterate_programs():
        values_and_needs += zip(inner_program.outputs, inner_program.gives)
    for node in program.iterate_nodes():
        values_and_needs += zip(node.inputs, node.decision.needs)
    terms = [
        value
        for value, need in values_and_needs
        if isinstance(need, Partial) and not isinstance(value.placement, Partial)
    ]
    # Numbers without a seed: one rank draws them for all (`randoms.draw_once`).
    drawn_values = [value for node in program.iterate_nodes() if has_no_seed(node.op) for value in node.outputs]
    terms += [value for value in drawn_values if isinstance(value.placement, Partial)]
    return any(not is_divisible(value.dtype) and not isinstance(value.placement, Zeros) for value in terms)
