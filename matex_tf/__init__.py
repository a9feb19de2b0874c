"""Data-parallel TensorFlow over MPI for scripts that know nothing of it.

`import matex_tf` at the top of a script, or `python -m matex_tf script.py` with no change to it, and the script run as
`mpirun -n 16 python script.py` trains on 16 ranks and follows the loss curve that it has alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

_ABOVE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if all(os.path.isfile(os.path.join(_ABOVE, part, "PART_OF_MATEX_TF")) for part in ("ops", "readers")):
    # In a checkout they stand beside this package, in an install within it.
    __path__.append(_ABOVE)

from matex_tf import attach  # noqa: E402
from matex_tf.errors import (  # noqa: E402
    BatchError,
    BuildError,
    LostRankError,
    MatexError,
    MismatchError,
    RankError,
    ReaderError,
    SettingError,
    SetupError,
    UnsupportedError,
)
from matex_tf.version import __version__  # noqa: E402

__all__ = [
    "BatchError",
    "BuildError",
    "LostRankError",
    "MatexError",
    "MismatchError",
    "RankError",
    "ReaderError",
    "SettingError",
    "SetupError",
    "UnsupportedError",
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

attach.attach_runtime()

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

if TYPE_CHECKING:  # what editors and type checkers see; these come by __getattr__
    from matex_tf.deploy.kubernetes import Kubernetes as Kubernetes
    from matex_tf.deploy.python import launch as launch
    from matex_tf.deploy.queues.flux import Flux as Flux
    from matex_tf.deploy.queues.lsf import LSF as LSF
    from matex_tf.deploy.queues.pbs import PBS as PBS
    from matex_tf.deploy.sbatch.job_script import Slurm as Slurm
    from matex_tf.tune.python import tune as tune

_CLUSTERS = ("Flux", "Kubernetes", "LSF", "PBS", "Slurm")


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLUSTERS, "launch", "tune"})


def __getattr__(name: str) -> Any:
    """What starts other runs is not loaded in those that train."""
    import importlib

    if name in ("launch", "tune"):  # packages, which are functions, too
        return importlib.import_module(f"matex_tf.{name}")
    if name in _CLUSTERS:
        return importlib.import_module("matex_tf.deploy.python").MAKERS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
