"""In graphs: tensors that ranks have parts of, made whole on every rank in the middle of a step, with their gradients.

On the way back each rank has a part of the gradient with respect to them: the collectives add these up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf.analysis import declarations
from matex_tf.analysis.placement import ROW_NUMBERS, SAME, SHARDED, Placement
from matex_tf.gradients import recombine, row_gathering
from matex_tf.sharding import step_weight
from matex_tf.world import world

PLACE = "rows that meet one another in a step"
_TYPES = {"float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "bool"}


def can_be_whole(tensor: Any, placement: Placement) -> bool:
    """Whether the ranks' parts of `tensor` can be put together in the middle of a step."""
    if placement.kind == SHARDED:
        is_scaled = placement.power and not tensor.dtype.is_floating
        return tensor.dtype.name in _TYPES and None not in placement.blocks and not is_scaled
    if placement.kind == ROW_NUMBERS:
        return placement.unit is not None
    return placement.can_be_whole and (placement.is_same or tensor.dtype.name in _TYPES - {"bool"})


def make_whole(tensors: Sequence[Any], found: Any, known: dict[str, Any]) -> list[Any]:
    """The whole values of tensors of the graph being built: one collective for all figures, one for each of rows.

    Args:
        found: the interpreter of that graph.
        known: those that were made so before, by name. Other than of `recombine.find_whole`, gradients go through them.
    """
    boundary = recombine.Boundary(found, known)
    placements = [found.find_placement(tensor) for tensor in tensors]
    are_rows = [placement.kind in (SHARDED, ROW_NUMBERS) for placement in placements]
    for tensor, is_rows in zip(tensors, are_rows):
        if not is_rows:
            boundary.reach_parts(tensor)
    boundary.add_up(PLACE)
    return [
        _gather_whole(tensor, placement, known) if is_rows else boundary.make_whole(tensor)
        for tensor, placement, is_rows in zip(tensors, placements, are_rows)
    ]


def _gather_whole(tensor: Any, placement: Placement, known: dict[str, Any]) -> Any:
    if tensor.name not in known:
        made = (
            _shift_numbers(tensor, placement)
            if placement.kind == ROW_NUMBERS
            else _gather_along_axis(tensor, placement)
        )
        made.set_shape(tensor.shape)
        declarations.declare_placement(made, SAME)
        known[tensor.name] = made
    return known[tensor.name]


def _gather_along_axis(tensor: Any, placement: Placement) -> Any:
    import tensorflow as tf

    first = list(range(tensor.shape.rank))
    first.insert(0, first.pop(placement.axis))
    rows = tf.transpose(tensor, first) if placement.axis else tensor
    if placement.power:
        weight = tf.cast(recombine.compute_factor(placement.power), tensor.dtype)
        rows = tf.where(weight > 0, rows * weight, tf.zeros_like(rows))
    if placement.blocks:
        each = tf.shape(rows)[0] // sum(placement.blocks)
        blocks = tf.split(rows, [block * each for block in placement.blocks], num=len(placement.blocks))
        made = tf.concat([_gather_rows(block) for block in blocks], 0)
    else:
        made = _gather_rows(rows)
    return tf.transpose(made, [first.index(axis) for axis in range(len(first))]) if placement.axis else made


def _shift_numbers(numbers: Any, placement: Placement) -> Any:
    """Numbers of rows within a slice, as numbers within the batch."""
    import tensorflow as tf

    share, *_, of_rows = tf.unstack(step_weight.read_numbers())
    mine = tf.cast(tf.round(share * of_rows), numbers.dtype)
    everyone = row_gathering.gather_rows(mine[tf.newaxis], PLACE)
    before = tf.reduce_sum(everyone[: world.get_world().rank])
    return _gather_rows(numbers + before * tf.constant(placement.unit, numbers.dtype))


def _gather_rows(rows: Any) -> Any:
    import tensorflow as tf

    numbers = step_weight.read_numbers()
    count = tf.shape(rows, tf.int64)[0] * tf.cast(numbers[1] > 0, tf.int64)
    made = row_gathering.gather_rows(rows[:count], PLACE, numbers)
    if not made.dtype.is_floating:
        return made
    # Where every rank computes the whole batch it has all of a gradient: that of one of them counts.
    return tf.where((numbers[3] > 0) | (numbers[1] > 0), made, tf.stop_gradient(made))
