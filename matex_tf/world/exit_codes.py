"""The exit codes of this library, and the exit code of the script.

A rank needs the script's exit code before Python exits, because ranks exchange their codes at the end, and a rank that
aborts the others passes its own on. So the code is taken from the `SystemExit` that ends the script.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

EXIT_STALLED = 70
"""Ranks waited too long for others."""
EXIT_UNPROVED = 71
"""`matex run`: mpirun ended with 0, but the ranks did not record that all have reached the end of the script."""
EXIT_FULL = 74  # EX_IOERR of sysexits.h
"""The private files of a rank take more than MATEX_FILES_BYTES."""
EXIT_REQUEUE = 75  # EX_TEMPFAIL of sysexits.h
"""The run was asked to end and has saved its state."""

exit_code = 0
"""The exit code that the script has chosen; 0 if it has chosen none."""
exit_text = ""
"""The text that the script has passed to `sys.exit`."""

_is_watched = False  # see `mark_watched`


def watch_main_module() -> None:
    """Record the exit code of a SystemExit that ends the main module; a SystemExit that is caught has no effect.

    Python before 3.12 has no event for the end of a frame by an exception. There every call of `sys.exit` in the main
    thread counts (`note_exit`).
    """
    # Find the frame of the main module. There is none in an interactive session, for example.
    main_globals = sys.modules["__main__"].__dict__
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_globals is main_globals and frame.f_locals is main_globals):
        frame = frame.f_back
    if frame is None or sys.version_info < (3, 12):
        return
    main_code, monitoring = frame.f_code, sys.monitoring
    # 3 and 4 are free for any tool; the other numbers are reserved for debuggers and the like.
    tool_id = next((number for number in (3, 4) if monitoring.get_tool(number) is None), None)
    if tool_id is None:
        return

    def notice_end(unwound_code: CodeType, offset: int, error: BaseException) -> None:
        if unwound_code is main_code and isinstance(error, SystemExit):
            remember_exit_code(error.code)

    monitoring.use_tool_id(tool_id, "matex_tf")
    monitoring.register_callback(tool_id, monitoring.events.PY_UNWIND, notice_end)
    monitoring.set_events(tool_id, monitoring.events.PY_UNWIND)
    mark_watched()


def mark_watched() -> None:
    """Record that the end of the main module is watched: calls of `sys.exit` alone no longer count."""
    global _is_watched
    _is_watched = True


def note_exit(code: object) -> None:
    """Record a call of `sys.exit` in the main thread, unless the end of the main module is watched."""
    if not _is_watched:
        remember_exit_code(code)


def remember_exit_code(code: Any) -> None:
    """Record the argument of `sys.exit` that ends the script; a rank that aborts others uses its exit code."""
    global exit_code, exit_text
    exit_code = compute_exit_code(code)
    exit_text = "" if code is None or isinstance(code, int) else _describe_object(code)


def _describe_object(argument: object) -> str:
    try:
        return str(argument)
    except Exception as error:  # at its exit, Python also ignores an error of str()
        return f"an object of {type(argument)}, whose str() raises {type(error).__name__}"


def compute_exit_code(code: Any) -> int:
    """The exit code, 0 to 255, with which Python ends for the argument of `sys.exit`."""
    if not isinstance(code, int):
        return int(code is not None)
    return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def correct_failure_code(code: int) -> int:
    """The code with which a failing rank aborts all ranks: `code`, or 1 if it is invalid or 0."""
    return code if 0 < code < 256 else 1
