"""Flags with a value for each thread, and whether a thread is the main thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _State(threading.local):
    is_set = False  # in a thread that has not set it


class ThreadFlag:
    """A flag with a value for each thread: False, except in the context `set`."""

    def __init__(self) -> None:
        self._state = _State()

    def __bool__(self) -> bool:
        return self._state.is_set

    @contextlib.contextmanager
    def set(self, value: bool = True) -> Iterator[None]:
        """Context in which the flag of this thread is `value`."""
        outer_value, self._state.is_set = bool(self), value
        try:
            yield
        finally:
            self._state.is_set = outer_value


def is_main_thread() -> bool:
    """Whether this is the main thread. The library acts on calls of the main thread only: other threads of a script
    call in a different order on each rank, so ranks cannot share their work.
    """
    return threading.current_thread() is threading.main_thread()


starts_own = ThreadFlag()
"""Set in a thread of the library while it starts another one. The hook of `Thread.start` (`servers.pieces.slots`) reads
it, because it prepares variables for threads of the script only."""
