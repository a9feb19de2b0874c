"""A pause of Python's garbage collection while many objects are created, none of which is garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Disable collection within the context: each run would scan all objects of TensorFlow and its graphs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # Make all objects old. Otherwise the next collection of young objects scans all that were created here.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
