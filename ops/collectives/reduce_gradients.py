"""The sum over ranks of all gradients of one update, which is one call of an optimizer.

An update is inline, which means that one op sums all gradients after the backward pass; or it is overlapped with the
backward pass, by several ops (`overlap.py`). Step plans call `reduce_gradients` once for each update, or for each part
of it. It chooses between `reduce_inline`, `overlap.reduce_gradients` and `reduce_on_device`. All ranks choose alike,
because the choice depends only on settings and shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import arguments
from matex_tf.lazy import tf
from matex_tf.world import world

from .. import overlap
from ..library import get_library
from ..order import make_in_order
from . import common, reduce_on_device


def reduce_gradients(
    tensors: Sequence[Any],
    names: Sequence[str],
    weight: Any,
    place: str = "",
    checked: bool = False,
    variables: Sequence[int] = (),
    is_update: bool = True,
    cuts: Sequence[Sequence[int]] = (),
    part_of: str = "",
    has_more: bool = False,
) -> list[Any]:
    """The sum over ranks of weight * tensor, for each gradient of one update.

    Args:
        tensors: float16, bfloat16, float32 or float64 in any combination, of any shapes; the same on all ranks.
        names: the variable of each gradient. Ranks must agree on names; messages contain them.
        weight: this rank's weight, a float64 scalar; or a vector of the weight and the rows of the global batch, on
            which the ranks must agree. A weight of 0 stands for zeros, even for NaN and infinity.
        place: the place of the update in the program, for messages.
        checked: gradients that are not finite raise an error on every rank, which names the rank and the variable.
        variables: the number of each gradient's variable on this process; 0: no variable. `MATEX_COMPRESSION` keeps its
            residuals by these numbers; gradients without a variable are not compressed.
        is_update: False: the sum is not an update, or further gradients of the update follow. The sum is then
            inline, and counted and recorded as another collective. `weight` is `common.make_weight` without rows.
        cuts: for each tensor an empty list, or the first element of every rank's piece, and the end of the last piece.
            With cuts, a rank gets the sum of its own piece only; other elements are undefined.
        part_of: if the gradients are a part of an overlapped update, a name of all its gradients for messages.
        has_more: further parts of the update follow.

    Returns:
        Tensors of the same shapes and dtypes, bit for bit equal on every rank.

    Raises:
        tf.errors.FailedPreconditionError: when run, on every rank, if ranks differ in number, order, names, shapes or
            dtypes (the message names the first difference) or are at different collectives.
    """
    if not isinstance(tensors, (list, tuple)) or not isinstance(names, (list, tuple)):
        raise TypeError(
            "reduce_gradients: expected a list of tensors and one of names; "
            f"given {arguments.describe_value(tensors)} and {arguments.describe_value(names)}"
        )
    tensors = [common.make_tensor("reduce_gradients", tensor) for tensor in tensors]
    if len(names) != len(tensors):
        raise ValueError(f"reduce_gradients: expected {len(tensors)} names, one for each tensor, not {len(names)}")
    for tensor, name in zip(tensors, names):
        if tensor.dtype not in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
            raise TypeError(f"reduce_gradients: expected floating-point tensors, but {name!r} is {tensor.dtype.name}")
    weight = common.make_tensor("reduce_gradients", weight, tf.float64)
    if not any(weight.shape.is_compatible_with(shape) for shape in ([], [2])):
        raise ValueError(f"reduce_gradients: expected a scalar weight, or weight and rows; given shape {weight.shape}")
    if is_update and overlap.is_chosen(tensors):
        return overlap.reduce_gradients(tensors, names, weight, place, checked, variables, cuts, part_of, has_more)
    if not world.is_active():  # this process is no rank: its own gradients are the sum
        return common.scale(tensors, weight)
    return reduce_inline(tensors, names, weight, place, checked, variables, cuts)


def reduce_inline(
    tensors: Sequence[Any],
    names: Sequence[str],
    weight: Any,
    place: str,
    checked: bool = False,
    variables: Sequence[int] = (),
    cuts: Sequence[Sequence[int]] = (),
) -> list[Any]:
    """`reduce_gradients` as one op under several ranks, executed by the thread that reaches it."""
    if tensors and reduce_on_device.replaces_inline(checked):
        return reduce_on_device.reduce_on_device(tensors, names, weight, place)
    return list(
        make_in_order(
            get_library().ops.matex_reduce_gradients,
            gradients=tensors,
            weight=weight,
            names=list(names),
            variables=list(variables),
            place=place,
            checked=checked,
            cuts=overlap.flatten_cuts(cuts),
            turn=common.make_turn(),
        )
    )


def _compute_gradient(op: Any, *gradients: Any) -> list[Any]:
    """The gradients of the op's inputs: weight * the sums over ranks for the tensors, None for all other inputs.

    These sums are no update, even if the op's are: the script only goes on to compute with them.
    """
    names = [name.decode() for name in op.get_attr("names")]
    sums = reduce_gradients(gradients, names, common.make_weight(1), common.name_gradient(op), is_update=False)
    return [*common.scale(sums, op.inputs[len(names)]), *[None] * (len(op.inputs) - len(names))]


def _compute_hand_over_gradient(op: Any, gradient: Any) -> list[Any]:
    """The gradients of the op's inputs: weight * the sum over ranks for the gradient that is handed over, then None.

    In an overlapped update one op announces the update, and each gradient has an op, this one, that hands it over
    (`overlap.py`). Names and weight are with the announcement.
    """
    announcement = op.inputs[1].op
    name = announcement.get_attr("names")[op.get_attr("entry")].decode()
    sums = reduce_inline([gradient], [name], common.make_weight(1), common.name_gradient(announcement))
    return [*common.scale(sums, announcement.inputs[0]), None]


common.register_gradient("MatexReduceGradients", _compute_gradient)
common.register_gradient("MatexHandOverGradient", _compute_hand_over_gradient)
