"""Collectives on tensors: compiled TensorFlow ops over an MPI engine, their loader and their build."""

from __future__ import annotations

from . import records
from .cache import BuildError
from .collectives import (
    DTYPES,
    OP_TYPES,
    allgather,
    allgather_rows,
    allreduce,
    barrier,
    broadcast,
    reduce_gradients,
)
from .handles import let_go, pass_turn
from .library import (
    MismatchError,
    Waiting,
    content_hash,
    count,
    exchanging,
    expect,
    library,
    rendezvous,
    rows,
    seconds,
    start_again,
    tensorflow_ops,
    waiting,
)

__all__ = [
    "DTYPES",
    "OP_TYPES",
    "BuildError",
    "MismatchError",
    "Waiting",
    "allgather",
    "allgather_rows",
    "allreduce",
    "barrier",
    "broadcast",
    "content_hash",
    "count",
    "exchanging",
    "expect",
    "let_go",
    "library",
    "pass_turn",
    "records",
    "reduce_gradients",
    "rendezvous",
    "rows",
    "seconds",
    "start_again",
    "tensorflow_ops",
    "waiting",
]
