"""Data-parallel TensorFlow over MPI for scripts that know nothing of it.

`import matex_tf` at the top of a script, or `python -m matex_tf script.py` with no change to it, and the script run as
`mpirun -n 16 python script.py` trains on 16 ranks and follows the loss curve that it has alone.
"""

from __future__ import annotations

from typing import Any

from matex_tf import attach
from matex_tf.version import __version__

__all__ = [
    "__version__",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "is_active",
    "local_rank",
    "local_size",
    "rank",
    "report",
    "shard",
    "size",
]

attach.attach()

from matex_tf.api import (  # noqa: E402  (TensorFlow's threads are placed before it is imported)
    allgather,
    allreduce,
    barrier,
    broadcast,
    is_active,
    local_rank,
    local_size,
    rank,
    report,
    shard,
    size,
)

_DEPLOYING = {"Kubernetes": "make_kubernetes", "Slurm": "make_slurm"}


def __getattr__(name: str) -> Any:
    """What starts other runs is not loaded in those that train."""
    import importlib

    if name in ("launch", "tune"):  # packages, which are functions, too
        return importlib.import_module(f"matex_tf.{name}")
    if name in _DEPLOYING:
        return getattr(importlib.import_module("matex_tf.deploy.python"), _DEPLOYING[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
