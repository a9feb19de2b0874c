"""Notes to the user: one line on standard error, on rank 0, once in a run."""

from __future__ import annotations

import sys

from matex_tf import settings
from matex_tf.world import terminal, world

_printed: set[str] = set()


def print_note(text: str) -> None:
    """Print one line on standard error, on rank 0, once in a run."""
    if text in _printed:
        return
    _printed.add(text)
    if (world.get_world().rank == 0 or terminal.stores_text()) and not settings.get_settings().quiet:
        print(end="", flush=True)  # standard output may be closed: then sys.stdout is None
        print(f"matex_tf: {text}", file=sys.stderr, flush=True)
