"""The compiled engine in this process, loaded once and started, its C functions as Python's; and the ops over it.

The engine needs no TensorFlow, so that ranks can meet before the script imports that, or without.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matex_tf import errors, settings
from matex_tf.world import world

from . import build, cache, compiler, interface
from .interface import list_mapped_mpi_libraries

# An MPI has further libraries (libmpi_cxx, libmpi_mpifh); these names are of the one that is the MPI.
_BLOCK_BYTES = 64 << 20
_CHUNK_BYTES = {False: 1 << 20, True: 8 << 20}  # on one node; between nodes
_COMMUNICATORS = ("sequence", "gradients", "overlapped")
_KINDS = 9  # of collectives, from 0
ALGORITHMS = ("auto", "mpi", "ring", "two_level")
COMPRESSIONS = ("none", "bf16", "fp16", "topk")
"""By the engine's numbers of them."""


@dataclass(frozen=True)
class Ops:
    """The loaded library of the ops: TensorFlow's module of them, and its own C functions."""

    module: Any
    c: ctypes.CDLL


@dataclass(frozen=True)
class Library:
    """The loaded engine, as C functions."""

    c: ctypes.CDLL

    @property
    def ops(self) -> Any:
        """TensorFlow's module of the ops; see `load_tensorflow_ops`."""
        return load_tensorflow_ops().module


on_load: list[Callable[[], None]] = []
"""Called once TensorFlow has loaded the ops."""

_library: Library | None = None
_plan: build.Plan | None = None  # of the engine
_engine: ctypes.CDLL | None = None
_ops: Ops | None = None
_lock = threading.Lock()


def get_library() -> Library:
    """The engine of this process; the first call builds it if need be, loads it and starts it.

    Raises:
        BuildError: nobody has built it, and it cannot be built here.
        SetupError: the engine is linked to another MPI than the one that mpi4py has loaded.
    """
    global _library
    if _library is not None:
        return _library  # it is asked for in every step
    with _lock:
        if _library is None:
            _start_engine(_load_engine())
            _library = Library(_load_engine())
        return _library


def _load_engine() -> ctypes.CDLL:
    global _plan, _engine
    if _engine is None:
        cache.speaks = world.get_world().rank == 0
        _plan = build.make_engine_plan()
        compiler.load_mpi()
        _engine = _load_file(build.ensure_library(_plan), interface.load_library, OSError)
    return _engine


def load_tensorflow_ops() -> Ops:
    """The ops over the engine; the first call imports TensorFlow, builds them if need be and loads them.

    Raises:
        BuildError: as `get_library`.
    """
    global _ops
    if _ops is not None:
        return _ops
    import tensorflow as tf

    with _lock:
        if _ops is None:
            _load_engine()  # the ops find it among what is loaded
            path = build.build_ops(engine=_plan)
            module = _load_file(path, tf.load_op_library, tf.errors.OpError)
            for register in on_load:
                register()
            _ops = Ops(module, ctypes.CDLL(str(path)))
        return _ops


def _load_file(path: Path, load: Callable[[str], Any], failure: type[Exception]) -> Any:
    try:
        return load(str(path))
    except failure as error:
        raise errors.BuildError(
            f"the compiled ops {path} cannot be loaded: {error}. Delete that file and try again; it is then rebuilt."
        ) from error


def restart_engine(agree: Callable[[list[int]], list[int]]) -> None:
    """Go on with the ranks that are left, of which the world knows already; `agree` gives the largest of all ranks."""
    c = get_library().c
    number, *counts = agree([read_waiting().number, *(c.matex_count(kind) for kind in range(_KINDS))])
    here = world.get_world()
    communicators = [world.get_communicator(name).py2f() for name in _COMMUNICATORS]
    counted = (ctypes.c_int64 * _KINDS)(*counts)
    if c.matex_start_again(*communicators, here.rank, here.size, here.node, number, counted):
        raise errors.SetupError(f"the engine cannot go on: {interface.get_last_error(c)}.")


def _start_engine(c: ctypes.CDLL) -> None:
    here = world.get_world()
    chosen = settings.get_settings()
    between_nodes = chosen.compression.between_hosts
    # Within one node there are no links between hosts.
    compression = settings.NO_COMPRESSION if between_nodes and not here.has_several_nodes else chosen.compression
    algorithm = chosen.algorithm
    if chosen.elastic and algorithm == "auto":
        # In sums in two levels ranks would wait for others than the one that is lost.
        algorithm = "ring" if here.has_several_nodes else "mpi"
    communicators = [0, 0, 0]
    if world.is_active() and not here.is_phantom:
        _check_mpi(c)
        communicators = [world.get_communicator(name).py2f() for name in _COMMUNICATORS]
    failed = c.matex_start(
        *communicators,
        here.rank,
        1 if here.is_phantom else here.size,
        here.host.encode(),
        here.node,
        chosen.chunk_bytes or _CHUNK_BYTES[here.has_several_nodes],
        chosen.fuse_bytes,
        ALGORITHMS.index(algorithm),
        COMPRESSIONS.index(compression.kind),
        compression.share,
        between_nodes,
    )
    if failed:
        raise errors.SetupError(f"the engine cannot start: {interface.get_last_error(c)}.")
    if here.is_phantom:
        c.matex_phantom(here.size)


