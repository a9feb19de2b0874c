"""A log file of JSON lines, written by one process. A line is complete or missing, and disk errors raise nothing.

The file is a real one on every rank (`real_files`).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from matex_tf.runtime import real_files

_encode_line = json.JSONEncoder(separators=(",", ":")).encode

_MAX_LINE_BYTES = 1 << 20  # no line is longer
HALVING_LINES = 20_000
"""Each time a log has grown by so many lines, the thread that writes it (`sampler`) doubles the time between lines."""


class Log:
    """A file of JSON lines. Without `append` it must not exist, because another process may write it.

    `append` removes a partial line, which a lost host may leave at the end of the file.
    `report` is called with the error of the first line that cannot be written. Raises OSError if opening fails.
    """

    def __init__(self, path: str | os.PathLike[str], report: Callable[[OSError], None], append: bool = False):
        self._report = report
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if append else os.O_EXCL)
        with real_files.use_real_files():
            self._file = os.open(path, flags, 0o644)
        self._lock = threading.Lock()
        start = max(os.fstat(self._file).st_size - _MAX_LINE_BYTES, 0)
        end = start + os.pread(self._file, _MAX_LINE_BYTES, start).rfind(b"\n") + 1
        os.ftruncate(self._file, end)
        self._end = end  # the offset after the last complete line
        self.lines = 0
        self.lost = 0  # the number of lines that could not be written

    def write_line(self, **members: Any) -> None:
        """Append a line of JSON: "t", the present time in seconds since 1970, and `members`."""
        text = _encode_line({"t": round(time.time(), 3), **members}).encode() + b"\n"
        with self._lock:
            self.lines += 1
            try:
                if os.pwrite(self._file, text, self._end) < len(text):  # the disk took only part of the line
                    os.ftruncate(self._file, self._end)
                    raise OSError("no space left for a whole line")
                self._end += len(text)
            except OSError as error:
                self.lost += 1
                if self.lost == 1:
                    self._report(error)


def pick_numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The numbers among Keras' logs."""
    return {
        str(name): float(value) for name, value in (logs or {}).items()
        if hasattr(value, "__float__") and getattr(value, "shape", ()) == ()
    }  # fmt: skip
