"""A world in which this process is rank 0 and the other ranks do not exist, for measurements by `matex plan`.

Data from other ranks are copies of this rank's data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.settings import Phantom

NAMES = ("control", "readers")
"""Communicators that are used from Python; the engine has its own."""


class Told:
    """The request of a message to a rank that does not exist; it is complete at once."""

    def wait(self) -> None:
        pass


class Communicator:
    """The methods of mpi4py communicators that are called from Python."""

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
    """The world of a single rank that runs the code of several ranks; other ranks contribute nothing."""
    return make_phantom_world(make, Phantom(1, 0, 0, 1, ""))


def make_phantom_world(make: Callable[..., Any], asked: Phantom) -> Any:
    """The world of rank 0 of `asked.ranks` ranks, one of several copies on this host."""
    here = make(
        size=asked.ranks, local_rank=asked.copy, local_size=asked.copies, nodes=[0] * asked.ranks,
        is_several=True, is_phantom=True,
    )  # fmt: skip
    here.hosts = [here.host] * asked.ranks
    here.communicators = {name: Communicator(asked.ranks) for name in NAMES}
    return here
