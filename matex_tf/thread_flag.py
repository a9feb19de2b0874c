"""A flag of each thread, which is set while the thread is within something."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ThreadFlag:
    """False in each thread, but within `set`."""

    def __init__(self) -> None:
        self._state = threading.local()

    def __bool__(self) -> bool:
        return getattr(self._state, "is_set", False)

    @contextlib.contextmanager
    def set(self, to: bool = True) -> Iterator[None]:
        """Within it the flag of this thread is `to`; after it what it was before."""
        before, self._state.is_set = bool(self), to
        try:
            yield
        finally:
            self._state.is_set = before


starts_own = ThreadFlag()
"""Set while the library starts a thread of its own, which does nothing of the script's."""
