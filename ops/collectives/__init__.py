"""The collectives as functions on tensors, in eager code and in graphs.

Each file has the same structure: check of arguments, op, gradient, registration with TensorFlow.
"""

from .allgather import allgather, allgather_rows
from .allreduce import allreduce
from .barrier import barrier
from .broadcast import broadcast
from .common import DTYPES
from .reduce_gradients import make_weight, reduce_gradients, reduce_inline
from .reduce_on_device import agree_on_addresses, can_take_addresses

__all__ = [
    "DTYPES",
    "OP_TYPES",
    "agree_on_addresses",
    "allgather",
    "allgather_rows",
    "allreduce",
    "barrier",
    "broadcast",
    "can_take_addresses",
    "make_weight",
    "reduce_gradients",
    "reduce_inline",
]

OP_TYPES = (
    "MatexAllreduce", "MatexBroadcast", "MatexAllgather", "MatexBarrier", "MatexReduceGradients", "MatexReduceOnDevice",
)  # fmt: skip
"""The types of the collective ops in graphs. In v1 graphs each op has its own `turn`, in order of creation."""
