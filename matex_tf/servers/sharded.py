"""`MATEX_STRATEGY=sharded`: each rank updates its piece of the weights, with the slots of that piece only.

With `servers:S`, S of the ranks do; the others have the weights of them. A phantom rank, which could not get them,
updates all and notes what a rank of several would have in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matex_tf import settings
from matex_tf.analysis import elementwise
from matex_tf.gradients import reduction
from matex_tf.ops import overlap
from matex_tf.runtime import notes
from matex_tf.servers.pieces import noted_slots, owners, publishing, sharded_slots, update_costs
from matex_tf.servers.pieces.sharded_slots import Holding, Part
from matex_tf.servers.variable_swap import find_handle, find_inner, swap_variables
from matex_tf.world import world

Apply = Callable[[list[Any], list[Any]], Any]
"""The last step of an optimizer: gradients in, variables updated."""


def update_pieces(optimizer: Any, apply: Apply, gradients: Sequence[Any], variables: Sequence[Any]) -> Any:
    """What `apply(gradients, variables)` gives, with the update in pieces where that is chosen and proved.

    Only the last step of the optimizer runs on pieces: clipping, weight decay, accumulation, constraints and averages
    come before or after it, and are as ever. An update that is proved to be elementwise makes of pieces the pieces of
    what it makes of all. The new weights are gathered.

    Args:
        optimizer: the script's own.
        apply: the last step of it.
        gradients: those of the whole batch, none of them None.
        variables: what they are gradients of.
    """
    import tensorflow as tf

    order = sorted(range(len(variables)), key=lambda index: reduction.find_birth(variables[index]))
    gradients, variables = [gradients[index] for index in order], [variables[index] for index in order]
    if not owners.is_chosen() and not update_costs.are_noted():
        return apply(gradients, variables)
    gradients = list(map(_ensure_shape, gradients, variables))
    parts: list[Part | None] = []
    why = _find_obstacle()
    if why is None:
        parts, why = _prove_update(optimizer, apply, gradients, variables)
    if update_costs.are_noted():
        update_costs.note_shares(optimizer, gradients, parts, why)
    if not owners.is_chosen():
        is_measured = update_costs.are_measured() and any(part is not None for part in parts)
        return update_costs.measure_update(apply, gradients, variables) if is_measured else apply(gradients, variables)
    if why is not None:
        say_not(optimizer, why)
    cut = [part for part in parts if part is not None]
    if not cut:
        return apply(gradients, variables)
    _begin_holdings(optimizer, cut)
    shares = {one: [part for part in one.parts if part in cut] for one in _list_holdings(cut)}
    places = {one: one.find_places() for one in shares}
    given = {id(part): gradient for part, gradient in zip(parts, gradients) if part is not None}
    groups = {one: publishing.group_parts(one, of_one) for one, of_one in shares.items()}
    for one, of_one in shares.items():
        one.take_apart([given[id(part)] for part in of_one])
        for group in groups[one]:
            # What waits for a layer's gradient need not wait for those of the layers before it.
            with tf.control_dependencies([given[id(part)] for part in group] if len(groups[one]) > 1 else []):
                publishing.lend_weights(one, group)
    own = [
        one if part is None else publishing.take_piece(one, part, places[part.holding])
        for part, one in zip(parts, gradients)
    ]
    with swap_variables([pair for part in cut for pair in part.pairs]):
        result = apply(own, variables)
    for one in shares:
        for place, group in reversed(list(enumerate(groups[one]))):
            publishing.publish_weights(one, group, place)
    return result


def say_not(optimizer: Any, why: str) -> None:
    """Say once that an optimizer, or a part of what it updates, is not sharded though that is chosen; or note it."""
    update_costs.note_obstacle("sharded", why)
    if owners.is_chosen():
        name = getattr(optimizer, "name", None) or getattr(optimizer, "_name", type(optimizer).__name__)
        strategy = settings.get_settings().strategy
        if world.get_world().servers:
            why += ". Ranks that only serve have no rows all the same; with MATEX_STRATEGY=allreduce they train, too"
        notes.print_note(f"MATEX_STRATEGY={strategy}: the optimizer '{name}' runs as allreduce: {why}")


def _find_obstacle() -> str | None:
    """Why no update can be sharded where ops are being made now."""
    import tensorflow as tf
    from tensorflow.python.framework import ops

    if tf.executing_eagerly() or not ops.inside_function():
        return "it is called outside of a tf.function"
    if overlap.is_for_xla():
        return "XLA compiles its update"
    return None


def _prove_update(
    optimizer: Any, apply: Apply, gradients: list[Any], variables: list[Any]
) -> tuple[list[Part | None], str | None]:
    """The part of each variable, None of one that stays whole, and why that is so.

    There are none if the update is not proved to be elementwise.
    """
    import tensorflow as tf

    can = [_can_be_cut(variable, gradient) for variable, gradient in zip(variables, gradients)]
    chosen = [variable for variable, fits in zip(variables, can) if fits]
    why = None
    if len(chosen) < len(variables):
        first = reduction.find_name(variables[can.index(False)])
        why = f"{can.count(False)} of its variables have sparse gradients or no fixed shape, such as '{first}'"
    if not chosen:
        return [], why
    given = [gradient for gradient, fits in zip(gradients, can) if fits]
    before = dict(vars(optimizer))
    whole = _trace_update(apply, chosen, [tf.TensorSpec(one.shape, one.dtype) for one in given])
    held = sharded_slots.find_parts(optimizer)
    slots = noted_slots.list_slots(chosen, [outer for outer, _ in whole.captures])
    new = [index for index, variable in enumerate(chosen) if id(find_inner(variable)) not in held]
    made, owning = [], []
    if new:
        owning = owners.list_owners([chosen[i] for i in new], [slot for i in new for slot in slots[i]])
    for dtype in dict.fromkeys(find_inner(chosen[index]).dtype for index in new):
        same = [index for index in new if find_inner(chosen[index]).dtype == dtype]
        made.append(Holding([chosen[index] for index in same], [slots[index] for index in same], owning))
    found = {**held, **{id(find_inner(part.variable)): part for one in made for part in one.parts}}
    parts = [found[id(find_inner(variable))] for variable in chosen]
    pieces, failed = None, None
    with swap_variables([pair for part in parts for pair in part.pairs]):
        try:
            pieces = _trace_update(apply, chosen, [tf.TensorSpec([None], one.dtype) for one in given])
        except Exception as error:  # whatever Python may raise that needs to know a shape
            failed = f"its update takes no piece of a variable ({type(error).__name__})"
    changed = [name for name, value in vars(optimizer).items() if before.get(name, before) is not value]
    if changed:
        vars(optimizer).update({name: before[name] for name in changed if name in before})
        return [], f"each trace of its update changes it ({changed[0]})"
    failed = failed or elementwise.find_obstacle(whole, _map_roles(parts, 0), pieces, _map_roles(parts, 1))
    if failed is not None:
        return [], failed
    return [found[id(find_inner(variable))] if fits else None for variable, fits in zip(variables, can)], why


def _begin_holdings(optimizer: Any, parts: Sequence[Part]) -> None:
    """Hold the slots of these parts in pieces from the next update on, where they are not yet."""
    held = sharded_slots.find_parts(optimizer)
    for one in _list_holdings([part for part in parts if id(find_inner(part.variable)) not in held]):
        owners.keep_count()
        one.begin_holding()
        held.update({id(find_inner(part.variable)): part for part in one.parts})


def _list_holdings(parts: Sequence[Part]) -> list[Holding]:
    return list(dict.fromkeys(part.holding for part in parts))


def _ensure_shape(gradient: Any, variable: Any) -> Any:
    """A dense gradient with the shape of its variable: of data of any shape TensorFlow may not know it."""
    import tensorflow as tf

    shape = find_inner(variable).shape
    if not isinstance(gradient, tf.Tensor) or gradient.shape == shape or not gradient.shape.is_compatible_with(shape):
        return gradient
    return tf.ensure_shape(gradient, shape)


def _can_be_cut(variable: Any, gradient: Any) -> bool:
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    one = find_inner(variable)
    if not isinstance(one, BaseResourceVariable) or "_handle" not in vars(one) or not one.shape.is_fully_defined():
        return False
    return not isinstance(gradient, tf.IndexedSlices) and gradient.shape == one.shape


def _trace_update(apply: Apply, variables: list[Any], gradients: list[Any]) -> Any:
    """The graph of an update that is never run."""
    from tensorflow.python.framework import func_graph

    def body(*given: Any) -> None:
        apply(list(given), list(variables))

    with sharded_slots.leave_as_is():
        return func_graph.func_graph_from_py_func("matex_update", body, gradients, {}, add_control_dependencies=False)


def _map_roles(parts: list[Part], which: int) -> dict[int, Any]:
    """By the ids of handles, what an update takes of `parts`: of what is whole (0) or of the pieces (1)."""
    return {
        id(find_handle(find_inner(pair[which]))): ("slot" if at else "variable", index, at)
        for index, part in enumerate(parts)
        for at, pair in enumerate(part.pairs)
    }
