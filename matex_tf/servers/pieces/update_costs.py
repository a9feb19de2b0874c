"""Records which parts of an optimizer's update could be in pieces, of which each rank updates its own.

An update reads gradients and changes weights and slots, the optimizer's variables with an entry for each entry of a
weight. `matex plan` predicts the strategy `sharded`, an update in pieces, from the records (`describe_updates`) of its
phantom, a process that computes as one of several ranks that do not exist. It also needs the seconds of an update, so
the phantom marks the end of each one. `--adapt=ranks` compares strategies with the records (`count_bytes`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matex_tf import ops, settings
from matex_tf.costs.pieces import UPDATE_END
from matex_tf.rewrite.pieces import PiecesRefusedError
from matex_tf.rewrite.placement import Piece, PieceHandle
from matex_tf.rewrite.programs import Program
from matex_tf.rewrite.propagate import read_program
from matex_tf.servers.pieces import owners, slots
from matex_tf.servers.pieces.owners import measure_bytes
from matex_tf.steps import events
from matex_tf.steps.variables import find_name, find_tf_variable
from matex_tf.world import world


@dataclass(frozen=True)
class _UpdateBytes:
    """Bytes of one optimizer's update."""

    gradients: int  # that could be in pieces
    weights: int  # that could be in pieces
    slots: int  # that could be in pieces
    whole: int  # slots that could not
    why_not: str  # the reason why these could not; "" if there are none, or if other slots are in pieces now


_noted: weakref.WeakKeyDictionary[Any, _UpdateBytes] = weakref.WeakKeyDictionary()  # by optimizer
_obstacles: dict[str, str] = {}  # the reason against a strategy: "sharded", "async" or "local"


def are_measured() -> bool:
    """Whether `matex plan` measures the steps of this rank."""
    return world.get_world().is_phantom and settings.get_settings().plan is not None


def are_noted() -> bool:
    """Whether this process records which parts could be in pieces."""
    return are_measured() or owners.may_change_strategy()


def note_obstacle(strategy: str, why: str) -> None:
    """Record the reason against a strategy, a key of `_obstacles`, for `matex plan`. The first reason counts."""
    if are_measured():
        _obstacles.setdefault(strategy, why)


def start_noting() -> None:
    """If requested, record which parts of updates could be in pieces; in measured ranks, also mark their ends."""
    if not are_noted():
        return
    events.step_planned.add_listener(note_step)
    if are_measured():
        events.step_copied.add_listener(_mark_end)
        events.updates_eagerly.add_listener(_note_eager)
        events.step_trained.add_listener(_note_trained)


def note_step(plan: Any) -> None:
    """Record which parts of the updates in a planned step could be in pieces. plan: a `FunctionPlan`."""
    if not plan.trained:  # the step changes no weights
        return
    variables_and_slots = [(variable, slots.find_slot(variable)) for variable in plan.traced.graph.variables]
    step_slots = [(variable, slot) for variable, slot in variables_and_slots if slot is not None]
    program, sharded_slots, why_not = _find_sharded(plan, [variable for variable, _ in step_slots])
    if why_not:
        note_obstacle("sharded", why_not)
    gradient_bytes = sum(_measure_sums(program)) if program is not None else 0
    sharded_ids = set(map(id, sharded_slots))
    for optimizer in {id(slot.optimizer): slot.optimizer for _, slot in step_slots}.values():
        own_slots = [(variable, slot.weight) for variable, slot in step_slots if slot.optimizer is optimizer]
        own_sharded_slots = [(variable, weight) for variable, weight in own_slots if id(variable) in sharded_ids]
        # Several slots may belong to one weight, which counts once.
        weight_bytes = measure_bytes(list({id(weight): weight for _, weight in own_sharded_slots}.values()))
        slot_bytes = measure_bytes([variable for variable, _ in own_sharded_slots])
        whole_bytes = measure_bytes([variable for variable, _ in own_slots]) - slot_bytes
        _noted[optimizer] = _UpdateBytes(gradient_bytes, weight_bytes, slot_bytes, whole_bytes, why_not)
        gradient_bytes = 0  # the sums of a step are recorded once, with its first optimizer


def _note_eager(optimizer: Any) -> None:
    """An optimizer is about to update in eager code, and keeps complete slots. Its first update may create them, so the
    calls record it again until there are some.
    """
    if (known_bytes := _noted.get(optimizer)) is not None and known_bytes.why_not == slots.EAGER and known_bytes.whole:
        return
    variables = getattr(optimizer, "variables", [])  # a method in Keras 2
    tf_variables = map(find_tf_variable, variables() if callable(variables) else variables)
    whole_bytes = measure_bytes(slots.list_slots(tf_variables, optimizer))
    _noted[optimizer] = _UpdateBytes(0, 0, 0, whole_bytes, slots.EAGER)