def _check_mpi(c: ctypes.CDLL) -> None:
    from mpi4py import MPI

    loaded = list_mapped_mpi_libraries()
    ours = c.matex_mpi_version().decode(errors="replace").strip()
    theirs = MPI.Get_library_version().strip("\0 \n")
    if len(loaded) > 1 or ours != theirs:
        raise errors.SetupError(
            f"two MPI libraries are in this process: mpi4py has loaded {theirs!r}, the ops are linked to {ours!r} "
            f"({', '.join(loaded)}). Build both with the same MPI: set MPICXX to the mpicxx of the one that mpi4py "
            "uses, or reinstall mpi4py (`pip install --force-reinstall --no-cache-dir mpi4py`) with that MPI's mpicc "
            "first on PATH."
        )


def rendezvous(kind: int, key: int, what: str, size: int = 0, rows: int = 0) -> None:
    """Meet the other ranks as number n of the one sequence of collectives; nothing in a world of one.

    Args:
        kind: what comes now: 6 a control message, 7 the end of the script, 8 an error that a step has raised on this
            rank (the ops' own kinds are 1 to 5).
        key: what all ranks must agree on, as 64 bits.
        what: for people, where in the program this is.
        size: the bytes that this rank is about to give, for the record of events.
        rows: of the batch that this is for, 0 if it is for none: told where ranks meet at different places.

    Raises:
        MismatchError: on every rank, if ranks meet at different kinds or keys, and from then on always; once, where all
            others are within a step that has failed here.
    """
    if not world.is_active():
        return
    c = get_library().c
    if c.matex_rendezvous(kind, key & 0xFFFFFFFFFFFFFFFF, what.encode(), size, rows):
        raise errors.MismatchError(interface.get_last_error(c))


def count_completed(kind: int) -> int:
    """How many collectives of `kind` this process has completed: 1 gradients, 2 allreduce, 3 broadcast, 4 allgather,
    5 barrier, 6 control, 7 exit; and 8 meetings after a step had failed on some. Always 0 in a world of one.
    """
    return get_library().c.matex_count(kind) if world.is_active() and _library is not None else 0


def count_global_rows() -> int:
    """Rows of the global batches of all updates so far; an update of a batch that nobody sliced adds none."""
    return get_library().c.matex_rows() if world.is_active() and _library is not None else 0


def get_collective_seconds(kind: int) -> float:
    """How long collectives of `kind` (as in `count_completed`) took this process, with the time that it waited for the
    others.
    """
    return get_library().c.matex_seconds(kind) if world.is_active() and _library is not None else 0.0


def get_blocked_seconds() -> float:
    """How long this process waited for other ranks and for sums while no gradient of its own came."""
    return get_library().c.matex_blocked_seconds() if world.is_active() and _library is not None else 0.0


@dataclass(frozen=True)
class Waiting:
    """Where this process is in the sequence of collectives: the number of the next, or of the one that it waits at,
    how long it has waited there, and where in the program that is.
    """

    number: int
    seconds: float = 0.0
    what: str = ""


def read_failure() -> str:
    """Why all later collectives fail; empty where they do not. It waits for a collective of another thread."""
    c = get_library().c
    return interface.get_last_error(c) if c.matex_failure() else ""


def read_waiting() -> Waiting:
    """Where this process waits for other ranks, asked from any thread."""
    if _library is None:
        return Waiting(0)
    seconds, number, text = ctypes.c_double(), ctypes.c_int64(), ctypes.create_string_buffer(512)
    if get_library().c.matex_waiting(ctypes.byref(seconds), ctypes.byref(number), text, len(text)):
        return Waiting(number.value, seconds.value, text.value.decode(errors="replace"))
    return Waiting(number.value)


@contextlib.contextmanager
def announce_exchange(what: str) -> Iterator[None]:
    """Within it this process exchanges objects with all others, for which it may have to wait."""
    c = get_library().c
    c.matex_wait(what.encode())
    try:
        yield
    finally:
        c.matex_go_on()


def announce_turns(turns: Sequence[int]) -> None:
    """Announce the collectives of the v1 run about to start, by their attribute `turn`, in the order all ranks use.

    One that becomes ready before its turn waits without holding a thread. An empty list ends the waiting: whatever
    still waits then is cancelled.
    """
    if world.is_active():
        get_library().c.matex_expect((ctypes.c_int64 * len(turns))(*turns), len(turns))


def hash_content(array: Any, seed: int = 0) -> int:
    """A 64-bit hash of an array's dtype, shape and bytes, at memory speed; not against malice.

    Raises:
        TypeError: for arrays of Python objects, which have no bytes of their own.
    """
    import numpy as np

    array = np.asarray(array)
    if array.dtype.hasobject:
        raise TypeError(f"hash_content: expected an array of numbers or fixed-size strings, not dtype {array.dtype}")
    function = get_library().c.matex_hash
    header = f"{array.dtype.str} {array.dtype.name} {array.shape}".encode()
    value = function(header, len(header), seed & 0xFFFFFFFFFFFFFFFF)
    if array.size == 0:
        return value
    # By blocks of rows: an array that does not lie in one piece is copied block by block, not whole.
    rows = array.reshape(1) if array.ndim == 0 else array
    step = max(1, _BLOCK_BYTES // max(1, rows.nbytes // len(rows)))
    for start in range(0, len(rows), step):
        block = np.ascontiguousarray(rows[start : start + step])
        value = function(block.ctypes.data, block.nbytes, value)
    return value
