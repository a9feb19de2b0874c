"""One voice: only rank 0 prints, and an error of any rank reaches the terminal once, with its rank and host."""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from matex_tf import errors, settings
from matex_tf.runtime import rank_records, script_frames, shutdown
from matex_tf.world import exit_codes, launcher_variables, membership, terminal, world

_FRAME = re.compile(r'  File "(.*)", line \d+, in .*\n(?:    .*\n|\n)*')
# TensorFlow gives where an op was made within the text of its error only.
_OP_FRAMES = re.compile(rf"(Detected at node .* defined at \(most recent call last\):\n)((?:{_FRAME.pattern})+)")


def attach_hooks() -> None:
    """Silence the ranks that are not the first, and give errors their way to the terminal."""
    me = world.get_world()
    shutdown.script_ended.append(report_unreported)
    faulthandler.enable(file=terminal.keep_streams())
    sys.excepthook = _report_error
    if me.rank > 0 and (settings.get_settings().output == "first" or settings.get_settings().log_dir):
        _redirect_output(me.rank)
    _match_launcher_terminal()
    exit_codes.watch_main_module()
    sys.exit = _exit  # type: ignore[assignment]
    for name in ("exit", "quit"):
        if hasattr(builtins, name):
            setattr(builtins, name, _exit)
    os._exit = _exit_at_once  # type: ignore[assignment]
    shutdown.before_finalize.append(_remove_hooks)


def _remove_hooks() -> None:
    """All ranks have ended: what Python meets while it takes its modules apart is no error of the run."""
    if sys.excepthook is _report_error:
        sys.excepthook = sys.__excepthook__
    sys.exit = _plain_exit
    os._exit = _exit_after_others


def _match_launcher_terminal() -> None:
    """Say that standard output is no terminal where that of mpirun is none.

    Open MPI gives each rank a terminal of its own, so that colours and moving progress bars would end up in a log.
    """
    try:
        launcher = f"/proc/{os.getppid()}"
        with open(f"{launcher}/comm") as file:
            is_launcher = file.read().strip() in ("prterun", "mpirun", "mpiexec", "orterun")
        goes_to = os.readlink(f"{launcher}/fd/1")
    except OSError:
        return
    if is_launcher and not goes_to.startswith(("/dev/pts/", "/dev/tty")):
        sys.stdout.isatty = lambda: False  # type: ignore[method-assign]


def _redirect_output(rank: int) -> None:
    folder, log = settings.get_settings().log_dir, None
    if folder:
        try:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, f"rank-{rank}.log")
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, f"{path}.1")  # why the run before was lost may stand there
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise errors.SetupError(f"MATEX_LOG_DIR={folder!r}: expected a folder to write to: {error}") from None
    terminal.redirect_output(log, keeps=settings.get_settings().elastic)
    if log is not None:
        os.close(log)


_plain_exit: Callable[..., Any] = sys.exit


def _exit(code: object = None) -> None:
    if threading.current_thread() is threading.main_thread():  # of another thread it ends only that
        exit_codes.note_exit(code)
    _plain_exit(code)


_plain_exit_at_once: Callable[..., NoReturn] = os._exit


def _exit_at_once(code: int) -> None:
    """`os._exit`, which ends a script well only if all ranks come to it, or to their ends; children are left alone."""
    if not world.is_active():
        _plain_exit_at_once(code)
    stack = traceback.extract_stack()[:-1]
    is_in_a_step = any(frame.filename.endswith("script_ops.py") for frame in stack)  # a Python function of a graph
    if code == 0 and threading.current_thread() is threading.main_thread() and not is_in_a_step:
        shutdown.end_rank()
        shutdown.run_after_end()
        _exit_after_others(code)
    me = world.get_world()
    place = f"{os.path.basename(stack[-1].filename)}, line {stack[-1].lineno}, in {stack[-1].name}"
    shutdown.abort_with_error(
        f"matex_tf: rank {me.rank} of {me.size} on {me.host} ended itself: os._exit({code}) at {place}\n",
        code, is_loss=True,
    )  # fmt: skip


def _exit_after_others(status: int) -> NoReturn:
    """`os._exit` once all ranks have come to the end of the script: with 0 it is this one's good end."""
    if status == 0:
        rank_records.confirm_end()
    _plain_exit_at_once(status)