def _note_trained(plan: Any) -> None:
    if plan is None:  # eager code, or the run of a session
        note_obstacle("sharded", "no tf.function updates its weights by an optimizer of Keras, as with tf.compat.v1")


def _mark_end() -> None:
    """Add a barrier at the end of a step's updates, which records their end as an event.

    It is called in the graph of the copied step, and waits for all ops with a state: updates are such ops.
    """
    import tensorflow as tf

    operations = tf.compat.v1.get_default_graph().get_operations()
    with tf.control_dependencies([op for op in operations if op.op_def is not None and op.op_def.is_stateful]):
        ops.barrier(UPDATE_END)


def _find_sharded(plan: Any, step_slots: list[Any]) -> tuple[Program | None, list[Any], str]:
    """The slots of a step that it takes in pieces, or could take with the strategy `sharded`.

    Returns the program of the step with these slots in pieces, these slots, and the reason against the other slots. If
    the step takes slots in pieces now, other slots get no reason.
    """
    if plan.why_whole:  # every rank computes the step by itself, which takes complete slots
        return None, [], plan.why_whole
    if plan.copies.pieces.list_variables():
        return plan.program, plan.copies.pieces.list_variables(), ""
    if not step_slots:
        return None, [], "the optimizer has no variables with an entry for each entry of a weight"
    return _place_slots(plan, step_slots)


def _place_slots(plan: Any, step_slots: list[Any]) -> tuple[Program | None, list[Any], str]:
    """`_find_sharded` for a step that takes no slot in pieces: find its placements again, with all slots in pieces.

    Some ops refuse a slot in pieces. Then find the placements with this slot whole, until no op refuses a slot.
    """
    slots_by_handle = {id(slot.handle): slot for slot in step_slots}
    handles = [handle for handle, _ in plan.traced.graph.captures]  # the captured tensors, in their order
    # The slots that are in pieces at this try: all at first, by their indices among the captured tensors.
    sharded = {
        index: slots_by_handle[id(handle)] for index, handle in enumerate(handles) if id(handle) in slots_by_handle
    }
    program, refusals = None, []
    while sharded and program is None:
        placements = [value.placement for value in plan.program.inputs]  # of the arguments, then the captured tensors
        for index, slot in sharded.items():
            # The cuts are the entries at which the ranks' pieces begin, and the number of entries. Whether ops refuse a
            # slot does not depend on where the cuts are. So one piece with all entries stands for any pieces.
            placements[plan.inputs.argument_count + index] = PieceHandle((0, slot.shape.num_elements()), index)
        try:
            # An op of the graph may take the batch, unless the batch is an input: `source`, the op that takes such a
            # batch, is left out of the graph (`rewrite.sources`).
            program = read_program(plan.inputs.graph, placements, takes_batches=plan.inputs.source is None)
        except PiecesRefusedError as error:  # `refused`: by the index of each refused slot, an op that takes it whole
            refusals += [
                f"'{find_name(sharded.pop(index))}' because of {op.type}" for index, op in error.refused.items()
            ]
    why_not = f"{len(refusals)} variables are not sharded, such as {refusals[0]}" if refusals else ""
    return program, list(sharded.values()), why_not


def _measure_sums(program: Program) -> Iterator[int]:
    """The bytes of each sum, such as a gradient, of which a rank needs only a piece."""
    for node in program.iterate_nodes():
        for value, need in zip(node.inputs, node.decision.needs):
            if value.placement.is_row_sum and isinstance(need, Piece):
                yield need.cuts[-1] * value.dtype.size  # the last cut is the number of entries


def count_bytes(optimizer: Any) -> tuple[int, int]:
    """The bytes of an optimizer's weights and slots that could be in pieces. (0, 0): none, or no step is planned."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of an optimizer that scales the loss
    # By identity: the attribute `optimizer` of a model may be a list of the script, which cannot be a key.
    return next(((update.weights, update.slots) for noted, update in _noted.items() if noted is inner), (0, 0))


def describe_updates() -> dict[str, Any]:
    """The records of all optimizers, by the fields of `planner.plan_file.Update`."""
    updates = list(_noted.values())
    why_not = "; ".join(dict.fromkeys(update.why_not for update in updates if update.why_not))
    return {
        "gradients": sum(update.gradients for update in updates),
        "weights": sum(update.weights for update in updates),
        "slots": sum(update.slots for update in updates),
        "whole": sum(update.whole for update in updates),
        "why_not": why_not or _obstacles.get("sharded", ""),
        "not_async": _obstacles.get("async", ""),
        "not_local": _obstacles.get("local", ""),
    }
