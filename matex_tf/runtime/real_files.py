"""The files as they are on disk, on every rank."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

PLACES_OF_FILES = "matex_places_of_files"
"""The name of the calls of Python by which the ranks after the first find their files; the first has none."""


class _State(threading.local):
    depth = 0


_state = _State()


@contextlib.contextmanager
def use_real_files() -> Iterator[None]:
    """Within it this thread's files are the real ones, on every rank."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


def uses_real_files() -> bool:
    return _state.depth > 0
