"""In graphs: makes whole values of ranks' parts, and begins the backward passes of losses that are made of such parts.

`make_whole` is for values, `seed_targets` for gradients; `Boundary` finds the figures that a tensor is made of.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from matex_tf import ops
from matex_tf.analysis import declarations, interpreter, programs
from matex_tf.analysis.placement import DERIVED, REPLICATED, SAME, SHARDED, UNKNOWN, Element, Placement
from matex_tf.gradients import row_gathering
from matex_tf.sharding import step_weight

_wholes: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


def remember_whole(tensor: Any, whole: Any) -> None:
    """Note that the tensor of a graph has this value for the whole batch."""
    _wholes.setdefault(tensor.graph, {})[tensor.name] = whole
    declarations.declare_placement(whole, SAME)


def forget_graph(graph: Any) -> None:
    """Forget what `remember` was told of tensors of `graph`."""
    _wholes.pop(graph, None)


def find_whole(tensor: Any) -> Any:
    """What `remember` was told of a tensor; None if nothing."""
    return _wholes.get(tensor.graph, {}).get(tensor.name)


def compute_factor(power: int) -> Any:
    """What this rank's part weighs, float64: the share of its rows to a power, and 0 without rows of its own."""
    import tensorflow as tf

    numbers = step_weight.read_numbers()
    if power in (0, 1):
        return numbers[1 - power]
    return tf.where(numbers[0] > 0, tf.pow(numbers[0], float(power)), tf.zeros([], tf.float64))


def compute_slope_factor(power: int) -> Any:
    """What a backward pass is multiplied by, float64: as `compute_factor`, but 1 where all compute all rows.

    There each rank has all of a gradient, of which one rank's is taken.
    """
    import tensorflow as tf

    numbers = step_weight.read_numbers()
    share = tf.where(numbers[3] > 0, numbers[0], tf.ones([], tf.float64))
    return tf.where(share > 0, tf.pow(share, float(power)), tf.zeros([], tf.float64))


@programs.mark_ours()
def make_whole(tensors: Sequence[Any], name: str) -> list[Any]:
    """The whole values of tensors of the graph being built, on every rank. One collective for all figures, and one for
    each tensor of rows.

    Raises:
        ValueError: a tensor cannot be put together (`Placement.can_be_whole`).
    """
    import tensorflow as tf

    if not tensors:
        return []
    found = interpreter.make_interpreter(tensors[0].graph)
    placements = [found.find_placement(tensor) for tensor in tensors]
    for tensor, placement in zip(tensors, placements):
        if find_whole(tensor) is None and not placement.can_be_whole:
            raise ValueError(f"the parts of {tensor.name} are {placement.kind}: they cannot be put together")
    boundary = Boundary(found, _wholes.setdefault(found.graph, {}))
    for tensor, placement in zip(tensors, placements):
        if placement.kind != SHARDED:
            boundary.reach_parts(tensor)
    last = boundary.add_up(name)
    result = []
    for tensor, placement in zip(tensors, placements):
        if placement.kind != SHARDED or find_whole(tensor) is not None:
            result.append(boundary.make_whole(tensor))
            continue
        with tf.control_dependencies(last):  # in graphs of `tf.compat.v1` nothing else orders them
            result.append(_gather_nonempty(tensor, name))
        last = [result[-1].op]
    return result


