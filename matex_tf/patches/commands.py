"""`os.system`, `subprocess.run` and the like, where the script itself calls them: see `matex_tf.commands`.

What libraries run for themselves, and what a script starts without waiting (`Popen`), each rank does as ever.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from types import FrameType
from typing import Any

from matex_tf import commands, row_uses
from matex_tf.patches import replace

_WAITING = ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")


def install() -> None:
    replace(os, "system", _once)
    replace(os, "popen", _read_once)
    for name in _WAITING:
        replace(subprocess, name, _once)


def _is_library(caller: FrameType) -> bool:
    own = caller.f_globals.get("__name__", "").partition(".")[0] == "matex_tf"
    return own or row_uses.is_library(caller.f_code.co_filename)


def _once(original: Any) -> Any:
    def run(*args, **kwargs):
        if not commands.are_shared() or _is_library(sys._getframe(1)):
            return original(*args, **kwargs)
        return commands.once(lambda: original(*args, **kwargs), original.__name__, args, kwargs)

    return run


class _Output(io.StringIO):
    """What a command printed, as `os.popen` gives it to be read."""

    def __init__(self, text: str, status: int | None):
        super().__init__(text)
        self._status = status

    def close(self) -> int | None:
        super().close()
        return self._status


def _read_once(original: Any) -> Any:
    def popen(cmd, mode="r", buffering=-1):
        shared = mode == "r" and commands.are_shared()
        if not shared or _is_library(sys._getframe(1)):
            return original(cmd, mode, buffering)

        def read() -> tuple[str, int | None]:
            stream = original(cmd, mode, buffering)
            text = stream.read()
            return text, stream.close()

        return _Output(*commands.once(read, "popen", [cmd], {}))

    return popen
