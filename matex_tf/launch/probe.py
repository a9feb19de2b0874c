"""Queries of the installed software in child processes. The calling process never joins MPI or loads TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from matex_tf.launch import mpirun_command
from matex_tf.world import child_process, mpirun_options, task_environment

SHARED_BYTES = 16 << 20  # the shared memory that each rank of Open MPI 5 requires

_TIMEOUT = 120  # seconds in which a child must answer

# "path" is the shortest name of a loaded libmpi*, such as libmpi.so.40 beside libmpi_usempif08.so.
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
from matex_tf.launch import built_ops
try:
    ops = built_ops.describe_build()
except (OSError, RuntimeError, ValueError) as error:
    ops = {"error": str(error)}
print(json.dumps({"tensorflow": tf.__version__, "keras": keras_version, "ops": ops,
                  "gpus": [device.name for device in tf.config.list_physical_devices("GPU")]}))
"""


def ask_child(program: str, extra_variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run the Python text `program` in a child, with `extra_variables` in its environment.

    Returns the JSON object in the last line of its output; after a failure {"error": last line of stderr}.
    """
    try:
        environment = {**task_environment.remove_job_variables(os.environ), **(extra_variables or {})}
        command = child_process.make_python_command(program)
        child = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_TIMEOUT} s"}
    lines = child.stdout.strip().splitlines()
    if child.returncode == 0 and lines:
        return json.loads(lines[-1])
    error_lines = child.stderr.strip().splitlines() or [f"the child ended with code {child.returncode}"]
    return {"error": error_lines[-1]}


def find_mpi_library() -> dict[str, Any]:
    """The MPI library that mpi4py loads: "mpi4py" (version), "library" (MPI's version text), "path"; or "error"."""
    return ask_child(MPI_LIBRARY)


def find_thread_level() -> dict[str, Any]:
    """MPI's thread level: "threads" is single, funneled, serialized or multiple; or "error"."""
    # A process that is started without mpirun would leave Open MPI's shared-memory file behind. So shared memory is not
    # among its transports (btl).
    return ask_child(MPI_THREADS, extra_variables={"OMPI_MCA_btl": "self"})


def find_tensorflow() -> dict[str, Any]:
    """The versions "tensorflow" and "keras", the visible "gpus", and the state of the compiled "ops"; or "error"."""
    return ask_child(TENSORFLOW)


def find_mpirun(library: Mapping[str, Any]) -> mpirun_command.Mpirun | None:
    """The mpirun of the MPI that mpi4py loads (`library` from `find_mpi_library`), else any mpirun, else None."""
    needed_library = library.get("library", "")
    first_mpirun = None
    for path in mpirun_command.list_candidates(library.get("path"), os.environ.get("PATH", ""), sys.prefix):
        if not (os.path.isfile(path) and os.access(path, os.X_OK)):
            continue
        environment = task_environment.remove_job_variables(os.environ)
        version_text = subprocess.run([path, "--version"], capture_output=True, text=True, env=environment).stdout
        mpirun = mpirun_command.Mpirun(
            path, mpirun_command.find_family(version_text), mpirun_command.find_version(version_text)
        )
        # `fits` is also True if one family (such as Open MPI) is unknown. Here both must be known.
        if mpirun.family and mpirun_command.find_family(needed_library) and mpirun.fits(needed_library):
            return mpirun
        first_mpirun = first_mpirun or mpirun
    return first_mpirun


def has_memory_for(ranks: int, mpirun: mpirun_command.Mpirun, folder: str = "/dev/shm") -> bool:
    """Whether shared memory suffices for ranks on this machine, and no parameter file of Open MPI chooses a transport.

    If so, ranks on this machine alone are started without network transports (`mpirun_command.NO_NETWORK`). With too
    little shared memory, Open MPI needs the network.
    """
    try:
        free_space = os.statvfs(folder)
    except OSError:
        return False
    if not os.access(folder, os.W_OK) or free_space.f_bavail * free_space.f_frsize < ranks * SHARED_BYTES:
        return False
    # The parameter files are below PREFIX of PREFIX/bin/mpirun, which may be a link to another PREFIX. The options and
    # the environment (here empty) are checked where the command is made (`mpirun_command.choose_options`).
    prefixes = (os.path.dirname(os.path.dirname(path)) for path in (mpirun.path, os.path.realpath(mpirun.path)))
    return not mpirun_options.chooses_transport([], {}, mpirun_options.read_parameter_files(*prefixes))
