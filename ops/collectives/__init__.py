"""The collectives as functions on tensors, in eager code and in graphs.

Each file has the same structure: check of arguments, op, gradient, registration with TensorFlow.
"""

OP_TYPES = (
    "MatexAllreduce", "MatexBroadcast", "MatexAllgather", "MatexBarrier", "MatexReduceGradients", "MatexReduceOnDevice",
)  # fmt: skip
"""The types of the collective ops in graphs. In a v1 graph each op has a number, the attribute `turn`. All ranks run
the ops in the order of these numbers, which is the order of creation."""