def seed_targets(targets: Sequence[Any], given: Sequence[Any]) -> tuple[list[Any], list[Any], Placement | None]:
    """What a backward pass of `targets`, tensors of the graph being built, is to begin with.

    A loss is L = f(P1, P2, ...), each figure P a sum or mean over the rows. So its gradient is the sum over the figures
    of df/dP, at the whole batch's figures, times the gradient of P, to which each rank adds its rows' part. With df/dP
    as factors a gradient with respect to a variable is a partial sum, one with respect to rows that of those rows.

    Args:
        given: for each target what the script multiplies its gradient by, or None.

    Returns:
        Tensors to differentiate, their factors (None for ones), and None; or the targets and what was given as they
        are, and the placement that says why nothing is known of one.
    """
    import tensorflow as tf

    if not targets:
        return list(targets), list(given), None
    found = interpreter.make_interpreter(targets[0].graph)
    chosen: list[Any] = []
    factors: list[Any] = []
    for target, upstream in zip(targets, given):
        placement = found.find_placement(target)
        is_free = upstream is None or _is_unchanged(placement, found.find_placement(tf.convert_to_tensor(upstream)))
        if placement.kind == UNKNOWN or placement.is_mixed or not is_free:
            return list(targets), list(given), placement
        if placement.kind == DERIVED:
            more = _derive_figures(target, upstream, found)
        else:
            power = placement.power + (placement.kind == REPLICATED)
            more = [(target, _scale_upstream(upstream, target, power))]
        chosen += [tensor for tensor, _ in more]
        factors += [one for _, one in more]
    if any(one is not None for one in factors):
        factors = [tf.ones_like(tensor) if one is None else one for tensor, one in zip(chosen, factors)]
    return chosen, factors, None


def _is_unchanged(placement: Placement, upstream: Placement) -> bool:
    """Whether a factor of the script's own leaves the gradient of a tensor what it is."""
    if placement.kind == SHARDED:
        return upstream.is_same or (upstream.is_sharded and upstream.axis == placement.axis and not upstream.power)
    return upstream.is_same


def _scale_upstream(upstream: Any, target: Any, power: int) -> Any:
    import tensorflow as tf

    if power == 0:
        return upstream
    weight = tf.cast(compute_slope_factor(power), target.dtype)
    return weight * (tf.ones_like(target) if upstream is None else tf.cast(upstream, target.dtype))


def _derive_figures(target: Any, upstream: Any, found: Any) -> list[tuple[Any, Any]]:
    """The figures that a derived `target` is made of, each with its factor: the chain rule."""
    import tensorflow as tf
    from tensorflow.python.ops import gradients_impl

    boundary = Boundary(found, _wholes.setdefault(found.graph, {}))
    boundary.reach_parts(target, through_known=True)  # a derived tensor's own gradient is that of its slice alone
    boundary.add_up("the figures of a loss")
    total = boundary.make_whole(target)
    remember_whole(target, total)
    parts = [part for part in boundary.parts if part.dtype.is_floating and part.op.type != "Const"]
    wholes = [boundary.make_whole(part) for part in parts]
    slopes = gradients_impl.gradients([total], wholes, None if upstream is None else [upstream], stop_gradients=wholes)
    pairs = []
    for part, slope in zip(parts, slopes):
        if slope is not None:
            placement = found.find_placement(part)
            weight = tf.cast(compute_slope_factor(placement.power + (placement.kind == REPLICATED)), part.dtype)
            pairs.append((part, weight * slope))
    return pairs


