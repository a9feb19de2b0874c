"""Sums over ranks by the engine, without TensorFlow: expected values, and equal bits on all ranks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import signal
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
BFLOAT16 = ml_dtypes.bfloat16

SHAPES = ((3, 5), (), (0,), (1,), (64, 33), (2, 0, 7), (17,), (100, 211), (70001,))
TOLERANCE = {"float32": 1e-6, "float64": 1e-15, "float16": 2e-3, "bfloat16": 2e-2}


@functools.cache
def gradients(rank: int, dtypes: tuple) -> list[np.ndarray]:
    """The gradients of rank `rank`; every rank can compute those of the others."""
    random = np.random.default_rng(rank)
    return [np.asarray(random.standard_normal(shape)).astype(dtypes[i % len(dtypes)]) for i, shape in enumerate(SHAPES)]


def weight(rank: int) -> float:
    return (rank + 1) / (SIZE * (SIZE + 1) / 2)


@functools.cache
def expected(dtypes: tuple) -> list[np.ndarray]:
    """The weighted sum over ranks in float64."""
    everyone = [gradients(rank, dtypes) for rank in range(SIZE)]
    return [
        sum(weight(rank) * everyone[rank][i].astype(np.float64) for rank in range(SIZE)) for i in range(len(SHAPES))
    ]


def assert_same_everywhere(arrays: list[np.ndarray]) -> None:
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    assert len(set(WORLD.allgather(digest))) == 1


NAMES = [f"variable {i}" for i in range(len(SHAPES))]


EVERY_DTYPE = (np.float32, np.float64, np.float16, BFLOAT16)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("chunk_bytes", "fuse_bytes"),
    [(1 << 20, 256 << 10), (1 << 20, 0), (512, 1 << 30), (1000, 500), (4096, 4096), (1 << 30, 1 << 30)],
)
@pytest.mark.parametrize(
    "dtypes", [EVERY_DTYPE, *(pytest.param((dtype,), marks=pytest.mark.more) for dtype in EVERY_DTYPE)]
)
def test_weighted_sum(make_engine, dtypes, chunk_bytes, fuse_bytes, in_place):
    outputs, error = make_engine(chunk_bytes, fuse_bytes).reduce(
        gradients(RANK, dtypes), NAMES, weight(RANK), in_place=in_place
    )
    assert error == ""
    for output, wanted in zip(outputs, expected(dtypes)):
        assert output.shape == wanted.shape
        scale = max(1.0, np.abs(wanted).max(initial=0))
        difference = np.abs(output.astype(np.float64) - wanted).max(initial=0)
        assert difference <= TOLERANCE[output.dtype.name] * scale
    assert_same_everywhere(outputs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16])
@pytest.mark.parametrize("count", [1 << 15, (1 << 19) + 5])
def test_ring(make_engine, dtype, count):
    """Sums by the ring, of segments with one part and with several, some of them shorter."""
    engine = make_engine(1 << 30, 0, "ring")
    everyone = [np.random.default_rng(rank).integers(-8, 8, count).astype(dtype) for rank in range(SIZE)]
    for _ in range(3):
        (output,), error = engine.reduce([everyone[RANK]], ["x"], 1.0)
        assert error == ""
        np.testing.assert_array_equal(output.astype(np.float64), sum(one.astype(np.float64) for one in everyone))


@pytest.mark.parametrize("algorithm", ["two_level", "auto"])
@pytest.mark.parametrize(
    "node_of", [lambda rank: 0, lambda rank: rank, lambda rank: rank // 2, lambda rank: min(rank, 1)]
)
def test_two_levels(make_engine, algorithm, node_of):
    """Sums within nodes and between nodes, which have one rank, or equally many ranks, or not."""
    engine = make_engine(1 << 30, 0, algorithm, node_of(RANK))
    for count in (1 << 14, (1 << 15) + 7):
        everyone = [np.random.default_rng(rank).integers(-99, 99, count).astype(np.float64) for rank in range(SIZE)]
        for _ in range(2):
            (output,), error = engine.reduce([everyone[RANK]], ["x"], 0.5)
            assert error == ""
            np.testing.assert_array_equal(output, 0.5 * sum(everyone))
        noise = [np.random.default_rng([rank, 1]).standard_normal(count) for rank in range(SIZE)]
        (output,), _ = engine.reduce([noise[RANK]], ["x"], 1.0)
        np.testing.assert_allclose(output, sum(noise), rtol=1e-12, atol=1e-12)
        assert_same_everywhere([output])


def shared_memories() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:matex_tf")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16])
def test_shared_memory(make_engine, dtype):
    """Sums in shared memory: fused or not, of several chunks, and of fewer numbers than ranks."""
    engine = make_engine(3 << 20, 8 << 10, "auto")
    assert engine.meet(6, 1, "a test") == ""
    before = shared_memories()  # one of them is that of the rendezvous
    shapes = [[1], [3, 5], [], [0], [1000], [2], [(1 << 19) + 5], [4097], [700, 1000]]
    names = [str(index) for index in range(len(shapes))]
    everyone = [
        [
            np.random.default_rng([rank, index]).integers(-8, 8, shape).astype(dtype)
            for index, shape in enumerate(shapes)
        ]
        for rank in range(SIZE)
    ]
    for weight in (1.0, 0.5, 1.0):
        outputs, error = engine.reduce(everyone[RANK], names, weight)
        assert error == ""
        for output, parts in zip(outputs, zip(*everyone)):
            wanted = weight * sum(part.astype(np.float64) for part in parts)
            np.testing.assert_array_equal(output.astype(np.float64), wanted)
    assert shared_memories() == before + (SIZE > 1)
    noise = np.random.default_rng([RANK, 77]).standard_normal(300_001).astype(dtype)
    outputs, _ = engine.reduce([noise, noise[:999]], ["x", "y"], 0.7)
    assert_same_everywhere(outputs)


def test_weight_of_zero_selects_zeros(engine):
    """NaN and infinity on a rank without rows, whose weight is 0, do not change the sum."""
    mine = np.full(1000, np.nan if RANK % 2 else np.inf, np.float32) if RANK else np.arange(1000, dtype=np.float32)
    (output,), error = engine.reduce([mine], ["x"], 1.0 if RANK == 0 else 0.0)
    assert error == ""
    np.testing.assert_array_equal(output, np.arange(1000, dtype=np.float32))


def test_no_gradients(engine):
    assert engine.reduce([], [], 1.0) == ([], "")
    assert engine.c.matex_count(1) == 1


def test_counts_by_kind(engine):
    for _ in range(3):
        engine.reduce([np.zeros(2, np.float32)], ["x"], 1.0)
    engine.meet(6, 1, "a message")
    assert [engine.c.matex_count(kind) for kind in (1, 2, 6, 7)] == [3, 0, 1, 0]


def half_values() -> np.ndarray:
    """All float16 numbers: normal, subnormal, zeros, infinities and NaN."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
