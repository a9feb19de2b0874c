"""Whether the script knows its rank: it has asked for it, or read `MPI.COMM_WORLD`.

Until then all ranks run the same code. Then the script may do other things on each rank, and no rank can replace a lost
rank 0, for example.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

knows_ranks = False
"""Whether the script may behave differently on different ranks."""
when_known: list[Callable[[], None]] = []
"""Called when the script first asks for its rank. All ranks do that together: until then they run the same code."""


def note_question() -> None:
    """Record that the script asks for its rank; at the first call, call the functions `when_known`."""
    global knows_ranks
    if not knows_ranks:
        knows_ranks = True
        for listener in when_known:
            listener()


def watch_mpi() -> None:
    """From now on, reading `MPI.COMM_WORLD` counts as asking for the rank."""
    from mpi4py import MPI

    comm_world = MPI.COMM_WORLD

    class WatchedModule(types.ModuleType):
        @property
        def COMM_WORLD(self) -> Any:
            note_question()
            return comm_world

    MPI.__class__ = WatchedModule  # a property of the class precedes the module's attribute
