"""What a thread is in: a flag with one value for each thread, set while the thread is in a context; the main thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _State(threading.local):
    is_set = False  # in a thread that has not set it


class ThreadFlag:
    """A flag that is False in each thread, except in the context `set`."""

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
    """Whether this is the main thread. Ranks share no work of other threads of a script, which are not in step."""
    return threading.current_thread() is threading.main_thread()


starts_own = ThreadFlag()
"""Set while the library starts a thread of its own, which runs no code of the script."""
