"""Whose code a frame of the stack runs, and for whom. Its module says so; a path does not: scripts lie anywhere.

Of a stack that is shown to people, the path has to do.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

_SHOWN = 16  # frames of a stack
_WAITING = (threading.Condition.wait.__code__, concurrent.futures.thread._worker.__code__)
"""Where a thread waits for work, as the innermost of its frames."""


def find_package(frame: FrameType) -> str:
    """The outermost package of the module whose code `frame` runs; "__main__" for a script."""
    return _read_package(frame.f_globals)


def find_function_package(function: Callable[..., Any]) -> str:
    """The same of the code of a function; empty for what is called otherwise."""
    return _read_package(getattr(function, "__globals__", {}))


def _read_package(names: dict[str, Any]) -> str:
    spec = names.get("__spec__")  # a module that was started by `-m` has its name there only
    name = names.get("__name__", "") if spec is None else spec.name
    return name.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def is_library(path: str) -> bool:
    """Whether the source file at `path` looks like a library's, Python's or ours."""
    path = os.path.abspath(path) if not path.startswith("<") else path
    looks_so = (part in path for part in ("site-packages", "dist-packages", f"lib{os.sep}python"))
    return path.startswith(("<frozen", *_list_own_folders())) or any(looks_so)


@functools.cache
def _list_own_folders() -> tuple[str, ...]:
    """Those of the package, of which some stand beside it in a checkout."""
    specs = (importlib.util.find_spec(name) for name in ("matex_tf", "matex_tf.ops", "matex_tf.readers"))
    return tuple(os.path.join(os.path.dirname(spec.origin), "") for spec in specs if spec and spec.origin)


def find_thread_at_work() -> str:
    """A thread but the main one that may print or write for the script, and where it is; empty if there is none.

    That is one in code of the script, one of a library, such as a pool, that does not wait for work, and a timer.
    """
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        thread = threads.get(number)  # C++ code has threads that Python does not know
        if thread is threading.main_thread():
            continue
        frames = [inner for inner, _ in traceback.walk_stack(frame)]
        own = next((inner for inner in frames if not is_library(inner.f_code.co_filename)), None)
        is_pending = isinstance(thread, threading.Timer) and find_function_package(thread.function) != "matex_tf"
        beyond = (find_package(inner) for inner in reversed(frames))
        serves_us = next((name for name in beyond if name != "threading"), "") == "matex_tf"
        if own or is_pending or not (serves_us or frame.f_code in _WAITING):
            return f"thread {thread.name if thread else number}, in {(own or frame).f_code.co_name}"
    return ""


def describe_place(stack: list[traceback.FrameSummary]) -> str:
    """Where the script is: the innermost of its own lines, and the line at work if that is a library's."""
    if not stack:
        return "its end"
    own = [one for one in stack if not is_library(one.filename)]
    place = _format_frame(own[-1]) if own else "no line of its own"
    return place if own and own[-1] is stack[-1] else f"{place}, within {_format_frame(stack[-1])}"


def format_stack(stack: list[traceback.FrameSummary]) -> tuple[str, ...]:
    """The innermost frames of `stack`, for people, without those of who started the script."""
    first = next((number for number, one in enumerate(stack) if not is_library(one.filename)), 0)
    return tuple(f"    {_format_frame(one)}" for one in stack[first:][-_SHOWN:])


def _format_frame(frame: traceback.FrameSummary) -> str:
    return f"{os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name}: {frame.line}"
