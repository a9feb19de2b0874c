"""Ranks that differ get an error that names the variable or the places, on every rank, and again at each later call."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from mpi4py import MPI

from matex_tf.ops import Cause

pytestmark = pytest.mark.mpi

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
ODD = SIZE - 1
"""The rank that differs from all others."""

KERNEL = np.zeros((3, 4), np.float32)
BIAS = np.zeros(4, np.float32)


def check(engine, error: str, *parts: str) -> None:
    """With several ranks: all have the same error, which contains `parts`, and every later call repeats it."""
    if SIZE == 1:
        assert error == ""
        return
    assert len(set(MPI.COMM_WORLD.allgather(error))) == 1
    for part in parts:
        assert part in error, error
    assert engine.meet(6, 0, "a later message") == error
    assert engine.reduce([BIAS], ["bias"], 1.0)[1] == error
    assert engine.meet(7, 0, "the end") == error


def test_shape(engine):
    mine = np.zeros((3, 5), np.float32) if RANK == ODD else KERNEL
    _, error = engine.reduce([BIAS, mine], ["bias", "kernel"], 1.0, "the update in fit")
    check(
        engine,
        error,
        "the update in fit",
        "gradient 2",
        "variable 'kernel'",
        "float32 [3, 4] on rank 0 (host0)",
        f"float32 [3, 5] on rank {ODD} (host{ODD})",
    )


def test_dtype(engine):
    _, error = engine.reduce([KERNEL.astype(np.float64 if RANK == ODD else np.float32)], ["kernel"], 1.0)
    check(engine, error, "'kernel'", "float32 [3, 4] on rank 0", f"float64 [3, 4] on rank {ODD}")


def test_name(engine):
    _, error = engine.reduce([BIAS, KERNEL], ["bias", "other" if RANK == ODD else "kernel"], 1.0)
    check(
        engine,
        error,
        "gradient 2",
        "'kernel', float32 [3, 4], on rank 0 (host0)",
        f"'other', float32 [3, 4], on rank {ODD} (host{ODD})",
    )


def test_missing(engine):
    tensors, names = ([BIAS], ["bias"]) if RANK == ODD else ([BIAS, KERNEL], ["bias", "kernel"])
    _, error = engine.reduce(tensors, names, 1.0)
    check(
        engine,
        error,
        "rank 0 (host0) has a gradient of variable 'kernel'",
        f"which rank {ODD} (host{ODD}) has not",
        "2 and 1 gradients",
    )


def test_none_at_all(engine):
    _, error = engine.reduce([] if RANK == ODD else [BIAS], [] if RANK == ODD else ["bias"], 1.0)
    check(engine, error, "variable 'bias', float32 [4]", f"rank {ODD} (host{ODD}) has not")


def test_settings(make_engine):
    engine = make_engine(chunk_bytes=1 << (19 if RANK == ODD else 20))
    _, error = engine.reduce([BIAS], ["bias"], 1.0)
    check(engine, error, "rank 0 (host0) has MATEX_CHUNK_BYTES=1048576", "MATEX_CHUNK_BYTES=524288")


def test_places(engine):
    """One is at a message, the others at an update: the error names both places and the collective's number."""
    engine.meet(6, 0, "one together")
    if RANK == ODD:
        error = engine.meet(6, 0, "the weights at the start")
    else:
        _, error = engine.reduce([BIAS], ["bias"], 1.0, "the update in fit")
    check(
        engine,
        error,
        "different places",
        "at the update in fit",
        f"rank {ODD} (host{ODD}) is at the weights at the start",
        "collective number 1",
    )


def test_rows(engine):
    """One rank plans a step, and the others compare a batch; the error names the reason: they have read other rows."""
    error = engine.meet(6, RANK == ODD, "a plan" if RANK == ODD else "a batch", rows=7 if RANK == ODD else 8)
    check(engine, error, "different numbers of rows", "8 on rank 0 (host0)", f"7 on rank {ODD} (host{ODD})")


