"""Data-parallel TensorFlow over MPI for scripts that know nothing of it.

Add `import matex_tf` at the top of a script, or run the script by `python -m matex_tf script.py`. Under `mpirun -n 16`
it then trains on 16 ranks, with the same loss curve as on one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# In a checkout, the subpackages ops and readers are next to this folder; in an installed package they are within it.
# The marker file tells them from unrelated folders with these names.
_PARENT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if all(os.path.isfile(os.path.join(_PARENT, name, "PART_OF_MATEX_TF")) for name in ("ops", "readers")):
    __path__.append(_PARENT)

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
    "BatchError", "BuildError", "LostRankError", "MatexError", "MismatchError", "RankError", "ReaderError",
    "SettingError", "SetupError", "UnsupportedError", "__version__", "allgather", "allreduce", "barrier", "broadcast",
    "is_active", "local_rank", "local_size", "rank", "report", "shard", "size",
]  # fmt: skip

attach.attach_runtime()

from matex_tf.api import (  # noqa: E402  (`attach_runtime` sets cores and threads before TensorFlow is imported)
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

if TYPE_CHECKING:  # for editors and type checkers; `__getattr__` loads these at first use
    from matex_tf.deploy.kubectl.mpijob import Kubernetes as Kubernetes
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
    """Loads functions and classes that start other runs at their first use, as scripts that train need none of them."""
    import importlib

    if name in ("launch", "tune"):  # packages that are also functions (`callable_package`)
        return importlib.import_module(f"matex_tf.{name}")
    if name in _CLUSTERS:
        return importlib.import_module("matex_tf.deploy.python").MAKERS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
