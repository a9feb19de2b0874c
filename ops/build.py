"""Builds the engine, TensorFlow's ops over it and their XLA kernels, once for each TensorFlow, MPI, compiler, source.

They are three libraries in a cache folder: ranks need the engine before a script imports TensorFlow, and the XLA
kernels take longest and are needed by few scripts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from . import cache
from . import compiler as compilers

SOURCE = Path(__file__).parent / "src"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-w", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX")
# As TensorFlow itself is compiled: the checks for debugging that are in its headers need functions that it lacks.
_XLA_FLAGS = ("-DNDEBUG",)
_XLA_INCLUDES = ("external/highwayhash", "external/farmhash_archive/src")
_XLA_LIBRARY = "libtensorflow_cc.so.2"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What would be built from the rooms of `SOURCE` named, and where it is kept."""

    what: str
    seconds: int
    rooms: tuple[str, ...]
    compiler: compilers.Compiler
    tensorflow: str
    command: tuple[str, ...]
    folder: Path
    key: str

    @property
    def library(self) -> Path:
        return self.folder / f"{self.key}.so"

    @property
    def record(self) -> Path:
        return self.folder / f"{self.key}.json"


def build_ops(verbose: bool = False, engine: Plan | None = None) -> Path:
    """The compiled ops of this TensorFlow and MPI, built now, with the engine, if they are not in the cache.

    `engine` is the build of the engine, if that is known. `verbose` also says so when nothing needs doing, and shows
    the compiler's command. A build takes some 15 seconds.

    Raises:
        cache.BuildError: no compiler, no MPI, nowhere to keep the result, or the compiler's own errors.
    """
    engine = engine or make_engine_plan()
    ensure_library(engine, verbose)
    return ensure_library(make_plan(engine), verbose)


def build_xla(verbose: bool = False) -> Path:
    """The kernels with which XLA compiles functions that hold the ops, built like those, which they need.

    Raises:
        cache.BuildError: as `build_ops`; or this TensorFlow does not come with what they are built from.
    """
    build_ops(verbose)
    return ensure_library(make_xla_plan(), verbose)


def ensure_library(plan: Plan, verbose: bool = False) -> Path:
    """The library of `plan`, built now if it is not in the cache; errors as of `build_ops`."""
    if not is_whole(plan):
        with cache.hold_lock(plan.folder, plan.key, plan.what):
            if not is_whole(plan):
                _compile_plan(plan, verbose)
                return plan.library
    if verbose:
        cache.print_message(f"{plan.what} for {_describe_versions(plan)} are built already")
    return plan.library


def describe_build() -> dict[str, Any]:
    """The state of the build for `matex info`: {"compiler", "MPI", "TensorFlow", "library", "built", "XLA kernels"}.

    Raises:
        cache.BuildError: as `build_ops` does, short of compiling.
    """
    engine = make_engine_plan()
    plan = make_plan(engine)
    is_built = is_whole(engine) and is_whole(plan)
    return {
        "compiler": plan.compiler.path,
        "MPI": compilers.shorten_version(plan.compiler.mpi),
        "TensorFlow": plan.tensorflow,
        "library": str(plan.library),
        "built": "yes" if is_built else "no (at first use, or now by `matex build`)",
        "XLA kernels": _describe_xla(),
    }


def _describe_xla() -> str:
    try:
        return "built" if is_whole(make_xla_plan()) else "not built (at first use, or now by `matex build --xla`)"
    except cache.BuildError as error:
        return str(error)


def make_engine_plan() -> Plan:
    """The build of the engine that this Python, its settings and its environment ask for.

    Raises:
        cache.BuildError: no compiler, no MPI, or no folder to write to.
    """
    try:
        compiler = compilers.find_compiler()
    except (compilers.CompilerError, OSError) as error:
        raise cache.BuildError(f"the TensorFlow ops cannot be built: {error}") from error
    command = (compiler.path, "-x", "c++", "-", f"-I{SOURCE}", *_FLAGS)
    key = _make_key("matex-engine-", compiler.path, compiler.mpi, *_FLAGS, hash_sources())
    return Plan("the engine", 10, ("engine",), compiler, "", command, cache.find_cache_folder(), key)


def make_plan(engine: Plan | None = None) -> Plan:
    """The build of the ops. They use the library of the engine, which lies beside theirs; None: of `make_engine_plan`.

    Raises:
        cache.BuildError: as `make_engine_plan`.
    """
    import tensorflow as tf

    engine = engine or make_engine_plan()
    flags = tf.sysconfig.get_compile_flags()
    command = (*engine.command, *flags, *tf.sysconfig.get_link_flags(), *_list_link_options(engine))
    own_flags = (flag for flag in flags if not flag.startswith("-I"))
    key = _make_key("matex-", tf.version.VERSION, tf.version.GIT_VERSION, *own_flags, engine.key)
    return dataclasses.replace(
        engine,
        what="the ops",
        seconds=15,
        rooms=("tensorflow",),
        tensorflow=tf.version.VERSION,
        command=command,
        key=key,
    )


