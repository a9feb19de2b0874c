"""Finds whether a stack frame runs code of the script, of a library, or of this package.

Decisions use the module of the frame, because a script may lie anywhere. Messages to people, and the search for threads
at work, use the path of the file (`is_library`).
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

_MAX_SHOWN = 16  # frames of a stack
_WAITING = (threading.Condition.wait.__code__, concurrent.futures.thread._worker.__code__)
"""The code of the innermost frame of a thread that waits for work."""


def find_package(frame: FrameType) -> str:
    """The outermost package of the module whose code `frame` runs; "__main__" for a script."""
    return _read_package(frame.f_globals)


def find_function_package(function: Callable[..., Any]) -> str:
    """The outermost package of a function's module; "" for other callables."""
    return _read_package(getattr(function, "__globals__", {}))


def _read_package(module_globals: dict[str, Any]) -> str:
    spec = module_globals.get("__spec__")  # only the spec has the name of a module that was started by `-m`
    name = module_globals.get("__name__", "") if spec is None else spec.name
    return name.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def is_library(path: str) -> bool:
    """Whether the source file at `path` appears to belong to a library, to Python, or to this package."""
    path = os.path.abspath(path) if not path.startswith("<") else path
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
    return is_installed or path.startswith(("<frozen", *_list_own_folders()))


@functools.cache
def _list_own_folders() -> tuple[str, ...]:
    """The folders of Python's library, and of this package; in a checkout some are next to it."""
    specs = (importlib.util.find_spec(name) for name in ("matex_tf", "matex_tf.ops", "matex_tf.readers"))
    files = [os.__file__, *(spec.origin for spec in specs if spec and spec.origin)]
    return tuple(os.path.join(os.path.dirname(file), "") for file in files)


def find_thread_at_work() -> str:
    """Describes a thread other than the main one that may print or write for the script; "" if there is none.

    These are threads in code of the script, library threads (such as a pool's) that do not wait for work, and timers.
    """
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for thread_id, frame in sys._current_frames().items():
        thread = threads.get(thread_id)  # C++ threads are unknown to Python
        if thread is threading.main_thread():
            continue
        frames = [inner for inner, _ in traceback.walk_stack(frame)]
        script_frame = next((inner for inner in frames if not is_library(inner.f_code.co_filename)), None)
        is_timer = isinstance(thread, threading.Timer) and find_function_package(thread.function) != "matex_tf"
        # The outermost frames are those of `threading`; the next one runs the function of the thread.
        packages = (find_package(inner) for inner in reversed(frames))
        is_own = next((name for name in packages if name != "threading"), "") == "matex_tf"
        is_idle = frame.f_code in _WAITING
        if script_frame or is_timer or not (is_own or is_idle):
            return f"thread {thread.name if thread else thread_id}, in {(script_frame or frame).f_code.co_name}"
    return ""


def read_main_stack() -> list[traceback.FrameSummary]:
    """The stack of the main thread, outermost frame first; [] if the thread has ended."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return []
    return [summary for summary in traceback.extract_stack(frame) if not summary.filename.startswith("<frozen")]


def is_at_prompt(stack: list[traceback.FrameSummary]) -> bool:
    """Whether this rank waits for a person's input at a prompt: its main thread has no frame, or is in the editor."""
    return hasattr(sys, "ps1") and (not stack or "_pyrepl" in stack[-1].filename)


def find_script_frame(stack: Iterable[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """The innermost of the script's own lines; None if there is none."""
    return next((frame for frame in reversed(list(stack)) if not is_library(frame.filename)), None)


def describe_place(stack: list[traceback.FrameSummary]) -> str:
    """The position of the script: the innermost of its own lines, and the innermost line if that is a library's."""
    if not stack:
        return "its end"
    script_frames = [frame for frame in stack if not is_library(frame.filename)]
    if script_frames and script_frames[-1] is stack[-1]:
        return _format_frame(script_frames[-1])
    place = _format_frame(script_frames[-1]) if script_frames else "no line of its own"
    return f"{place}, within {_format_frame(stack[-1])}"


def format_stack(stack: list[traceback.FrameSummary]) -> tuple[str, ...]:
    """The innermost frames of `stack`, for messages, without the frames that started the script."""
    start = next((index for index, frame in enumerate(stack) if not is_library(frame.filename)), 0)
    return tuple(f"    {_format_frame(frame)}" for frame in stack[start:][-_MAX_SHOWN:])


def _format_frame(frame: traceback.FrameSummary) -> str:
    return f"{os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name}: {frame.line}"
