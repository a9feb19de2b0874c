"""The text of an error that ends the run: rank, host, the script's line, and the traceback without our frames."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from types import TracebackType
from typing import Any

from matex_tf import errors, settings
from matex_tf.runtime import script_frames
from matex_tf.world import launcher_variables, world

# A frame of a traceback as text; its only group is the file.
_FRAME = re.compile(r'  File "(.*)", line \d+, in .*\n(?:    .*\n|\n)*')
# TensorFlow puts the stack of an op's creation only into the error text. Groups: 1 the header, 2 all frames.
_OP_FRAMES = re.compile(rf"(Detected at node .* defined at \(most recent call last\):\n)((?:{_FRAME.pattern})+)")


def describe_error(error: BaseException, trace: TracebackType | None, thread_text: str = "") -> str:
    """The traceback in Python's format, with rank and host, and without our frames unless MATEX_TRACEBACK=full.

    thread_text: added to the first line, such as " in the thread 'reader'".
    """
    me = world.get_world()
    if isinstance(error, errors.LostRankError):
        return f"matex_tf: {error}\n"  # no line of the script caused it
    if isinstance(error, errors.BuildError):
        return f"matex_tf: rank {me.rank} of {me.size} on {me.host}: {error}\n"  # the machine caused it
    error.__traceback__ = trace
    hint = ""
    if settings.get_settings().traceback == "script":
        for shown_error in list_shown_errors(error):
            shortened = _drop_own_frames(shown_error.__traceback__)
            if shortened is not shown_error.__traceback__:
                shown_error.__traceback__, hint = shortened, " (MATEX_TRACEBACK=full shows the frames of matex_tf, too)"
    text = "".join(traceback.format_exception(error))
    if settings.get_settings().traceback == "script":
        text = _OP_FRAMES.sub(_drop_library_frames, text)
    if isinstance(error, KeyError):
        # Variables of the launcher that the library has removed from the environment of ranks.
        missing_variables = launcher_variables.removed.intersection(map(str, error.args))
        text += "".join(f"{launcher_variables.explain_missing(name)}.\n" for name in missing_variables)
    place = f"{thread_text}{format_script_line(error)}"
    return f"matex_tf: rank {me.rank} of {me.size} on {me.host} failed{place}{hint}:\n{text}"


def _drop_library_frames(match: re.Match[str]) -> str:
    """The script's lines of an op's creation stack, in the format of a traceback."""
    frames = (frame for frame in _FRAME.finditer(match[2]) if not script_frames.is_library(frame[1]))
    return match[1] + "".join(frame[0].rstrip("\n") + "\n" for frame in frames if not frame[1].startswith("<"))


def format_script_line(error: BaseException) -> str:
    """The innermost line of the script in the traceback of `error`, as text."""
    # Of a compiled library, a frame may name a source file that is not there; its module names the compiled file.
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not script_frames.is_library(str(frame.f_globals.get("__file__") or "<unknown>"))
    ]
    # In a tf.function, frames are of code that AutoGraph has generated. It adds the script's, innermost first.
    if (metadata := getattr(error, "ag_error_metadata", None)) is not None:
        frames += [(frame.filename, frame.lineno) for frame in reversed(metadata.translated_stack)]
    lines = [(path, line) for path, line in frames if not script_frames.is_library(path)]
    return f" at {os.path.basename(lines[-1][0])}, line {lines[-1][1]}" if lines else ""


_make_plain = traceback.TracebackException.__init__


def hide_own_frames() -> None:
    """Let Python print and log tracebacks without the frames of this package, unless MATEX_TRACEBACK=full."""
    if settings.get_settings().traceback == "script":
        traceback.TracebackException.__init__ = _make_shown  # type: ignore[method-assign]


def _make_shown(self: Any, exc_type: Any, exc_value: Any, exc_traceback: TracebackType | None, **options: Any) -> None:
    """Replaces the initializer of `TracebackException`, from which Python prints and logs tracebacks."""
    _make_plain(self, exc_type, exc_value, _drop_own_frames(exc_traceback, ("matex_tf",)), **options)


def _drop_own_frames(
    trace: TracebackType | None, packages: tuple[str, ...] = ("matex_tf", "runpy")
) -> TracebackType | None:
    """`trace` without the frames of these packages and of their `with`; unchanged if they are all frames or none."""
    shown_entries: list[TracebackType] = []
    entry, is_own, drops_any = trace, False, False
    while entry is not None:
        package = script_frames.find_package(entry.tb_frame)
        is_own = package in packages or (is_own and package == contextlib.__name__)
        drops_any = drops_any or is_own
        if not is_own:
            shown_entries.append(entry)
        entry = entry.tb_next
    if not (shown_entries and drops_any):
        return trace
    shortened: TracebackType | None = None
    for shown_entry in reversed(shown_entries):
        shortened = TracebackType(shortened, shown_entry.tb_frame, shown_entry.tb_lasti, shown_entry.tb_lineno)
    return shortened


def list_shown_errors(error: BaseException) -> list[BaseException]:
    """`error` and the errors that Python shows with it: causes, contexts, and members of a group."""
    shown_errors = [error]
    for shown_error in shown_errors:  # grows meanwhile
        related_errors = [shown_error.__cause__, shown_error.__context__, *getattr(shown_error, "exceptions", ())]
        shown_errors += [
            related
            for related in related_errors
            if related is not None and all(related is not known for known in shown_errors)
        ]
    return shown_errors
