"""An engine without TensorFlow for each test: a fresh copy of the library, on communicators of its own."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from matex_tf.ops import build, interface
from matex_tf.ops.library import ALGORITHMS, COMPRESSIONS
from matex_tf.steps import function_calls

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
"""The index is the engine's number of the dtype."""


class Engine:
    """The C interface on NumPy arrays. `reduce` and `meet` return the message of an error, "" without an error."""

    def __init__(
        self,
        path: Path,
        chunk_bytes: int = 1 << 20,
        fuse_bytes: int = 256 << 10,
        algorithm: str = "mpi",
        node: int = 0,
        compression: tuple[str, float] = ("none", 1.0),
        between_nodes: bool = False,
    ):
        self.c = interface.load_library(path)
        self.communicators = [MPI.COMM_WORLD.Dup() for _ in range(3)]
        self.rank, self.size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        handles = [communicator.py2f() for communicator in self.communicators]
        host = f"host{self.rank}".encode()
        kind, share = compression
        sizes = chunk_bytes, fuse_bytes
        numbers = ALGORITHMS.index(algorithm), COMPRESSIONS.index(kind)
        failed = self.c.matex_start(*handles, self.rank, self.size, host, node, *sizes, *numbers, share, between_nodes)
        assert not failed, self.error()

    def error(self) -> str:
        return interface.get_last_error(self.c)

    def meet(self, kind: int, key: int, place: str, size: int = 0, rows: int = 0, exit_code: int = 0) -> str:
        failed = self.c.matex_rendezvous(kind, key, place.encode(), size, rows, exit_code)
        return self.error() if failed else ""

    def reduce(
        self,
        arrays: Sequence[np.ndarray],
        names: Sequence[str],
        weight: float,
        place: str = "a test",
        in_place: bool = False,
        variables: Sequence[int] | None = None,
    ) -> tuple[list[np.ndarray], str]:
        count = len(arrays)
        arrays = [np.array(array) for array in arrays]
        outputs = arrays if in_place else [np.empty_like(array) for array in arrays]
        shapes = [dimension for array in arrays for dimension in array.shape]

        def list_pointers(of: Sequence[np.ndarray]) -> ctypes.Array:
            return (ctypes.c_void_p * count)(*(array.ctypes.data for array in of))

        failed = self.c.matex_reduce(
            count,
            (ctypes.c_char_p * count)(*(name.encode() for name in names)),
            (ctypes.c_int * count)(*([np.dtype(dtype) for dtype in DTYPES].index(array.dtype) for array in arrays)),
            (ctypes.c_int * count)(*(array.ndim for array in arrays)),
            (ctypes.c_int64 * len(shapes))(*shapes),
            (ctypes.c_int64 * count)(*(variables or [0] * count)),
            list_pointers(arrays),
            list_pointers(outputs),
            weight,
            variables is not None,
            place.encode(),
        )
        return outputs, self.error() if failed else ""


@pytest.fixture(autouse=True)
def no_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of functions in these tests are not treated as steps: each rank passes its own tensors on purpose."""
    monkeypatch.setattr(
        function_calls, "call_function", lambda original, function, args, kwargs, _: original(function, *args, **kwargs)
    )


@pytest.fixture(scope="session")
def engine_file() -> Path:
    """The library of the engine, which is built without TensorFlow."""
    return build.ensure_library(build.make_engine_plan())


@pytest.fixture
def make_engine(engine_file: Path, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """A function that makes an engine, with the arguments of `Engine` except for the path. Collective."""
    made: list[Engine] = []

    def make(*arguments: Any, **options: Any) -> Engine:
        # The dynamic linker identifies a library by its file, so a copy has its own sequence and errors.
        copy = tmp_path / f"engine{len(made)}.so"
        shutil.copy(engine_file, copy)
        made.append(Engine(copy, *arguments, **options))
        return made[-1]

    yield make
    for engine in made:
        for communicator in engine.communicators:
            communicator.Free()


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine()
