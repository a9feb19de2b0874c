"""A file of lines that one process appends to: each line whole or not at all, and no error of the disk goes further."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Any

_encode_line = json.JSONEncoder(separators=(",", ":")).encode

HALVED = 20_000
"""After so many lines a file gets half as many a second as before."""


class Log:
    """Raises OSError if the file cannot be opened, or is there already and not `goes_on`: somebody else writes it."""

    def __init__(self, path: str | os.PathLike[str], goes_on: bool = False):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if goes_on else os.O_EXCL)
        self._file = os.open(path, flags, 0o644)
        self._lock = threading.Lock()
        self._end = os.fstat(self._file).st_size
        self.lines = 0
        self.lost = 0
        """Lines that could not be written."""
        self.error: OSError | None = None
        """Why, the first time."""

    def write_line(self, line: dict[str, Any]) -> bool:
        """Append `line`, as JSON; whether that could be done."""
        text = _encode_line(line).encode() + b"\n"
        with self._lock:
            self.lines += 1
            try:
                if os.pwrite(self._file, text, self._end) == len(text):
                    self._end += len(text)
                    return True
                os.ftruncate(self._file, self._end)  # the disk took a part of it
                raise OSError("no space left for a whole line")
            except OSError as error:
                self.error = self.error or error
                self.lost += 1
                return False


def pick_numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Of what Keras logs, that which is a number."""
    return {
        str(name): float(value) for name, value in (logs or {}).items()
        if hasattr(value, "__float__") and getattr(value, "shape", ()) == ()
    }  # fmt: skip
