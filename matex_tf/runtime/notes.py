"""Notes to the user: one line on standard error, on rank 0, once in a run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from matex_tf import settings
from matex_tf.world import terminal, world

_printed: set[str] = set()
_are_dropped = False


def print_note(text: str) -> None:
    """Print one line on standard error, on rank 0, once in a run."""
    if _are_dropped or text in _printed:
        return
    _printed.add(text)
    if (world.get_world().rank == 0 or terminal.stores_text()) and not settings.get_settings().quiet:
        sys.stdout.flush()
        print(f"matex_tf: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def hold_notes() -> Iterator[None]:
    """A context in which notes are dropped; the same notes may be printed later."""
    global _are_dropped
    outer, _are_dropped = _are_dropped, True
    try:
        yield
    finally:
        _are_dropped = outer
