"""Loads and starts the engine, once per process; wraps its C functions; and loads the TensorFlow ops over it.

The engine (`src/engine`) is a C++ library without TensorFlow, so ranks can meet before the script imports TensorFlow,
or without it. The TensorFlow ops ("the ops" in this file) are a second library, which calls the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf import errors, settings
from matex_tf.world import world

from . import build, cache, compiler, interface
from .interface import list_mapped_mpi_libraries

_HASH_BLOCK_BYTES = 64 << 20
# The default size of a transfer, by whether there are several nodes: within a node it should stay in the cache, between
# nodes each transfer costs a start-up time.
_CHUNK_BYTES = {False: 1 << 20, True: 8 << 20}
_COMMUNICATORS = ("sequence", "gradients", "overlapped")  # of the engine, in the order of its C functions' arguments
GRADIENTS = 1
"""The kind of collectives that sum the gradients of an update (`count_completed`)."""
_KINDS = 9  # kinds of collectives are numbers from 1 to 8 (`count_completed` names them); 0 is unused
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


def _load_engine() -> ctypes.CDLL:
    """The engine's library, loaded but not started; the first call builds it if necessary."""
    global _plan, _engine
    if _engine is None:
        cache.speaks = world.get_world().rank == 0  # whether this process prints that it waits for a build
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


def restart_engine(agree: Callable[[list[int]], list[int]]) -> None:
    """Continue with the remaining ranks after a loss. Collective; the world already contains only these ranks.

    The remaining ranks may have completed different numbers of collectives. All continue with the greatest numbers.

    `agree`: takes a list of numbers on each rank; returns the maximum over ranks of each entry.
    """
    engine = get_library().c
    # The number of the current collective, and the completed collectives of each kind.
    number, *counts = agree([read_waiting().number, *(engine.matex_count(kind) for kind in range(_KINDS))])
    current_world = world.get_world()
    communicators = [world.get_communicator(name).py2f() for name in _COMMUNICATORS]
    completed_counts = (ctypes.c_int64 * _KINDS)(*counts)
    if engine.matex_start_again(
        *communicators, current_world.rank, current_world.size, current_world.node, number, completed_counts
    ):
        raise errors.SetupError(f"the engine cannot continue: {interface.get_last_error(engine)}.")


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
        # For two levels the engine makes communicators that `world.revoke_communicators` does not know: after a loss, a
        # rank could wait in them for ever.
        algorithm = "ring" if current_world.has_several_nodes else "mpi"
    # A process that is no rank has no communicators. Nor has a phantom, which computes as rank 0 of ranks that do not
    # exist (`matex plan`): the engine starts with one rank, and `matex_phantom` sets the number of ranks.
    communicators = [0, 0, 0]
    if world.is_active() and not current_world.is_phantom:
        _check_mpi(engine)
        communicators = [world.get_communicator(name).py2f() for name in _COMMUNICATORS]
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

    loaded_libraries = list_mapped_mpi_libraries()
    engine_version = engine.matex_mpi_version().decode(errors="replace").strip()
    mpi4py_version = MPI.Get_library_version().strip("\0 \n")
    if len(loaded_libraries) > 1 or engine_version != mpi4py_version:
        raise errors.SetupError(
            f"two MPI libraries are in this process: mpi4py has loaded {mpi4py_version!r}, the ops are linked to "
            f"{engine_version!r} ({', '.join(loaded_libraries)}). Build both with the same MPI: set MPICXX to the "
            "mpicxx of the one that mpi4py uses, or reinstall mpi4py (`pip install --force-reinstall --no-cache-dir "
            "mpi4py`) with that MPI's mpicc first on PATH."
        )


def rendezvous(kind: int, key: int, place: str, size: int = 0, rows: int = 0, exit_code: int = 0) -> None:
    """Meet the other ranks at the next number of the sequence of collectives. No effect if this process is no rank.

    Args:
        kind: 6: control message, 7: end of the script, 8: a step has raised an error on this rank. TensorFlow ops use 1
            to 5 (see `count_completed`).
        key: the 64 bits on which all ranks must agree.
        place: the place in the program, for messages.
        size: the bytes that this rank contributes, for recorded events.
        rows: the rows of the batch that the collective is for; 0: none. Reported if ranks are at different places.
        exit_code: of the script, at its end.

    Raises:
        MismatchError: on every rank, if ranks meet with different kinds or keys, and at every later rendezvous; only
            once if a step has failed here and all other ranks are within a step.
    """
    if not world.is_active():
        return
    engine = get_library().c
    if engine.matex_rendezvous(kind, key & 0xFFFFFFFFFFFFFFFF, place.encode(), size, rows, exit_code):
        raise errors.MismatchError(interface.get_last_error(engine))


