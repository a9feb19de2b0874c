"""Exchanges of Python objects between ranks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from matex_tf.runtime import objects
from matex_tf.world import world

pytestmark = pytest.mark.mpi

RANK, SIZE = world.get_world().rank, world.get_world().size
LARGE = np.arange(100_000)
CASES = {
    "equal": lambda rank: {"settings": ["a"] * 50, "steps": 3},
    "of one rank": lambda rank: "another" if rank == SIZE - 1 else "usual",
    "each its own": lambda rank: (rank, 0.5 * rank, None),
    "nothing": lambda rank: None,
    "not a number": lambda rank: float("nan"),
    "large": lambda rank: LARGE,
    "large on one rank": lambda rank: LARGE if rank == 0 else 1,
    "large, each its own": lambda rank: LARGE + rank,
}


class Counted:
    """The communicator of objects, which counts the bytes that a rank receives."""

    def __init__(self, communicator):
        self._communicator, self.bytes = communicator, 0

    def __getattr__(self, name):
        return getattr(self._communicator, name)

    def Allreduce(self, sent, received, op):
        self.bytes += received.nbytes
        self._communicator.Allreduce(sent, received, op)

    def allgather(self, value):
        found = self._communicator.allgather(value)
        self.bytes += sum(len(pickle.dumps(one)) for one in found)
        return found


@pytest.mark.parametrize("case", CASES)
def test_each_rank_gets_the_values_of_all(case):
    found = objects.allgather(CASES[case](RANK), f"values of {case}")
    assert [pickle.dumps(one) for one in found] == [pickle.dumps(CASES[case](rank)) for rank in range(SIZE)]


def test_what_a_rank_gets_is_a_copy():
    mine = ["a"]
    objects.allgather(mine, "lists")[RANK].append("b")
    assert mine == ["a"] or SIZE == 1


@pytest.mark.skipif(SIZE == 1, reason="nothing is sent")
def test_equal_values_are_not_sent(monkeypatch):
    counted = Counted(world.get_communicator("control"))
    monkeypatch.setitem(world.get_world().communicators, "control", counted)
    value = "x" * 1000
    assert objects.allgather(value, "a text") == [value] * SIZE
    assert counted.bytes < 100
    other = value + str(RANK % 2)
    assert objects.allgather(other, "another text") == [value + str(rank % 2) for rank in range(SIZE)]
    assert counted.bytes > SIZE * len(value)
