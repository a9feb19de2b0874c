"""Whether sharing a step pays: it has work that becomes less with fewer rows."""

from __future__ import annotations

from matex_tf.rewrite.programs import Program

_HEAVY = "MatMul Conv Einsum RNN Fft Cholesky Svd Qr Pool CropAndResize NonMaxSuppression".split()
"""Substrings of the types of expensive ops."""


def has_shared_work(program: Program) -> bool:
    """Whether an expensive op, compared with the transfer of its tensors, computes this rank's rows only."""
    return any(
        (node.has_rows and any(name in node.type for name in _HEAVY)) or any(map(has_shared_work, node.bodies))
        for node in program.nodes
    )
