"""`os.system`, `subprocess.run` and the like, where the script itself calls them: see `matex_tf.files.commands`.

What libraries run for themselves, and what a script starts without waiting (`Popen`), each rank does as ever.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shlex
import sys
from types import FrameType
from typing import Any

from matex_tf.files import commands, overlay
from matex_tf.runtime import real_files, script_frames
from matex_tf.runtime.hooks import Table

HOOKS = Table()

_LOST = "each rank runs a command of the script"
_NAMES = "a command does not find the files of its rank"

_WORD = re.compile(r"[^\s'\"`$&|;<>(){}*?\[\]\\=]+")
_COMMAND_BEGINS = re.compile(r"(?:^|[|;&(])\s*$")


def _is_library(caller: FrameType) -> bool:
    own = caller.f_globals.get("__name__", "").partition(".")[0] == "matex_tf"
    return own or script_frames.is_library(caller.f_code.co_filename)


@HOOKS.replace("os", "system", _NAMES, when=overlay.has_view)
def _wrap_system(original: Any) -> Any:
    def system(command):
        if isinstance(command, str) and not real_files.uses_real_files():
            with contextlib.suppress(FileNotFoundError):  # the current folder is gone, and nothing of ours is in it
                here = os.getcwd()
                command = _point_text(command, here, _find_place(here) is not None)
        return original(command)

    return system


@HOOKS.replace("os", "system", _LOST)
@HOOKS.replace("subprocess", "run call check_call check_output getoutput getstatusoutput", _LOST)
def _wrap_command(original: Any) -> Any:
    def run(*args, **kwargs):
        if not commands.are_shared() or _is_library(sys._getframe(1)):
            return original(*args, **kwargs)
        return commands.run_on_rank_0(lambda: original(*args, **kwargs), original.__name__, args, kwargs)

    return run


class _Output(io.StringIO):
    """What a command printed, as `os.popen` gives it to be read."""

    def __init__(self, text: str, status: int | None):
        super().__init__(text)
        self._status = status

    def close(self) -> int | None:  # type: ignore[override]  # as of what `os.popen` gives
        super().close()
        return self._status


@HOOKS.replace("os", "popen", _LOST)
def _wrap_popen(original: Any) -> Any:
    def popen(cmd, mode="r", buffering=-1):
        shared = mode == "r" and commands.are_shared()
        if not shared or _is_library(sys._getframe(1)):
            return original(cmd, mode, buffering)

        def read() -> tuple[str, int | None]:
            stream = original(cmd, mode, buffering)
            text = stream.read()
            return text, stream.close()

        return _Output(*commands.run_on_rank_0(read, "popen", [cmd], {}))

    return popen


@HOOKS.replace("subprocess", "Popen.__init__", _NAMES, when=overlay.has_view)
def _wrap_process(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        if not real_files.uses_real_files():
            with contextlib.suppress(FileNotFoundError):  # the current folder is gone, and nothing of ours is in it
                _point_to_own_files(given.arguments)
        return original(*given.args, **given.kwargs)

    return __init__


def _point_to_own_files(arguments: dict[str, Any]) -> None:
    """Have the `arguments` of `Popen` name the places of what this rank alone has.

    A process sees the disk, and of what a rank has made for itself only what it is pointed to: the folder that it is
    started in, and the paths that are its arguments.
    """
    here = os.path.join(os.getcwd(), os.fsdecode(arguments.get("cwd") or ""))
    folder, words = _find_place(here), arguments["args"]
    if folder is not None:
        arguments["cwd"] = folder
    if isinstance(words, str) and arguments.get("shell"):
        arguments["args"] = _point_text(words, here, folder is not None)
    if not isinstance(words, (list, tuple)):
        return
    arguments["args"] = words = list(words)
    for at, word in enumerate(words):
        if not isinstance(word, (str, bytes, os.PathLike)):
            continue
        path = os.fsdecode(word)
        is_looked_for = at == 0 and os.sep not in path
        is_there = folder is not None and not os.path.isabs(path)  # seen from that folder
        if not is_looked_for and not is_there:
            words[at] = _find_place(os.path.join(here, path)) or word


def _point_text(text: str, here: str, is_there: bool) -> str:
    """A line of the shell, run in the folder `here`, whose words that name this rank's own files name their places.

    `is_there`: whether that folder is the rank's own, from which relative paths are seen.
    """

    def point(found: re.Match[str]) -> str:
        word = found[0]
        is_looked_for = os.sep not in word and _COMMAND_BEGINS.search(text[: found.start()]) is not None
        if is_looked_for or (is_there and not os.path.isabs(word)):
            return word
        place = _find_place(os.path.join(here, word))
        return word if place is None or place != shlex.quote(place) else place

    return _WORD.sub(point, text)


def _find_place(path: str) -> str | None:
    """Where a process finds `path` if not on the disk."""
    with real_files.use_real_files():
        key = overlay.get_own_view().find_key(path) if "\0" not in path else None
        place = key if key is None else overlay.get_own_view().locate_for_child(key)
    return None if place == key else place