def _has_engine() -> bool:
    """Whether this process is a rank, perhaps the only one, and has started its engine."""
    return world.is_active() and _library is not None


def count_completed(kind: int) -> int:
    """The number of completed collectives of `kind`: 1 `GRADIENTS`, 2 allreduce, 3 broadcast, 4 allgather, 5 barrier,
    6 control, 7 exit; 8: rendezvous after a step had failed on some ranks. 0 if this process is no rank.
    """
    return get_library().c.matex_count(kind) if _has_engine() else 0


def count_global_rows() -> int:
    """The rows of the global batches of all updates so far; an update whose batch was not sliced adds none."""
    return get_library().c.matex_rows() if _has_engine() else 0


def get_collective_seconds(kind: int) -> float:
    """The seconds that collectives of `kind` (see `count_completed`) took this process, with the wait for others."""
    return get_library().c.matex_seconds(kind) if _has_engine() else 0.0


def get_blocked_seconds() -> float:
    """The seconds that this process waited for other ranks or sums while no gradient was computed."""
    return get_library().c.matex_blocked_seconds() if _has_engine() else 0.0


@dataclass(frozen=True)
class Waiting:
    """The position of this process in the sequence of collectives."""

    number: int  # of the collective whose rendezvous is under way or comes next
    seconds: float = 0.0  # that this process has waited there
    what: str = ""  # the place in the program; "": it does not wait


def read_failure() -> str:
    """Why all later collectives fail; "" if they do not. Blocks while another thread is in a collective."""
    engine = get_library().c
    return interface.get_last_error(engine) if engine.matex_failure() else ""


class Cause(enum.IntEnum):
    """The cause of an error."""

    OTHER = 0
    MPI = 1
    """An MPI call of the engine has failed in this process, usually because another rank was lost."""
    ELSEWHERE = 2
    """Another rank has raised the error that is the cause."""
    ENDED = 3
    """A rank has ended its script with an exit code other than 0 while others go on."""


def find_cause(text: str) -> Cause:
    """The cause of the engine's error whose message `text` contains. Never blocks."""
    return Cause.OTHER if _library is None else Cause(_library.c.matex_cause(text.encode(errors="replace")))


def read_waiting() -> Waiting:
    """Where this process waits for other ranks. Any thread may call it."""
    if _library is None:
        return Waiting(0)
    seconds, number, place = ctypes.c_double(), ctypes.c_int64(), ctypes.create_string_buffer(512)
    if get_library().c.matex_waiting(ctypes.byref(seconds), ctypes.byref(number), place, len(place)):
        return Waiting(number.value, seconds.value, place.value.decode(errors="replace"))
    return Waiting(number.value)


@contextlib.contextmanager
def announce_exchange(place: str) -> Iterator[None]:
    """Within it, `read_waiting` tells that this process exchanges Python objects with all ranks and may wait for them.

    `place`: the place in the program, for `read_waiting`.
    """
    engine = get_library().c
    engine.matex_wait(place.encode())
    try:
        yield
    finally:
        engine.matex_go_on()


def announce_turns(turns: Sequence[int]) -> None:
    """Announce the collectives of the next v1 run by their attribute `turn` (`handles.py`), in the order that all ranks
    use.

    A collective that is ready before its turn waits without holding a thread. An empty list ends the run: collectives
    that still wait are cancelled.
    """
    if world.is_active():
        get_library().c.matex_expect((ctypes.c_int64 * len(turns))(*turns), len(turns))


def hash_content(array: Any, seed: int = 0) -> int:
    """A 64-bit hash of an array's dtype, shape and bytes, at memory speed; not cryptographic.

    Raises:
        TypeError: the array contains Python objects, which have no bytes of their own.
    """
    import numpy as np

    array = np.asarray(array)
    if array.dtype.hasobject:
        raise TypeError(f"hash_content: expected an array of numbers or fixed-size strings, not dtype {array.dtype}")
    hash_bytes = get_library().c.matex_hash
    header = f"{array.dtype.str} {array.dtype.name} {array.shape}".encode()
    hash_value = hash_bytes(header, len(header), seed & 0xFFFFFFFFFFFFFFFF)
    if array.size == 0:
        return hash_value
    # In blocks of rows: an array that is not contiguous is copied, but only one block at a time.
    rows = array.reshape(1) if array.ndim == 0 else array
    block_rows = max(1, _HASH_BLOCK_BYTES // max(1, rows.nbytes // len(rows)))
    for start in range(0, len(rows), block_rows):
        block = np.ascontiguousarray(rows[start : start + block_rows])
        hash_value = hash_bytes(block.ctypes.data, block.nbytes, hash_value)
    return hash_value
