"""Records which parts of an optimizer's update could be sharded: divided among ranks, each of which updates its piece.

An update reads gradients and changes weights and slots, the optimizer's variables with an entry for each entry of a
weight. `matex plan` predicts other strategies from the records (`describe_updates`) of its phantom, a process that
computes as one of several ranks that do not exist; it needs the end of each update, too. `--adapt=ranks` compares
strategies with the records (`count_bytes`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matex_tf import ops, settings
from matex_tf.costs.pieces import UPDATE_END
from matex_tf.rewrite.pieces import PiecesRefusedError
from matex_tf.rewrite.placement import WHOLE, make_piece_handle
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

    gradients: int  # that could be sharded
    weights: int  # that could be sharded
    slots: int  # that could be sharded
    whole: int  # slots that could not be sharded
    why_not: str  # the reason why not; "" if all slots could be sharded


_NO_FUNCTION = "no tf.function updates its weights by an optimizer of Keras, as with tf.compat.v1"
_noted: weakref.WeakKeyDictionary[Any, _UpdateBytes] = weakref.WeakKeyDictionary()  # by optimizer
_obstacles: dict[str, str] = {}  # the reason against each strategy


def are_measured() -> bool:
    """Whether `matex plan` measures the steps of this rank."""
    return world.get_world().is_phantom and settings.get_settings().plan is not None


def are_noted() -> bool:
    """Whether this process records which parts could be sharded."""
    return are_measured() or owners.may_change_strategy()


def note_obstacle(strategy: str, why: str) -> None:
    """Record the reason against a strategy, which is a name without a number; the first reason counts."""
    if are_measured():
        _obstacles.setdefault(strategy, why)


def start_noting() -> None:
    """If requested, record which parts of steps could be sharded; in measured ranks, also mark the ends of steps."""
    if not are_noted():
        return
    events.step_planned.add_listener(note_step)
    if are_measured():
        events.step_copied.add_listener(_mark_end)
        events.updates_eagerly.add_listener(_note_eager)
        events.step_trained.add_listener(_note_trained)


def note_step(plan: Any) -> None:
    """Record which parts of the updates in a planned step could be sharded. plan: a `steps.plan.StepPlan`."""
    if not plan.trained:  # the step changes no weights
        return
    variables_and_slots = [(variable, slots.find_slot(variable)) for variable in plan.traced.graph.variables]
    step_slots = [(variable, slot) for variable, slot in variables_and_slots if slot is not None]
    # `sharded_slots`: the slots that the step takes in pieces. If there are none: those that it could take in pieces.
    program, sharded_slots, why_not = plan.program, plan.pieces.list_variables(), plan.why_whole
    if not sharded_slots:
        program, sharded_slots, why_not = _place_slots(plan, [variable for variable, _ in step_slots])
    if not step_slots:
        why_not = why_not or "the optimizer has no variables with an entry for each entry of a weight"
    if why_not:
        note_obstacle("sharded", why_not)
    gradient_bytes = sum(_measure_sums(program)) if program is not None else 0
    sharded_ids = set(map(id, sharded_slots))
    for optimizer in {id(slot.optimizer): slot.optimizer for _, slot in step_slots}.values():
        own_slots = [(variable, slot.weight) for variable, slot in step_slots if slot.optimizer is optimizer]
        own_sharded_slots = [(variable, weight) for variable, weight in own_slots if id(variable) in sharded_ids]
        weight_bytes = measure_bytes(list({id(weight): weight for _, weight in own_sharded_slots}.values()))
        slot_bytes = measure_bytes([variable for variable, _ in own_sharded_slots])
        whole_bytes = measure_bytes([variable for variable, _ in own_slots]) - slot_bytes
        _noted[optimizer] = _UpdateBytes(gradient_bytes, weight_bytes, slot_bytes, whole_bytes, why_not)
        gradient_bytes = 0  # the sums of a step are recorded once, with its first optimizer


def _note_eager(optimizer: Any) -> None:
    """An optimizer that updates in eager code keeps complete slots, which exist after its first update."""
    if (known_bytes := _noted.get(optimizer)) is not None and known_bytes.why_not == slots.EAGER and known_bytes.whole:
        return  # an earlier call has recorded this
    variables = getattr(optimizer, "variables", [])  # a method in Keras 2
    tf_variables = map(find_tf_variable, variables() if callable(variables) else variables)
    whole_bytes = measure_bytes(slots.list_slots(tf_variables, optimizer))
    _noted[optimizer] = _UpdateBytes(0, 0, 0, whole_bytes, slots.EAGER)


def _note_trained(plan: Any) -> None:
    """Eager code, or the run of a session, has changed weights."""
    if plan is None:
        note_obstacle("sharded", _NO_FUNCTION)


def _mark_end() -> None:
    """Add a barrier at the end of a step's updates, which records their end as an event.

    It is called in the graph of the copied step, and waits for all ops with a state: updates are such ops.
    """
    import tensorflow as tf

    operations = tf.compat.v1.get_default_graph().get_operations()
    with tf.control_dependencies([op for op in operations if op.op_def is not None and op.op_def.is_stateful]):
        ops.barrier(UPDATE_END)


def _place_slots(plan: Any, step_slots: list[Any]) -> tuple[Program | None, list[Any], str]:
    """Plan a step again as if this rank owned the only piece of each slot.

    If ops of the step refuse a slot in pieces, plan again with this slot whole, until no slot is refused.

    Returns the program, the slots that it can have in pieces, and the reason against the other slots.
    """
    why_not = plan.why_whole
    slots_by_handle = {id(variable.handle): variable for variable in step_slots}
    captured_handles = [handle for handle, _ in plan.traced.graph.captures]  # the captured tensors, in their order
    while slots_by_handle and plan.program is not None:
        sizes = [
            slots_by_handle[id(handle)].shape.num_elements() if id(handle) in slots_by_handle else None
            for handle in captured_handles
        ]
        # A piece from entry 0 to `size`: all entries. The index identifies the slot in `PiecesRefusedError.refused`.
        captured_placements = [
            WHOLE if size is None else make_piece_handle((0, size), index) for index, size in enumerate(sizes)
        ]
        try:
            # The inputs of the graph are its arguments, then the captured tensors.
            placements = [value.placement for value in plan.program.inputs]
            placements[plan.argument_count : plan.argument_count + len(captured_handles)] = captured_placements
            program = read_program(plan.graph, placements, takes_batches=plan.source is None)
            return program, list(slots_by_handle.values()), why_not
        except PiecesRefusedError as error:
            first_index, op = next(iter(error.refused.items()))
            name = find_name(slots_by_handle[id(captured_handles[first_index])])
            why_not = f"{len(error.refused)} variables are not sharded, such as '{name}' because of {op.type}"
            for index in error.refused:
                del slots_by_handle[id(captured_handles[index])]
    return None, [], why_not


def _measure_sums(program: Program) -> Iterator[int]:
    """The bytes of each sum of which a rank needs only a piece."""
    for node in program.iterate_nodes():
        for value, need in zip(node.inputs, node.decision.needs):
            if value.placement.is_partial and need is not None and need.is_piece:
                yield need.cuts[-1] * value.dtype.size


def count_bytes(optimizer: Any) -> tuple[int, int]:
    """The bytes of an optimizer that could be sharded, as traced on this rank: weights and slots."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
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
