"""Whether signals come from certain processes, which Python does not tell their handlers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from .library import get_library


def watch_sender(number: int, launchers: Iterable[int]) -> None:
    """Note from now on whether anyone but the processes `launchers` sends the signal `number` to this one.

    The handler of now is called as before. Where it is replaced, nothing is noted any more.

    Raises:
        ValueError: there is no such signal.
    """
    processes = list(launchers)
    if get_library().c.matex_watch_sender(number, (ctypes.c_int * len(processes))(*processes), len(processes)):
        raise ValueError(f"expected the number of a signal, not {number}")


def came_from_others(number: int) -> bool:
    """Whether any other process has sent it since."""
    return bool(get_library().c.matex_came_from_others(number))
