"""A world in which this process is rank 0 and the other ranks are not there: what `matex plan` measures.

What the others would give is a copy of what this rank gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.settings import Phantom

NAMES = ("control", "readers")
"""Communicators whose calls are made in Python; those of the engine are the engine's own."""


class Told:
    """A message to a rank that is not there, which has it."""

    def wait(self) -> None:
        pass


class Communicator:
    """The calls of mpi4py that are made in Python."""

    def __init__(self, size: int):
        self.size = size

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def Alltoallv(self, send: Any, receive: Any) -> None:
        into = receive[0]
        into[:] = np.resize(send[0], len(into))

    def isend(self, value: Any, **_: Any) -> Told:
        return Told()

    def recv(self, **_: Any) -> Any:
        return None

    def Iprobe(self, **_: Any) -> bool:
        return False


def make_single_world(make: Callable[..., Any]) -> Any:
    """The world of one rank that works as one of several does: what the others would give is nothing."""
    return make_phantom_world(make, Phantom(1, 0, 0, 1, ""))


def make_phantom_world(make: Callable[..., Any], asked: Phantom) -> Any:
    """The world of rank 0 of the ranks that are asked for, one of several copies on this host."""
    here = make(
        size=asked.ranks, local_rank=asked.copy, local_size=asked.copies, nodes=[0] * asked.ranks,
        is_several=True, is_phantom=True,
    )  # fmt: skip
    here.hosts = [here.host] * asked.ranks
    here.communicators = {name: Communicator(asked.ranks) for name in NAMES}
    return here
