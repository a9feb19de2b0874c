"""Loads and starts the engine, once per process, and loads the TensorFlow ops over it.

The engine (`src/engine`) is a C++ library without TensorFlow, so ranks can meet before the script imports TensorFlow,
or without it. The TensorFlow ops ("the ops" in this file) are a second library, which calls the engine.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf import errors, settings
from matex_tf.world import world

from . import build, build_lock, compiler, interface

# The default size of a transfer, by whether there are several nodes: within a node it should stay in the cache, between
# nodes each transfer costs a start-up time.
_CHUNK_BYTES = {False: 1 << 20, True: 8 << 20}
ALGORITHMS = ("auto", "mpi", "ring", "two_level")
"""The values of MATEX_ALGORITHM, indexed by the engine's numbers."""
COMPRESSIONS = ("none", "bf16", "fp16", "topk")
"""The kinds of MATEX_COMPRESSION, indexed by the engine's numbers."""


@dataclass(frozen=True)
class Ops:
    """The loaded library of TensorFlow ops: TensorFlow's module for it, and its C functions."""

    module: Any
    c: ctypes.CDLL


@dataclass(frozen=True)
class Library:
    """The loaded engine and its C functions."""

    c: ctypes.CDLL

    @property
    def ops(self) -> Any:
        """TensorFlow's module for the ops; see `load_tensorflow_ops`."""
        return load_tensorflow_ops().module


on_load: list[Callable[[], None]] = []
"""Called after TensorFlow has loaded the ops."""

_library: Library | None = None
_plan: build.Plan | None = None  # of the engine
_engine: ctypes.CDLL | None = None
_ops: Ops | None = None
_lock = threading.Lock()


def get_library() -> Library:
    """The engine of this process; the first call builds it if necessary, loads it and starts it.

    Raises:
        BuildError: the engine is not built and cannot be built here.
        SetupError: the engine is linked to another MPI than the one that mpi4py has loaded.
    """
    global _library
    if _library is not None:
        return _library  # called in every step
    with _lock:
        if _library is None:
            _start_engine(_load_engine())
            _library = Library(_load_engine())
        return _library


def find_engine() -> ctypes.CDLL | None:
    """The C functions of the engine; None if this process has not started it."""
    return None if _library is None else _library.c


def list_communicators() -> list[int]:
    """The communicators of the engine, in the order of its C functions' arguments, as numbers of Fortran."""
    return [world.get_communicator(name).py2f() for name in ("sequence", "gradients", "overlapped")]


def _load_engine() -> ctypes.CDLL:
    """The engine's library, loaded but not started; the first call builds it if necessary."""
    global _plan, _engine
    if _engine is None:
        build_lock.speaks = world.get_world().rank == 0  # whether this process prints that it waits for a build
        _plan = build.make_engine_plan()
        compiler.load_mpi()
        _engine = _load_file(build.ensure_library(_plan), interface.load_library, OSError)
    return _engine


def load_tensorflow_ops() -> Ops:
    """The ops over the engine; the first call imports TensorFlow, builds the ops if necessary and loads them.

    Raises:
        BuildError: as in `get_library`.
    """
    global _ops
    if _ops is not None:
        return _ops
    import tensorflow as tf

    with _lock:
        if _ops is None:
            _load_engine()  # the dynamic linker resolves the ops against the loaded engine
            path = build.build_ops(engine=_plan)
            module = _load_file(path, tf.load_op_library, tf.errors.OpError)
            for register in on_load:
                register()
            _ops = Ops(module, ctypes.CDLL(str(path)))
        return _ops


def _load_file(path: Path, load: Callable[[str], Any], error_type: type[Exception]) -> Any:
    """The result of `load`. Its error `error_type` becomes a BuildError that names the remedy."""
    try:
        return load(str(path))
    except error_type as error:
        raise errors.BuildError(
            f"the compiled ops {path} cannot be loaded: {error}. Delete that file and try again; it is then rebuilt."
        ) from error


def _start_engine(engine: ctypes.CDLL) -> None:
    """Pass the rank, the communicators and the settings of this process to the engine. Raises SetupError."""
    current_world = world.get_world()
    current_settings = settings.get_settings()
    is_between_hosts = current_settings.compression.between_hosts
    # On one node there are no links between hosts.
    has_no_links = is_between_hosts and not current_world.has_several_nodes
    compression = settings.NO_COMPRESSION if has_no_links else current_settings.compression
    algorithm = current_settings.algorithm
    if current_settings.elastic and algorithm == "auto":
        # For two levels the engine makes communicators that `shrinking.revoke_communicators` does not know: after a
        # loss, a rank could wait in them for ever.
        algorithm = "ring" if current_world.has_several_nodes else "mpi"
    # A process that is no rank has no communicators. Nor has a phantom, which computes as rank 0 of ranks that do not
    # exist (`matex plan`): the engine starts with one rank, and `matex_phantom` sets the number of ranks.
    communicators = [0, 0, 0]
    if world.is_active() and not current_world.is_phantom:
        _check_mpi(engine)
        communicators = list_communicators()
    size = 1 if current_world.is_phantom else current_world.size
    chunk_bytes = current_settings.chunk_bytes or _CHUNK_BYTES[current_world.has_several_nodes]
    setting_numbers = ALGORITHMS.index(algorithm), COMPRESSIONS.index(compression.kind)
    has_failed = engine.matex_start(
        *communicators, current_world.rank, size, current_world.host.encode(), current_world.node, chunk_bytes,
        current_settings.fuse_bytes, *setting_numbers, compression.share, is_between_hosts,
    )  # fmt: skip
    if has_failed:
        raise errors.SetupError(f"the engine cannot start: {interface.get_last_error(engine)}.")
    if current_world.is_phantom:
        engine.matex_phantom(current_world.size)


def _check_mpi(engine: ctypes.CDLL) -> None:
    """Raise SetupError unless the engine and mpi4py use the same MPI."""
    from mpi4py import MPI

    loaded_libraries = interface.list_mapped_mpi_libraries()
    engine_version = engine.matex_mpi_version().decode(errors="replace").strip()
    mpi4py_version = MPI.Get_library_version().strip("\0 \n")
    if len(loaded_libraries) > 1 or engine_version != mpi4py_version:
        raise errors.SetupError(
            f"two MPI libraries are in this process: mpi4py has loaded {mpi4py_version!r}, the ops are linked to "
            f"{engine_version!r} ({', '.join(loaded_libraries)}). Build both with the same MPI: set MPICXX to the "
            "mpicxx of the one that mpi4py uses, or reinstall mpi4py (`pip install --force-reinstall --no-cache-dir "
            "mpi4py`) with that MPI's mpicc first on PATH."
        )
