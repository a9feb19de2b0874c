"""The exit code of the script: what a `SystemExit` gives that ends it, also where others have to be ended first."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

EXIT_STALLED = 70
"""Ranks waited too long for others."""
EXIT_UNPROVED = 71
"""`matex run`: mpirun ended with 0, and the ranks have not said that all came to the end of the script."""
EXIT_FULL = 74  # EX_IOERR of sysexits.h
"""The private files of a rank take more than MATEX_FILES_BYTES."""
EXIT_REQUEUE = 75  # EX_TEMPFAIL of sysexits.h
"""The run was asked to end and has kept its state."""

exit_code = 0
"""The exit code that the script has chosen; 0 if it has not."""
exit_text = ""
"""What the script has given to `sys.exit` to be printed."""

_is_watched = False


def watch_main_module() -> None:
    """Have the exit code remembered of a SystemExit by which the main module ends; one that is caught ends nothing.

    Python before 3.12, which cannot tell of that, has it of each call of `sys.exit` in the main thread.
    """
    main = sys.modules["__main__"].__dict__
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_globals is main and frame.f_locals is main):
        frame = frame.f_back
    if frame is None or sys.version_info < (3, 12):
        return
    code, monitoring = frame.f_code, sys.monitoring
    # The other numbers are those of debuggers and the like.
    tool = next((one for one in (3, 4) if monitoring.get_tool(one) is None), None)
    if tool is None:
        return

    def notice_end(unwound: CodeType, offset: int, error: BaseException) -> None:
        if unwound is code and isinstance(error, SystemExit):
            remember_exit_code(error.code)

    monitoring.use_tool_id(tool, "matex_tf")
    monitoring.register_callback(tool, monitoring.events.PY_UNWIND, notice_end)
    monitoring.set_events(tool, monitoring.events.PY_UNWIND)
    mark_watched()


def mark_watched() -> None:
    """From now on it is known how the main module ends, and a call of `sys.exit` says nothing of that."""
    global _is_watched
    _is_watched = True


def note_exit(code: object) -> None:
    """`sys.exit` is called in the main thread."""
    if not _is_watched:
        remember_exit_code(code)


def remember_exit_code(code: Any) -> None:
    """The script ends with this argument of `sys.exit`; a rank that must abort others ends them with its own code."""
    global exit_code, exit_text
    exit_code = compute_exit_code(code)
    exit_text = "" if code is None or isinstance(code, int) else _describe_object(code)


def _describe_object(code: object) -> str:
    try:
        return str(code)
    except Exception as error:  # of which Python says nothing
        return f"an object of {type(code)}, whose text cannot be had: {type(error).__name__}"


def compute_exit_code(code: Any) -> int:
    """The exit code, 0 to 255, with which Python ends for the argument of `sys.exit`."""
    if not isinstance(code, int):
        return int(code is not None)
    return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def correct_failure_code(code: int) -> int:
    """`code`, with which a rank that fails ends all; 1 in place of what is none or would say that all went well."""
    return code if 0 < code < 256 else 1
