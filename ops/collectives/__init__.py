"""The collectives as functions on tensors, in eager code and in graphs.

`on_tensors` has the collectives on one tensor. `reduce_gradients` sums the gradients of an update: by an op that sums
at once, by overlapped ops (`overlap`), or by `reduce_on_device` on a GPU. `common` serves both files.
"""

OP_TYPES = (
    "MatexAllreduce", "MatexBroadcast", "MatexAllgather", "MatexBarrier", "MatexReduceGradients", "MatexReduceOnDevice",
)  # fmt: skip
"""The types of the collective ops in graphs. In a v1 graph each op has a number, the attribute `turn`. All ranks run
the ops in the order of these numbers, which is the order of creation."""