def test_keys(engine):
    error = engine.meet(6, RANK == ODD, "message of the odd rank" if RANK == ODD else "message")
    check(engine, error, "different places", "at message", f"rank {ODD} (host{ODD}) is at message of the odd rank")


def test_end(engine):
    """One rank ends its script while the others continue to train."""
    if RANK == ODD:
        error = engine.meet(7, 0, "the end of its script")
    else:
        _, error = engine.reduce([BIAS], ["bias"], 1.0, "the update in fit")
    check(engine, error, f"rank {ODD} (host{ODD}) has ended its script", "at the update in fit")
    assert engine.c.matex_cause(error.encode()) == Cause.OTHER


@pytest.mark.parametrize("ends", ["one", "all others"])
def test_an_exit_code_is_known_as_the_cause(engine, ends):
    """On all ranks, also if the first rank that ends has no exit code."""
    if (RANK == ODD) == (ends == "one"):
        error = engine.meet(7, 0, "the end of its script", exit_code=3 * (RANK in (ODD, ODD - 1)))
    else:
        _, error = engine.reduce([BIAS], ["bias"], 1.0, "the update in fit")
    check(engine, error, "has ended its script")
    assert engine.c.matex_cause(f"{error}: of an op".encode()) == (Cause.ENDED if SIZE > 1 else Cause.OTHER)


def test_ranks_at_the_same_place_are_named_together(engine):
    error = engine.meet(6, min(RANK, 1), f"place {min(RANK, 1)}")
    check(engine, error, "rank 0 (host0) is at place 0")
    if SIZE > 2:
        assert ", ".join(f"rank {rank} (host{rank})" for rank in range(1, SIZE)) + " are at place 1" in error


def test_equal_places_go_on(engine):
    for number in range(50):
        assert engine.meet(6, number, f"message {RANK}") == ""
        assert engine.reduce([KERNEL], ["kernel"], 1.0, f"place {RANK}")[1] == ""


def test_keys_use_all_bits(engine):
    """The rendezvous compares keys by a maximum of signed numbers, which must also work for keys with the sign bit."""
    for key in (0, 1, 1 << 63, (1 << 64) - 1, 1 << 62, (1 << 63) - 1):
        assert engine.meet(6, key, "message") == ""
    error = engine.meet(6, (1 << 64) - 1 if RANK == ODD else 0, "message")
    check(engine, error, "different places")


def test_unknown_kind(engine):
    for kind in (-1, 0, 9):
        assert f"no kind {kind}" in engine.meet(kind, 0, "message")
        assert engine.c.matex_count(kind) == 0
    assert engine.meet(6, 0, "message") == ""


def test_a_step_that_fails_on_one_rank_is_told_once(engine):
    failed = "the step 'train': a label that there is not"
    for _ in range(2):
        error = engine.meet(8, 0, failed) if RANK == ODD else engine.reduce([BIAS], ["bias"], 1.0)[1]
        if SIZE > 1:
            assert len(set(MPI.COMM_WORLD.allgather(error))) == 1
            assert f"rank {ODD} (" in error and failed in error
        sums, error = engine.reduce([BIAS + 1], ["bias"], 1.0)
        assert error == "" and (sums[0] == SIZE).all()
    assert engine.meet(8, 0, f"{failed} on rank {RANK}") == ""  # all have failed
    error = engine.meet(*((8, 0, failed) if RANK == ODD else (6, 0, "a message")))
    check(engine, error, f"rank {ODD} (", failed)


def test_the_cause_of_an_error_is_known_by_its_text(engine):
    null, counts = MPI.COMM_NULL.py2f(), (ctypes.c_int64 * 9)()
    assert engine.c.matex_start_again(null, null, null, RANK, SIZE, 0, 0, counts)
    raised = f"a traceback\n{engine.error()}\n of which an op tells"
    assert engine.c.matex_cause(raised.encode()) == Cause.MPI
    assert engine.c.matex_cause(b"an error of the script") == Cause.OTHER
    assert engine.c.matex_cause(engine.meet(0, 0, "an unknown kind").encode()) == Cause.OTHER
