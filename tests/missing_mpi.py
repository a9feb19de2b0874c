"""An mpi4py whose MPI cannot be loaded, as after `module purge`: for a Python that finds it first."""

from __future__ import annotations

from pathlib import Path

SAID = {
    "linked": "raise ImportError('libmpi.so.40: cannot open shared object file: No such file or directory')",
    "looked for": "raise RuntimeError('cannot load MPI library\\n/apps/libmpi.so.40: cannot open shared object file')",
    "not installed": "",
}
"""What it raises, by how this mpi4py finds its MPI. The last has no mpi4py at all."""


def write_package(folder: Path, how: str) -> Path:
    """`folder`, for PYTHONPATH."""
    package = folder / "mpi4py"
    package.mkdir(parents=True)
    missing = "raise ModuleNotFoundError(\"No module named 'mpi4py'\")"
    (package / "__init__.py").write_text("class rc: initialize = finalize = True\n" if SAID[how] else missing)
    (package / "MPI.py").write_text(SAID[how])
    return folder


def is_told(text: str, how: str) -> bool:
    """Whether one line of `text` says what was expected, what was found, and what to do."""
    found = {"linked": "libmpi.so.40", "looked for": "/apps/libmpi.so.40", "not installed": "found none"}[how]
    lines = [line for line in text.splitlines() if "expected" in line and found in line]
    return len(lines) == 1 and "pip install" in lines[0] and "module load" in lines[0]
