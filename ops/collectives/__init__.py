"""The collectives as functions on tensors, in eager code and in graphs.

Each file has the same structure: check of arguments, op, gradient, registration with TensorFlow.
"""

OP_TYPES = (
    "MatexAllreduce", "MatexBroadcast", "MatexAllgather", "MatexBarrier", "MatexReduceGradients", "MatexReduceOnDevice",
)  # fmt: skip
"""The types of the collective ops in graphs. In v1 graphs each op has its own `turn`, in order of creation."""
