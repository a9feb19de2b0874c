"""`os.system`, `subprocess.run` and the like, where the script itself calls them: see `matex_tf.commands`.

What libraries run for themselves, and what a script starts without waiting (`Popen`), each rank does as ever.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
from typing import Any

from matex_tf import commands
from matex_tf.patches import replace

_WAITING = ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
_LIBRARIES = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")})
_PACKAGES = {"site-packages", "dist-packages"}
_HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def install() -> None:
    replace(os, "system", _once)
    replace(os, "popen", _read_once)
    for name in _WAITING:
        replace(subprocess, name, _once)


def _is_script(caller: Any) -> bool:
    """Whether code of this frame is the script's own, or that of a module beside it."""
    path = caller.f_code.co_filename
    library = path.startswith((*_LIBRARIES, _HERE, "<frozen")) or not _PACKAGES.isdisjoint(path.split(os.sep))
    return not library


def _once(original: Any) -> Any:
    def run(*args, **kwargs):
        if not (commands.are_shared() and _is_script(sys._getframe(1))):
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
        if mode != "r" or not (commands.are_shared() and _is_script(sys._getframe(1))):
            return original(cmd, mode, buffering)

        def read() -> tuple[str, int | None]:
            stream = original(cmd, mode, buffering)
            text = stream.read()
            return text, stream.close()

        return _Output(*commands.once(read, "popen", [cmd], {}))

    return popen
