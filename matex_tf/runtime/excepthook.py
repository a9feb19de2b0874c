"""Output and errors of a run: only rank 0 prints, and an error of any rank is shown once, with its rank and host.

`attach_hooks` replaces `sys.excepthook`, `threading.excepthook`, `sys.exit` and `os._exit`, and redirects the output of
ranks other than 0. An uncaught error on a rank ends all ranks. It is shown without the frames of this library. One
error may cause others: if rank 1 raises a ValueError, rank 0 fails in its next collective with rank 1. Then rank 1's
error is the one to show.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from matex_tf import errors, ops, settings
from matex_tf.runtime import losses, rank_records, shutdown, thread_errors, tracebacks
from matex_tf.thread_flag import is_main_thread
from matex_tf.world import exit_codes, launcher_processes, membership, terminal, world


def attach_hooks() -> None:
    """Silence all ranks except the first, and install the handlers of errors and exits.

    Functions in the lists of `shutdown` run at the end: of this rank's script (`script_ended`), of all scripts
    (`at_end`), and of MPI (`before_finalize`).
    """
    me = world.get_world()
    shutdown.script_ended.append(report_unreported)
    faulthandler.enable(file=terminal.duplicate_streams())
    sys.excepthook = _report_error
    threading.excepthook = _note_thread_error
    tracebacks.hide_own_frames()
    shutdown.at_end.append(thread_errors.report)
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
    """Remove the handlers after all ranks have ended: exceptions while Python shuts down are no errors of the run."""
    if sys.excepthook is _report_error:
        sys.excepthook = sys.__excepthook__
    if threading.excepthook is _note_thread_error:
        threading.excepthook = _plain_thread_hook
    sys.exit = _plain_exit
    os._exit = _exit_after_others


def _match_launcher_terminal() -> None:
    """Make standard output a non-terminal if mpirun's output is none.

    Open MPI gives each rank a pseudo-terminal. Colours and progress bars would otherwise end up in log files.
    """
    if launcher_processes.is_mpirun_at_terminal(1) is False:  # 1: the descriptor of standard output; None: unknown
        sys.stdout.isatty = lambda: False  # type: ignore[method-assign]


def _redirect_output(rank: int) -> None:
    """Send the output of this rank to its log in MATEX_LOG_DIR, or to nowhere. Raises SetupError."""
    folder, log = settings.get_settings().log_dir, None
    if folder:
        try:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, f"rank-{rank}.log")
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, f"{path}.1")  # the log of the previous start may explain its loss
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise errors.SetupError(f"MATEX_LOG_DIR={folder!r}: expected a folder to write to: {error}") from None
    # In an elastic run this rank may replace rank 0, and then prints the output that it has stored.
    terminal.redirect_output(log, stores=settings.get_settings().elastic)
    if log is not None:
        os.close(log)


_plain_exit: Callable[..., Any] = sys.exit


def _exit(code: object = None) -> None:
    """Replaces `sys.exit`, `exit` and `quit`: records the exit code."""
    if is_main_thread():  # in another thread, it ends only that thread
        exit_codes.note_exit(code)
    _plain_exit(code)


_plain_exit_at_once: Callable[..., NoReturn] = os._exit


def _exit_at_once(code: int) -> None:
    """Replaces `os._exit`. With code 0 the rank ends with all others, as at the end of the script.

    With another code, in another thread, or within a step, it aborts all ranks. A forked child only ends itself.
    """
    if not world.is_active():
        _plain_exit_at_once(code)
    stack = traceback.extract_stack()[:-1]
    if code == 0 and is_main_thread() and not _is_in_op():
        shutdown.end_rank()
        shutdown.run_after_end()
        _exit_after_others(code)
    me = world.get_world()
    place = f"{os.path.basename(stack[-1].filename)}, line {stack[-1].lineno}, in {stack[-1].name}"
    shutdown.abort_with_error(
        f"matex_tf: rank {me.rank} of {me.size} on {me.host} ended itself: os._exit({code}) at {place}\n",
        code, is_loss=True,
    )  # fmt: skip


def _is_in_op() -> bool:
    """Whether this thread runs a Python function that is an op of a graph, such as `tf.py_function`."""
    module = sys.modules.get("tensorflow.python.ops.script_ops")
    return module is not None and any(frame.f_globals is vars(module) for frame, _ in traceback.walk_stack(None))


def _exit_after_others(status: int) -> NoReturn:
    """`os._exit` after all ranks have reached the end of the script. With status 0, it confirms this rank's success."""
    if status == 0:
        rank_records.confirm_end()
    _plain_exit_at_once(status)


def _report_error(error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Replaces `sys.excepthook`: ends all ranks. Does not return, except in a forked child."""
    me = world.get_world()
    if os.getpid() != me.process or not world.is_active():
        sys.__excepthook__(error_type, error, trace)
        return
    text = tracebacks.describe_error(error, trace)
    code = 130 if issubclass(error_type, KeyboardInterrupt) else 1  # 128 + SIGINT, as in a shell
    # The rank where the error began should end the job, with its own exit code: this rank waits for it. The engine
    # recognizes in the texts an error of a collective that another rank has caused, by an error of its own or by the
    # end of its script.
    texts = "\n".join([text, *map(str, tracebacks.list_shown_errors(error))])
    is_consequence = ops.find_cause(texts) in (ops.Cause.ELSEWHERE, ops.Cause.ENDED)
    if is_consequence:
        shutdown.await_cause()
    is_consequence, is_loss = is_consequence or losses.is_loss_of_another(error), losses.is_loss(error)
    waits = not is_consequence and not is_loss and code == 1
    failure = f"{error_type.__name__}{tracebacks.format_script_line(error)}" if waits else ""
    shutdown.abort_with_error(thread_errors.describe() + text, code, is_consequence, is_loss, failure)


_plain_thread_hook = threading.excepthook  # Python's, or of a script that has set one before the import


def _note_thread_error(args: threading.ExceptHookArgs) -> None:
    """Replaces `threading.excepthook`: calls the hook before it, and keeps the error for `thread_errors.report`."""
    _plain_thread_hook(args)
    if args.exc_value is None or isinstance(args.exc_value, SystemExit) or not world.is_active():
        return
    thread_text = f" in the thread '{args.thread.name}'" if args.thread is not None else " in a thread"
    text = tracebacks.describe_error(args.exc_value, args.exc_traceback, thread_text)
    thread_errors.note(args.exc_value, args.exc_traceback, text)


def end_for_loss(error: errors.LostRankError) -> None:
    """End all ranks after a loss, whether or not the script would catch the error."""
    _report_error(type(error), error, error.__traceback__)


def refuse_after_loss(operation: str) -> None:
    """After a loss, end the run before `operation`, which requires all ranks. `matex run` may then restart it."""
    if world.get_world().has_lost:
        end_for_loss(membership.make_loss_error(f"{operation} cannot go on with fewer ranks than the run began with"))


def report_unreported() -> None:
    """End all ranks also for an error that the script's own excepthook has shown."""
    error = getattr(sys, "last_value", None)
    if error is not None and sys.excepthook is not _report_error and not hasattr(sys, "ps1"):
        _report_error(type(error), error, error.__traceback__)
