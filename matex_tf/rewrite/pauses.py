"""Python's garbage collection, paused while many objects are made of which none is garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """No garbage is collected in here: each collection would look at all objects of TensorFlow and of its graphs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # All objects become old ones; else the next collection of new ones would look at all made in here.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
