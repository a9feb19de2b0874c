"""A context in which file functions act on the real files, on every rank.

Outside of it, each rank other than 0 writes the files of the script to a private folder, and sees them in place of the
real ones (`files.overlay`). The library itself needs the real files.
"""

from __future__ import annotations

import contextlib
from typing import Any

from matex_tf.thread_flag import ThreadFlag

PLACES_OF_FILES = "matex_places_of_files"
"""The name of the ops by which a graph on ranks other than 0 locates files; rank 0 has none."""


_is_in_use = ThreadFlag()


def use_real_files() -> contextlib.AbstractContextManager[None]:
    """Let this thread use the real files, on every rank, within the context."""
    return _is_in_use.set()


def uses_real_files() -> bool:
    return bool(_is_in_use)


def finds_files(node: Any) -> bool:
    """Whether an op, given by its definition, is one of `PLACES_OF_FILES`."""
    return bool(node.name.split("/")[-1].startswith(PLACES_OF_FILES))
