"""What the launcher's user reads, whatever becomes of the standard error of this rank."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_kept: TextIO | None = None


def keep_stderr() -> TextIO:
    """Keep standard error as the launcher gave it, before it may be redirected."""
    global _kept
    _kept = os.fdopen(os.dup(2), "w", buffering=1)
    return _kept


def write_text(text: str) -> None:
    """Write `text` where the launcher's user reads it, on any rank."""
    stream = _kept or sys.stderr
    stream.write(text)
    stream.flush()


def get_descriptor() -> int:
    """The descriptor of what the launcher's user reads, on any rank."""
    return 2 if _kept is None else _kept.fileno()
