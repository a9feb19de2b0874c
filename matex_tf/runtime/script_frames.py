"""Whose code a frame of the stack runs. Its module says so; a path does not: a script may lie in any folder."""

from __future__ import annotations

import functools
import os
from types import FrameType


def package(frame: FrameType) -> str:
    """The outermost package of the module whose code `frame` runs; "__main__" for a script."""
    spec = frame.f_globals.get("__spec__")  # a module that was started by `-m` has its name there only
    name = frame.f_globals.get("__name__", "") if spec is None else spec.name
    return name.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def is_library(path: str) -> bool:
    """Whether the source file at `path` looks like a library's, Python's or ours."""
    return path.startswith("<frozen") or any(
        (
            *(part in path for part in ("site-packages", "dist-packages", f"lib{os.sep}python")),
            os.path.dirname(os.path.abspath(path)).startswith(os.path.dirname(os.path.dirname(__file__))),
        )
    )