class Boundary:
    """The figures that derived tensors are made of, and what is made of them anew once they are whole.

    `wholes` holds what is known to be whole already, by name; more is noted there."""

    def __init__(self, found: Any, wholes: dict[str, Any]):
        self._found, self._wholes = found, wholes
        self.parts: list[Any] = []
        self._made: dict[Any, Any] = {}
        self._seen: set[Any] = set()

    def reach_parts(self, tensor: Any, through_known: bool = False) -> None:
        """Go from `tensor` back to the figures that it is made of, or to what is known to be whole."""
        pending = [tensor]
        while pending:
            one = pending.pop()
            if one.ref() in self._seen:
                continue
            self._seen.add(one.ref())
            if (through_known or one.name not in self._wholes) and self._found.find_placement(one).kind == DERIVED:
                pending.extend(one.op.inputs)
            else:
                self.parts.append(one)

    def add_up(self, name: str) -> list[Any]:
        """Make the figures whole that are not. The op that is the last to communicate, in a list, or none."""
        import tensorflow as tf

        mine = []
        for part in self.parts:
            placement = self._found.find_placement(part)
            if part.name in self._wholes:
                self._made[part.ref()] = self._wholes[part.name]
            elif placement.is_same or part.dtype in (tf.resource, tf.variant):
                self._made[part.ref()] = part
            else:
                mine.append((part, placement))
        if not mine:
            return []
        flat = [tf.reshape(_weigh_part(part, placement), [-1]) for part, placement in mine]
        total = ops.allreduce(tf.concat(flat, 0), op="sum", name=name)
        # Where every rank has all of a gradient (see `compute_slope_factor`), that of one of them counts.
        numbers = step_weight.read_numbers()
        counted = tf.where((numbers[3] > 0) | (numbers[1] > 0), total, tf.stop_gradient(total))
        for (part, _), one in zip(mine, tf.split(counted, [_count_entries(one) for one in flat], num=len(flat))):
            value = tf.round(one) if part.dtype.is_integer else one
            made = tf.cast(tf.reshape(value, tf.shape(part)), part.dtype)
            made.set_shape(part.shape)
            declarations.declare_placement(made, SAME)
            self._made[part.ref()] = self._wholes[part.name] = made
        return [total.op]

    def make_whole(self, tensor: Any) -> Any:
        """The whole value of a tensor that was reached."""
        pending = [tensor]
        while pending:
            one = pending[-1]
            if one.ref() in self._made:
                pending.pop()
                continue
            missing = [part for part in one.op.inputs if part.ref() not in self._made]
            if missing:
                pending.extend(missing)
                continue
            self._copy_op(one.op)
            pending.pop()
        return self._made[tensor.ref()]

    def _copy_op(self, op: Any) -> None:
        from tensorflow.python.eager import execute

        copy = op.graph.create_op(
            op.type,
            [self._made[part.ref()] for part in op.inputs],
            [made.dtype for made in op.outputs],
            name=f"{op.name.split('/')[-1]}_whole",
            attrs={name: value for name, value in op.node_def.attr.items() if name != "_output_shapes"},
            op_def=op.op_def,
        )
        if execute.must_record_gradient():  # a tape around the one that differentiates goes through the copy, too
            attributes = [part for one in op.op_def.attr for part in (one.name, op.get_attr(one.name))]
            execute.record_gradient(op.type, copy.inputs, tuple(attributes), copy.outputs)
        for plain, made in zip(op.outputs, copy.outputs):
            made.set_shape(plain.shape)
            declarations.declare_placement(made, SAME)
            self._made[plain.ref()] = made


def _weigh_part(part: Any, placement: Placement) -> Any:
    """This rank's part of a figure in the sum over the ranks, float64."""
    import tensorflow as tf

    more = placement.kind == REPLICATED  # which is the mean over rows of itself
    if placement.elements is not None and placement.is_mixed:
        weight = tf.stack([compute_factor(_find_power(one) + 1) for one in placement.elements])
    else:
        weight = compute_factor(placement.power + more)
    value = tf.cast(part, tf.float64)
    # Selected, not multiplied: what a rank without rows computed may be no number.
    return tf.where(weight != 0, value * weight, tf.zeros_like(value))


def _find_power(one: Element) -> int:
    if one.power is None:
        raise ValueError("the parts of an entry cannot be put together")
    return one.power


def _count_entries(flat: Any) -> Any:
    import tensorflow as tf

    (count,) = flat.shape.as_list()
    return tf.shape(flat)[0] if count is None else count


def _gather_nonempty(tensor: Any, name: str) -> Any:
    """The rows of all ranks that have some."""
    import tensorflow as tf

    numbers = step_weight.read_numbers()
    count = tf.shape(tensor, tf.int64)[0] * tf.cast(numbers[1] > 0, tf.int64)
    made = row_gathering.gather_rows(tensor[:count], name, numbers)
    made.set_shape([None, *tensor.shape.as_list()[1:]])
    remember_whole(tensor, made)
    return made