def describe_error(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python prints it, headed by rank and host; without our frames unless MATEX_TRACEBACK=full."""
    me = world.get_world()
    if isinstance(error, errors.LostRankError):
        return f"matex_tf: {error}\n"  # no fault of the script, nor of a place in it
    if isinstance(error, errors.BuildError):
        return f"matex_tf: rank {me.rank} of {me.size} on {me.host}: {error}\n"  # nor is what this machine lacks
    error.__traceback__, hint = trace, ""
    if settings.get_settings().traceback == "script":
        for shown in _list_shown_errors(error):
            short = _drop_own_frames(shown.__traceback__)
            if short is not shown.__traceback__:
                shown.__traceback__, hint = short, " (MATEX_TRACEBACK=full shows the frames of matex_tf, too)"
    text = "".join(traceback.format_exception(error))
    if settings.get_settings().traceback == "script":
        text = _OP_FRAMES.sub(_drop_library_frames, text)
    if isinstance(error, KeyError):
        lacking = launcher_variables.taken.intersection(map(str, error.args))
        text += "".join(f"{launcher_variables.explain_lack(name)}.\n" for name in lacking)
    return f"matex_tf: rank {me.rank} of {me.size} on {me.host} failed{_format_script_line(error)}{hint}:\n{text}"


def _drop_library_frames(found: re.Match[str]) -> str:
    """Of where an op of a graph was made the lines of the script, as a traceback has them."""
    frames = (frame for frame in _FRAME.finditer(found[2]) if not script_frames.is_library(frame[1]))
    return found[1] + "".join(frame[0].rstrip("\n") + "\n" for frame in frames if not frame[1].startswith("<"))


def _format_script_line(error: BaseException) -> str:
    """The innermost line of the script that `error` went through."""
    lines = [one for one in traceback.extract_tb(error.__traceback__) if not script_frames.is_library(one.filename)]
    return f" at {os.path.basename(lines[-1].filename)}, line {lines[-1].lineno}" if lines else ""


def _drop_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """`trace` without our frames and those of `runpy`, which starts scripts; itself if it has no others, or none."""
    entries: list[TracebackType] = []
    kept: TracebackType | None = None
    while (entry := entries[-1].tb_next if entries else trace) is not None:
        entries.append(entry)
    scripts = [entry for entry in entries if script_frames.find_package(entry.tb_frame) not in ("matex_tf", "runpy")]
    for entry in reversed(scripts):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept if 0 < len(scripts) < len(entries) else trace


def _list_shown_errors(error: BaseException) -> list[BaseException]:
    """`error` and those that Python shows beside it: what it was raised from or after, and those of a group."""
    found = [error]
    for one in found:
        others = [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
        found += [other for other in others if other is not None and all(other is not known for known in found)]
    return found


def _report_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    me = world.get_world()
    if os.getpid() != me.process or not world.is_active():
        sys.__excepthook__(kind, error, trace)
        return
    told = _read_collectives_text(error)
    code = 130 if issubclass(kind, KeyboardInterrupt) else _parse_exit_code(told)
    follows = any(sign in told for sign in (membership.TOLD_ELSEWHERE, membership.LEFT_WITH))
    if follows:
        shutdown.await_cause()
    follows = follows or membership.is_loss_of_another(error)
    shutdown.abort_with_error(describe_error(error, trace), code, follows, membership.is_loss(error))


def end_for_loss(error: errors.LostRankError) -> None:
    """End all ranks, whatever the script would do with the error: it must not go on as if nothing were lost."""
    _report_error(type(error), error, error.__traceback__)


def refuse_after_loss(what: str) -> None:
    """Where ranks were lost, end the run before `what`, which cannot go on without them: it is then started again."""
    if world.get_world().has_lost:
        end_for_loss(membership.make_loss_error(f"{what} cannot go on with fewer ranks than the run began with"))


def report_unreported() -> None:
    """An error that ended the script, and was shown by a hook of its own, ends all ranks, too."""
    error = getattr(sys, "last_value", None)
    if error is not None and sys.excepthook is not _report_error and not hasattr(sys, "ps1"):
        _report_error(type(error), error, error.__traceback__)


def _read_collectives_text(error: BaseException) -> str:
    """The texts of collectives that failed among `error` and the errors beside it; an error of the script has none.

    TensorFlow raises the error of a collective as one of its own, whose text has the head of a `RankError` within it.
    """
    head = str(errors.RankError(""))
    return "\n".join(
        str(one)
        for one in _list_shown_errors(error)
        if isinstance(one, errors.MismatchError)
        or (head in str(one) and any(base.__name__ == "OpError" for base in type(one).__mro__))
    )


def _parse_exit_code(message: str) -> int:
    """The exit code of the rank that left the others, where that is what the error says; else 1."""
    found = re.search(membership.LEFT_WITH + r" (\d+)", message)
    return int(found.group(1)) if found else 1
