"""What is installed here, found out in child processes: the asking process never joins MPI or loads TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from . import launch

LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_LAUNCHED", "HYDI_", "HYDRA_", "MPI_LOCAL", "SLURM_")

MPI_LIBRARY = """
import json, os, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
paths = {line.split(None, 5)[-1].strip() for line in open("/proc/self/maps") if "/libmpi" in line}
print(json.dumps({"mpi4py": mpi4py.__version__, "library": MPI.Get_library_version().strip("\\0 \\n"),
                  "path": min(paths, key=len, default=None)}))
"""

MPI_THREADS = """
import json, mpi4py
from mpi4py import MPI
names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized",
         MPI.THREAD_MULTIPLE: "multiple"}
print(json.dumps({"threads": names[MPI.Query_thread()]}))
"""

TENSORFLOW = """
import json, os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
try:
    import keras
    keras_version = keras.__version__
except ImportError:
    keras_version = None
from matex_tf.ops import build
try:
    ops = build.status()
except (OSError, RuntimeError, ValueError) as error:
    ops = {"error": str(error)}
print(json.dumps({"tensorflow": tf.__version__, "keras": keras_version, "ops": ops,
                  "gpus": [device.name for device in tf.config.list_physical_devices("GPU")]}))
"""


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` less what an MPI launcher told this task, so that a child is a world of its own."""
    keep = ("OMPI_MCA_", "OMPI_ALLOW_", "SLURM_CONF")
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(LAUNCHER_PREFIXES) or name.startswith(keep)
    }


def ask(program: str, timeout: float = 120) -> dict[str, Any]:
    """The JSON that the Python text `program` prints last in a child; on failure {"error": its last line of stderr}."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", program],
            env=without_launcher(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout:.0f} s"}
    lines = child.stdout.strip().splitlines()
    if child.returncode == 0 and lines:
        return json.loads(lines[-1])
    complaint = child.stderr.strip().splitlines() or [f"the child ended with code {child.returncode}"]
    return {"error": complaint[-1]}


def mpi_library() -> dict[str, Any]:
    """The MPI library that mpi4py loads: "mpi4py" (its version), "library" (its own words), "path"; or "error"."""
    return ask(MPI_LIBRARY)


def mpi_threads() -> dict[str, Any]:
    """The thread level that MPI gives: "threads" is single, funneled, serialized or multiple; or "error"."""
    return ask(MPI_THREADS)


def tensorflow() -> dict[str, Any]:
    """Versions "tensorflow", "keras", the list "gpus" that it sees, and "ops", the state of their build; or "error"."""
    return ask(TENSORFLOW)


def find_mpirun(library: Mapping[str, Any]) -> launch.Mpirun | None:
    """The mpirun of the MPI that mpi4py loads (`library` as given by `mpi_library`); None if there is none at all."""
    wanted = launch.family_of(library.get("library", ""))
    first = None
    for path in launch.candidates(library.get("path"), os.environ.get("PATH", ""), sys.prefix):
        if not (os.path.isfile(path) and os.access(path, os.X_OK)):
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, env=without_launcher(os.environ))
        mpirun = launch.Mpirun(path, launch.family_of(answer.stdout), launch.version_of(answer.stdout))
        if mpirun.family and mpirun.family == wanted:
            return mpirun
        first = first or mpirun
    return first
