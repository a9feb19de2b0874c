"""Compressed sums by the engine: results plus residuals are the exact sums; results are equal on all ranks."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import pytest
from mpi4py import MPI

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
WEIGHT = 0.5
SHAPES = ((3, 5), (), (0,), (1,), (64, 33), (17,), (100, 211), (70_001,))
NAMES = [f"variable {i}" for i in range(len(SHAPES))]
NUMBERS = [i + 1 for i in range(len(SHAPES))]
KINDS = [("bf16", 1.0), ("fp16", 1.0), ("topk", 0.3)]
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
"""Half of the last digit, of numbers of 8 and 11 binary digits."""


@functools.cache
def gradients(rank: int, turn: int) -> list[np.ndarray]:
    """Gradients with a mean of 1: an error that is lost in each turn would add up."""
    random = np.random.default_rng([rank, turn])
    return [(random.standard_normal(shape) + 1).astype(np.float32) for shape in SHAPES]


def exact(turn: int) -> list[np.ndarray]:
    everyone = [gradients(rank, turn) for rank in range(SIZE)]
    return [WEIGHT * sum(one[i].astype(np.float64) for one in everyone) for i in range(len(SHAPES))]


def assert_same_everywhere(arrays: list[np.ndarray]) -> None:
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    assert len(set(WORLD.allgather(digest))) == 1


def reduce(engine, arrays, weight=WEIGHT):
    outputs, error = engine.reduce(arrays, NAMES[: len(arrays)], weight, variables=NUMBERS[: len(arrays)])
    assert error == ""
    assert_same_everywhere(outputs)
    return outputs


def bound(kind: str, share: float, turns: int) -> list[float]:
    """For each variable, the maximum distance of the sum of all updates from the exact sum, for any number of turns.

    In 16 bits a rank keeps the rounding errors of its own numbers and of the sum of its segment. With top-k, the norm
    of the residual shrinks by sqrt(1 - share) before the next gradient is added (Stich, Cordonnier and Jaggi,
    Sparsified SGD with memory, 2018), so it is at most the sum of a geometric series.
    """
    result = []
    for i in range(len(SHAPES)):
        everyone = [[np.abs(gradients(rank, turn)[i]) * WEIGHT for turn in range(turns)] for rank in range(SIZE)]
        if kind == "topk":
            count = int(np.prod(SHAPES[i]))
            rest = np.sqrt(1 - max(1, np.floor(share * count)) / max(count, 1))
            norms = [max(np.linalg.norm(one) for one in mine) for mine in everyone]
            result.append(rest / (1 - rest) * sum(norms))
        else:
            result.append(2.1 * ROUNDING[kind] * sum(max(one.max(initial=0) for one in mine) for mine in everyone))
    return [one + turns * 1e-6 for one in result]  # the sums themselves are rounded to float32


@pytest.mark.parametrize(("kind", "share"), KINDS)
@pytest.mark.parametrize(("chunk_bytes", "fuse_bytes"), [(1 << 20, 256 << 10), (4096, 1000)])
def test_what_is_left_out_comes_later(make_engine, kind, share, chunk_bytes, fuse_bytes):
    engine = make_engine(chunk_bytes, fuse_bytes, compression=(kind, share))
    turns = 12 if chunk_bytes > 4096 else 3
    sums = [np.zeros(shape) for shape in SHAPES]
    for _ in range(turns):
        # The same gradients in each turn: an error that is lost adds up.
        for total, output, wanted in zip(sums, reduce(engine, gradients(RANK, 0)), exact(0)):
            total += output.astype(np.float64) - wanted
    for total, most in zip(sums, bound(kind, share if chunk_bytes > 4096 else share / 2, turns)):
        assert np.linalg.norm(total) <= most if kind == "topk" else np.abs(total).max(initial=0) <= most
    changed = any(np.abs(total).max(initial=0) > 1e-4 for total in sums)
    assert changed == (SIZE > 1)  # one rank sends nothing


def test_largest_numbers_are_those_of_numpy(make_engine):
    """The chosen numbers, their sums and the residuals are those of an implementation in NumPy, bit for bit."""
    engine = make_engine(1 << 30, 0, compression=("topk", 0.01))
    kept = [[np.zeros(shape, np.float32) for shape in SHAPES] for _ in range(SIZE)]
    for turn in range(4):
        everyone = [gradients(rank, turn) for rank in range(SIZE)]
        outputs = reduce(engine, everyone[RANK])
        for i, output in enumerate(outputs):
            wanted = np.zeros(output.size, np.float32)
            for rank in range(SIZE):
                whole = (everyone[rank][i] * np.float32(WEIGHT) + kept[rank][i]).reshape(-1)
                largest = np.argsort(-np.abs(whole), kind="stable")[: max(1, round(0.01 * whole.size))]
                wanted[largest] += whole[largest]
                whole[largest] = 0
                kept[rank][i] = whole.reshape(SHAPES[i])
            if SIZE > 1:
                np.testing.assert_array_equal(output.reshape(-1), wanted)


def test_the_exchange_in_rounds_is_that_in_one(make_engine):
    """The exchange is made in rounds, because its memory is limited."""
    in_rounds, at_once = (make_engine(size, 0, compression=("topk", 0.3)) for size in (4000, 4000 * SIZE * 8))
    for turn in range(3):
        mine = [gradients(RANK, turn)[4].reshape(-1)[:1000]]
        (one,), (other,) = reduce(in_rounds, mine), reduce(at_once, mine)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "share"), KINDS)
def test_numbers_that_are_none_pass_and_do_not_stay(make_engine, kind, share):
    engine = make_engine(compression=(kind, share))
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    bad = x.copy()
    if RANK == SIZE - 1:
        bad[[3, 500, 999]] = np.nan, np.inf, -np.inf
    (output,) = reduce(engine, [bad])
    assert np.isnan(output[3]) and np.isposinf(output[500]) and np.isneginf(output[999])
    assert np.isfinite(output).sum() == 997
    for _ in range(3):
        (output,) = reduce(engine, [x])
        assert np.isfinite(output).all()
    (output,) = reduce(engine, [bad], weight=0.0 if RANK == SIZE - 1 else 1.0)
    assert np.isfinite(output).all()  # of a rank without rows


def test_scaled_float16_holds_every_size(make_engine):
    engine = make_engine(compression=("fp16", 1.0))
    for size in (1e-37, 1e-20, 1e20, 1e36):
        x = (np.linspace(0.5, 1, 999) * size).astype(np.float32)
        (output,), error = engine.reduce([x], [str(size)], 1.0, variables=[hash(size) & 0xFFFF])
        assert error == ""
        np.testing.assert_allclose(output, x * SIZE, rtol=2 * SIZE * 2.0**-11)


def test_what_is_no_gradient_of_a_variable_and_other_types_are_left_alone(make_engine):
    engine = make_engine(compression=("bf16", 1.0))
    loss, double, half = np.float32(1 + 2**-20), np.float64(1 + 2**-40), np.float16(1 + 2**-10)
    arrays = [np.full(3, one) for one in (loss, double, half)]
    outputs, error = engine.reduce(arrays, ["loss", "double", "half"], float(RANK == 0), variables=[0, 1, 2])
    assert error == ""
    for output, array in zip(outputs, arrays):
        np.testing.assert_array_equal(output, array)


def test_what_is_kept_goes_with_its_layouts(make_engine):
    engine = make_engine(compression=("bf16", 1.0))
    assert engine.c.matex_residuals() == 0
    for _ in range(3):
        reduce(engine, gradients(RANK, 0))
    assert engine.c.matex_residuals() == (len(SHAPES) if SIZE > 1 else 0)
    engine.c.matex_forget()
    assert engine.c.matex_residuals() == 0


@pytest.mark.parametrize(("kind", "share"), KINDS)
@pytest.mark.parametrize("node_of", [lambda rank: 0, lambda rank: rank // 2, lambda rank: min(rank, 1)])
def test_only_between_nodes(make_engine, kind, share, node_of):
    """Within a node sums are exact; between nodes errors are kept and added later."""
    engine = make_engine(1 << 20, 256 << 10, "two_level", node_of(RANK), (kind, share), True)
    exactly = len({node_of(rank) for rank in range(SIZE)}) == 1
    total, turns = np.zeros(SHAPES[-1]), 5
    for turn in range(turns):
        output, wanted = reduce(engine, gradients(RANK, turn))[-1], exact(turn)[-1]
        total += output - wanted
        assert np.allclose(output, wanted, rtol=1e-5, atol=1e-5) == exactly
    most = bound(kind, share, turns)[-1]
    assert np.linalg.norm(total) <= most if kind == "topk" else np.abs(total).max() <= most


def test_settings_that_differ_are_both_named(make_engine):
    engine = make_engine(compression=("topk", 0.01) if RANK == 0 else ("fp16", 1.0))
    _, error = engine.reduce([np.ones(3, np.float32)], ["x"], 1.0, variables=[1])
    if SIZE > 1:
        assert "rank 0 (host0) has MATEX_COMPRESSION=topk:0.01," in error
        assert "rank 1 (host1) has MATEX_COMPRESSION=fp16" in error