def make_xla_plan() -> Plan:
    """The build of the XLA kernels. They use the library of the ops, which lies beside theirs.

    Raises:
        cache.BuildError: as `make_plan`; or TensorFlow's folder lacks the library or the headers.
    """
    import tensorflow as tf

    ops = make_plan()
    folder, include = Path(tf.sysconfig.get_lib()), Path(tf.sysconfig.get_include())
    for needed in (folder / _XLA_LIBRARY, include / "tensorflow/compiler/tf2xla/xla_op_kernel.h"):
        if not needed.exists():
            raise cache.BuildError(f"the XLA kernels cannot be built: this TensorFlow comes without {needed}")
    command = (
        *ops.command,
        *_XLA_FLAGS,
        *(f"-I{include / name}" for name in _XLA_INCLUDES),
        f"-L{folder}",
        f"-l:{_XLA_LIBRARY}",
        *_list_link_options(ops),
    )
    key = _make_key("matex-xla-", ops.key, *_XLA_FLAGS)
    return dataclasses.replace(ops, what="the XLA kernels", seconds=30, rooms=("xla",), command=command, key=key)


def _make_key(prefix: str, *parts: str) -> str:
    return prefix + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _list_link_options(plan: Plan) -> tuple[str, ...]:
    """The options to link the library of `plan`, which lies in the same folder."""
    return f"-L{plan.folder}", f"-l:{plan.library.name}", "-Wl,-rpath,$ORIGIN"


def list_source_files(*rooms: str) -> list[Path]:
    """The C++ files that are compiled, in a fixed order; default those of the engine and the ops."""
    return [path for room in rooms or ("engine", "tensorflow") for path in sorted(SOURCE.glob(f"{room}/**/*.cc"))]


def hash_sources() -> str:
    """The hash of all C++ files and headers, with their names."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(SOURCE):  # each rank does so at its start: paths as objects take 10 ms more
        folders.sort()
        for name in sorted(names):
            if name.endswith((".h", ".cc")):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    digest.update(f"{os.path.relpath(path, SOURCE)}\0".encode() + file.read() + b"\0")
    return digest.hexdigest()


def is_whole(plan: Plan) -> bool:
    """Whether the cache holds the library of this plan, undamaged.

    A library enters the cache under its name only when it is whole, and its digest stands beside it. So one whose build
    was killed, or that is damaged, is made anew.
    """
    try:
        if cache.find_exposure(plan.record) or cache.find_exposure(plan.library):
            return False
        record = json.loads(plan.record.read_text())
        return record["digest"] == _hash_file(plan.library)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compile_plan(plan: Plan, verbose: bool) -> None:
    cache.print_message(f"building {plan.what} for {_describe_versions(plan)}, once; this takes some {plan.seconds} s")
    if verbose:
        cache.print_message(" ".join(plan.command))
    for left in plan.folder.glob(f"{plan.key}.*.tmp"):
        left.unlink(missing_ok=True)  # of a build that was killed: we hold the lock
    handle, name = tempfile.mkstemp(prefix=f"{plan.key}.", suffix=".tmp", dir=plan.folder)
    os.close(handle)
    made = Path(name)
    start = time.monotonic()
    try:
        # One unit of all files: the headers of TensorFlow, read once, take most of the time.
        unit = "".join(f'#include "{path.relative_to(SOURCE)}"\n' for path in list_source_files(*plan.rooms))
        code, output = compilers.run_compiler([*plan.command, "-o", str(made)], unit, made)
        if code != 0:
            raise cache.BuildError(_describe_failure(plan, output))
        _keep_library(plan, made)
    finally:
        made.unlink(missing_ok=True)
    if verbose:
        cache.print_message(f"built in {time.monotonic() - start:.1f} s")


def _keep_library(plan: Plan, made: Path) -> None:
    made.chmod(0o755)
    record = made.with_suffix(".json.tmp")
    record.write_text(
        json.dumps(
            {
                "digest": _hash_file(made),
                "TensorFlow": plan.tensorflow,
                "MPI": plan.compiler.mpi,
                "compiler": plan.compiler.path,
                "command": plan.command,
            },
            indent=1,
        )
    )
    record.chmod(0o644)  # whatever the user's mask allows to others
    # The library comes last: until it has its name, the record's digest fits no file.
    os.replace(record, plan.record)
    os.replace(made, plan.library)


def _describe_failure(plan: Plan, output: str) -> str:
    log = plan.folder / f"{plan.key}.log"
    log.write_text(" ".join(plan.command) + "\n" + output)
    errors = [
        line for line in output.splitlines() if "error" in line.lower() or "not found" in line
    ] or output.splitlines()
    return (
        f"{plan.what} cannot be built for {_describe_versions(plan)}: {plan.compiler.path} failed. All of it is in "
        f"{log}; the "
        "first of it:\n"
        + "\n".join(errors[:8])
        + "\nA C++17 compiler is needed (GCC 9 or newer).\n"
        + compilers.HOW_TO_INSTALL
    )


def _describe_versions(plan: Plan) -> str:
    mpi = compilers.shorten_version(plan.compiler.mpi)
    return f"TensorFlow {plan.tensorflow} and {mpi}" if plan.tensorflow else mpi
