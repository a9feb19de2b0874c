"""All gradients of one update, summed over the ranks by an MPI that is given their addresses in a GPU's memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from matex_tf import settings
from matex_tf.world import placement, world

from .. import overlap
from ..library import get_library, on_load
from ..order import make_on_device
from . import common

_QUERIES = ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support")
"""Functions by which an MPI says that it takes such addresses; not every MPI has them."""
_ROCM = "/dev/kfd"

_is_agreed = False


def find_support() -> tuple[bool, bool]:
    """Whether this process's MPI takes addresses in a GPU's memory, and whether this host has a GPU."""
    queries = [getattr(get_library().c, name, None) for name in _QUERIES]
    takes = any(query is not None and bool(query()) for query in queries)
    return takes, placement.count_gpus() > 0 or os.path.exists(_ROCM)


def agree_on_support(everyone: Sequence[tuple[bool, bool]]) -> str:
    """Settle for this process, from what `find_support` found on each rank, whether MPI is given such addresses.

    Returns:
        What is to be said of that to people; "" where nothing is.
    """
    global _is_agreed
    chosen = settings.get_settings()
    asked = chosen.device_pointers
    takes = all(each for each, _ in everyone) and any(has for _, has in everyone)
    if not world.is_active() or asked == "off" or (asked == "auto" and not takes):
        return ""
    reason = _find_obstacle()
    _is_agreed = not reason
    if _is_agreed:
        return "MPI is given the addresses of gradients in the GPUs' memory (MATEX_DEVICE_POINTERS)"
    return f"MATEX_DEVICE_POINTERS=on changes nothing: {reason} in the host's memory" if asked == "on" else ""


def _find_obstacle() -> str:
    """What is computed where MPI does not reach it; "" if nothing."""
    chosen = settings.get_settings()
    if chosen.compression != settings.NO_COMPRESSION:
        return f"MATEX_COMPRESSION={chosen.compression} works"
    if chosen.strategy != "allreduce":
        return f"MATEX_STRATEGY={chosen.strategy} has its sums"
    if chosen.algorithm not in ("auto", "mpi"):
        return f"MATEX_ALGORITHM={chosen.algorithm} adds up"
    return "" if not world.get_world().is_phantom else "a plan is made"


def is_chosen(checked: bool) -> bool:
    """Whether an update that is made at once is summed so. `checked`: its gradients are to be looked at."""
    return _is_agreed and not checked and not overlap.is_for_xla()


def reduce_on_device(tensors: Sequence[Any], names: Sequence[str], weight: Any, place: str) -> list[Any]:
    """`ops.reduce_gradients` of gradients wherever they lie. They are scaled there, halves as float32."""
    import tensorflow as tf

    wide = [tf.cast(one, tf.float32) if one.dtype.size == 2 else one for one in tensors]
    sums = _sum_up(common.scale(wide, weight), names, weight, place)
    return [tf.cast(one, tensor.dtype) for one, tensor in zip(sums, tensors)]


def _sum_up(tensors: Sequence[Any], names: Sequence[str], weight: Any, place: str) -> list[Any]:
    ours = get_library().ops
    return list(
        make_on_device(
            ours.matex_reduce_on_device,
            ours.matex_keep_order,
            gradients=tensors,
            weight=weight,
            names=list(names),
            place=place,
            turn=common.take_turn(),
        )
    )


def _compute_gradient(op: Any, *gradients: Any) -> list[Any]:
    import tensorflow as tf

    names = [name.decode() for name in op.get_attr("names")]
    summed = _sum_up(gradients, names, tf.ones([], tf.float64), common.name_gradient(op))
    return [*summed, None]


def _register_gradient() -> None:
    import tensorflow as tf

    tf.RegisterGradient("MatexReduceOnDevice")(_compute_gradient)


on_load.append(_register_gradient)
