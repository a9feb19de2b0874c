"""The reduction of gradients by an MPI that accepts addresses in a GPU's memory (`MATEX_DEVICE_POINTERS`).

An update is inline if one op sums all its gradients after the backward pass. This op usually sums in the host's memory
(`reduce_gradients.reduce_inline`); the op of this module replaces it. At the start the ranks agree whether they use it
(`agree_on_addresses`), because all ranks must make the same MPI calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matex_tf import settings
from matex_tf.lazy import tf
from matex_tf.world import world

from .. import overlap
from ..library import get_library
from ..order import make_on_device
from . import common

_QUERIES = ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support", "MPIX_Query_hip_support")
"""Functions by which an MPI reports that it accepts device addresses; not every MPI has them."""

_is_agreed = False  # set by `agree_on_addresses`, equally on all ranks


def can_take_addresses() -> bool:
    """Whether this process's MPI reports that it accepts addresses in a GPU's memory."""
    queries = [getattr(get_library().c, name, None) for name in _QUERIES]
    return any(query is not None and bool(query()) for query in queries)


def agree_on_addresses(supported: Sequence[bool]) -> str:
    """Decide whether MPI receives addresses in a GPU's memory. Called once, when the ranks compare their settings.

    Args:
        supported: `can_take_addresses` of each rank. The setting "on" does not ask for it: some MPIs accept addresses
            but have no function that says so.

    Returns:
        A note for the user; "" unless the setting asks for device addresses.
    """
    global _is_agreed
    setting = settings.get_settings().device_pointers
    if setting == "off" or not world.is_active():
        return ""
    obstacle = _find_obstacle()
    if not obstacle and setting == "auto" and not all(supported):
        obstacle = f"the MPI of rank {supported.index(False)} does not say that it takes addresses in a GPU's memory"
    _is_agreed = not obstacle
    if obstacle:
        return f"MATEX_DEVICE_POINTERS={setting} changes nothing: {obstacle}"
    # "At once" means inline.
    return f"MATEX_DEVICE_POINTERS={setting}: MPI is given the addresses of gradients that are reduced at once"


def _find_obstacle() -> str:
    """The reason why gradients must be in host memory; "" if there is none."""
    current_settings = settings.get_settings()
    # Features that need gradients in host memory, and whether this run uses them.
    features = {
        "MATEX_COMPRESSION": current_settings.compression != settings.NO_COMPRESSION,
        "MATEX_STRATEGY": current_settings.strategy not in ("allreduce", "auto"),
        "MATEX_ALGORITHM": current_settings.algorithm not in ("auto", "mpi"),
        "MATEX_CHECK_NUMERICS": current_settings.check_numerics,
        "MATEX_ELASTIC": current_settings.elastic,
        "MATEX_OVERLAP": current_settings.overlap == "on",
        "a plan": world.get_world().is_phantom,  # in `matex plan` the other ranks do not exist
    }
    return next((f"{name} needs gradients in the host's memory" for name, is_used in features.items() if is_used), "")


def replaces_inline(checked: bool) -> bool:
    """Whether an inline update is reduced on the device. `checked`: its gradients are checked for finite values."""
    # The check reads gradients in the host's memory, and XLA has no kernel for the op.
    return _is_agreed and not checked and not overlap.is_for_xla


def reduce_on_device(tensors: Sequence[Any], names: Sequence[str], weight: Any, place: str) -> list[Any]:
    """`ops.reduce_gradients` for gradients in device memory.

    They are scaled by `weight` and summed in device memory. 16-bit floats are converted to float32 before, and back to
    their dtype after the sum.
    """
    wide_tensors = [tf.cast(tensor, tf.float32) if tensor.dtype.size == 2 else tensor for tensor in tensors]
    sums = _sum_scaled(common.scale(wide_tensors, weight), names, weight, place)
    return [tf.cast(reduced, tensor.dtype) for reduced, tensor in zip(sums, tensors)]


def _sum_scaled(tensors: Sequence[Any], names: Sequence[str], weight: Any, place: str) -> list[Any]:
    """The sums over ranks of tensors that are multiplied by their weight already.

    weight: a scalar, or a vector of the weight and the rows of the global batch (`common.make_weight`). The
        op does not multiply by the weight; it reports the rows.
    """
    library = get_library().ops
    return list(
        make_on_device(
            library.matex_reduce_on_device,
            library.matex_keep_order,  # an op that only takes a place in the order of collectives (`make_on_device`)
            gradients=tensors,
            weight=weight,
            names=list(names),
            place=place,
            turn=common.make_turn(),  # the place in the order of collectives, in a v1 graph
        )
    )


def _compute_gradient(op: Any, *gradients: Any) -> list[Any]:
    """The gradients of the op's inputs: the sums over ranks for the tensors, None for the weight."""
    names = [name.decode() for name in op.get_attr("names")]
    # The op sums tensors that are already scaled, so its gradient is a sum with weight 1 (`common`).
    sums = _sum_scaled(gradients, names, common.make_weight(1), common.name_gradient(op))
    return [*sums, None]


common.register_gradient("MatexReduceOnDevice", _compute_gradient)