@pytest.mark.parametrize("factor", [0.5, 0.3, 3.0])
def test_sixteen_bit_floats_round_as_numpy_does(engine, dtype, factor):
    """All 65,536 values times a factor, rounded to nearest, ties to even."""
    values = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    (output,), error = engine.reduce([values], ["x"], factor if RANK == 0 else 0.0)
    assert error == ""
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (values.astype(np.float32) * np.float32(factor)).astype(dtype)
    np.testing.assert_array_equal(np.isnan(output.astype(np.float32)), np.isnan(wanted.astype(np.float32)))
    keep = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(output[keep].astype(np.float32), wanted[keep].astype(np.float32))


@contextlib.contextmanager
def denormals_are_zero():
    """This thread reads subnormal numbers as 0, and gives 0 for them, as TensorFlow's threads do."""
    c = ctypes.CDLL(None)
    environment = (ctypes.c_uint32 * 8)()  # glibc's fenv_t, whose last number is the register MXCSR
    c.fegetenv(environment)
    register, environment[7] = environment[7], environment[7] | 0x8040
    c.fesetenv(environment)
    try:
        yield
    finally:
        environment[7] = register
        c.fesetenv(environment)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it sets a register of x86-64")
@pytest.mark.parametrize("algorithm", ["auto", "mpi", "ring"])
def test_threads_without_subnormal_numbers_add_those_of_sixteen_bits(make_engine, algorithm):
    """A subnormal float16 is a normal float32. The count is no multiple of 8, the number that F16C converts at once."""
    values = np.array([1, 2, 0x3FF, 0x400, 0x8001, 0x83FF, 0], np.uint16).view(np.float16)
    engine = make_engine(1 << 20, 0, algorithm)
    with denormals_are_zero():
        assert np.float32(1e-40) * np.float32(1) == 0
        (output,), error = engine.reduce([values], ["x"], 1.0 if RANK == 0 else 0.0)
    assert error == ""
    np.testing.assert_array_equal(output.view(np.uint16), values.view(np.uint16))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
@pytest.mark.parametrize("algorithm", ["auto", "mpi", "ring"])
def test_sums_of_sixteen_bit_floats_are_rounded_once(make_engine, dtype, algorithm):
    """Every sum of these numbers is exact in float32, but not in 16 bits."""
    everyone = [np.random.default_rng(rank).integers(-128, 128, 50_000).astype(dtype) for rank in range(SIZE)]
    large = (np.arange(50_000) % 2 * 2048).astype(dtype)
    everyone[0] = large
    (output,), _ = make_engine(1 << 20, 0, algorithm).reduce([everyone[RANK]], ["x"], 1.0)
    wanted = sum(one.astype(np.float32) for one in everyone)
    np.testing.assert_array_equal(output, wanted.astype(dtype))


def test_hash_is_xxh64(engine):
    """Known values of XXH64, seed 0."""
    known = {
        b"": 0xEF46DB3751D8E999,
        b"a": 0xD24EC4F1A98C6E5B,
        b"abc": 0x44BC2CF5AD770999,
        b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
    }
    for text, value in known.items():
        assert engine.c.matex_hash(text, len(text), 0) == value


def test_the_senders_of_a_signal_may_be_asked_for_twice(engine):
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda *_: heard.append(engine.c.matex_came_from_launchers(signal.SIGUSR2)))
    try:
        for launchers in ([os.getppid()], [os.getppid(), os.getpid()]):
            assert engine.c.matex_watch_sender(signal.SIGUSR2, (ctypes.c_int * 2)(*launchers), len(launchers)) == 0
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [0, 1]
