"""A phantom world, in which this process is rank 0 and the other ranks do not exist.

`matex plan` measures a rank in such a world: it predicts the steps of 64 ranks on a machine for one rank. `world` also
makes one for a single rank that must run the code of several. Data from other ranks are copies of this rank's data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from matex_tf.settings import Phantom

NAMES = ("control", "readers")
"""Communicators that are used from Python; the engine has its own."""


class CompleteRequest:
    """The request of a message to a rank that does not exist; it is complete at once."""

    def wait(self) -> None:
        pass


class Communicator:
    """The methods of mpi4py communicators that are called from Python."""

    def __init__(self, size: int):
        self.size = size

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self.size

    gather = allgather

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def Alltoallv(self, send: Any, receive: Any) -> None:
        buffer = receive[0]
        buffer[:] = np.resize(send[0], len(buffer))

    def isend(self, value: Any, **_: Any) -> CompleteRequest:
        return CompleteRequest()

    def recv(self, **_: Any) -> Any:
        return None

    def Iprobe(self, **_: Any) -> bool:
        return False


def make_single_world(make_world: Callable[..., Any]) -> Any:
    """The world of a single rank that runs the code of several ranks."""
    return make_phantom_world(make_world, Phantom(ranks=1, steps=0, copy=0, copies=1, folder=""))


def make_phantom_world(make_world: Callable[..., Any], phantom: Phantom) -> Any:
    """The world of rank 0 of `phantom.ranks` ranks. This process is one of `phantom.copies` such ranks on this host.

    `make_world`: the class `World`.
    """
    world = make_world(
        size=phantom.ranks, local_rank=phantom.copy, local_size=phantom.copies, nodes=[0] * phantom.ranks,
        is_active=True, is_phantom=True,
    )  # fmt: skip
    world.hosts = [world.host] * phantom.ranks
    world.communicators = {name: Communicator(phantom.ranks) for name in NAMES}
    return world
