"""System commands that a script runs and waits for: rank 0 runs them, and all ranks receive the result.

A command sees only the disk. If every rank ran `rm -rf logs`, a late rank would remove files that rank 0 has written
since.

Commands of libraries, and processes that a script starts without waiting (`Popen`), run on each rank. In their
arguments, paths of files in the upper layer are replaced by the places of these files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.files import journal, overlay
from matex_tf.runtime import first_rank, objects, real_files, script_frames
from matex_tf.runtime.hooks import Table
from matex_tf.thread_flag import ThreadFlag
from matex_tf.world import world

HOOKS = Table()

# What happens without a hook of this module, for the message about a hook that could not be installed.
_IF_HOOK_MISSING = "each rank runs a command of the script"
_IF_PATHS_ARE_NOT_REPLACED = "a command does not find the files of its rank"

_WORD = re.compile(r"[^\s'\"`$&|;<>(){}*?\[\]\\=]+")  # of a shell command: a text that may be a path
_COMMAND_BEGINS = re.compile(r"(?:^|[|;&(])\s*$")  # the end of a text after which the name of a program follows

_is_inside = ThreadFlag()  # set while this thread runs a command that all ranks have reached
_SHOWN_CHARACTERS = 60  # of a command in messages
_STREAMS = ("stdout", "stderr")
_OF_THE_RANK = ("env", "stdin", *_STREAMS, "preexec_fn")  # options that may differ between ranks for the same command


def _runs_for_all_ranks() -> bool:
    """Whether rank 0 runs the command that this thread has reached for all ranks.

    It does if all ranks reach the command, and the script runs it, not a library. It does not within a command that
    rank 0 already runs, or if each rank has its own output (`MATEX_OUTPUT=all`).

    A library may run a command on one rank only, such as `tput` on the rank with a terminal, or ask each host about
    itself. So ranks do not meet at its commands. Only the stack tells the script from a library.
    """
    if _is_inside or settings.get_settings().output == "all" or not overlay.is_reached_by_all():
        return False
    caller = sys._getframe(2)  # the caller of the function that replaces `os.system` and the like
    while caller.f_back is not None and caller.f_globals.get("__name__") == "subprocess":
        caller = caller.f_back  # such as `check_output`, which calls `run`
    return not script_frames.is_library(caller.f_code.co_filename)


def _run_on_rank_0(run: Callable[[], Any], name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Call `run` on rank 0; return its result, or raise its exception, on every rank. Collective.

    If the ranks' commands differ, for example in a temporary folder, each rank runs its own.

    Args:
        name: the name of the function that runs the command.
        arguments, options: the positional and keyword arguments of that function.
    """
    own_hash = _hash_command(name, arguments, options)
    ops.records.mark_between_steps()  # the time of the command is no part of a training step in the records
    hashes = objects.allgather(own_hash, "a command that the script runs")
    with _is_inside.set():
        if len(set(hashes)) > 1:  # all ranks see the same hashes, so each runs its own command here
            return run()
        shown_command = str(arguments[0] if arguments else name)[:_SHOWN_CHARACTERS]
        with _adopt_changes(options):
            objects.barrier("a command begins")
            result, error = first_rank.catch_on_first(run, "the result of a command", f"running {shown_command!r}")
        objects.barrier("a command has ended")
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def _adopt_changes(options: Mapping[str, Any]) -> Iterator[None]:
    """A context around a command on rank 0: the ranks of rank 0's host then see how the command changed the disk.

    Before the command a rank notes which of its private files also exist on the disk, and after the command it updates
    these files from the disk. Rank 0 then records that all ranks are up to date.

    All ranks enter before the command and leave after it, so that no other change by the script overlaps with the
    command. Ranks of other hosts adopt nothing, because they may have other disks.
    """
    me = world.get_world()
    view = overlay.get_view() if me.host == me.hosts[0] else None
    with real_files.use_real_files():
        private_keys = view.list_own_on_disk() if view is not None else set()
    yield  # rank 0 runs the command, and all ranks wait for its result
    with real_files.use_real_files():
        if (writer := journal.get_writer()) is not None:
            writer.mark_caught_up()
        elif view is not None:
            # The files of the script to which the command has written, by `stdout=` and `stderr=`. They are open here.
            output_names = [getattr(options.get(stream), "name", None) for stream in _STREAMS]
            output_paths = [name for name in output_names if isinstance(name, (str, bytes, os.PathLike))]
            output_keys = {key for path in output_paths if (key := view.find_key(path)) is not None}
            view.adopt_disk(private_keys, output_keys)


def _hash_command(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> str:
    """A hash of a command and the working folder, without the options `_OF_THE_RANK`, such as open files."""
    common_options = {key: value for key, value in options.items() if key not in _OF_THE_RANK}
    text = repr((name, _normalize_value(list(arguments)), _normalize_value(common_options), os.getcwd()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _normalize_value(value: Any) -> Any:
    """Convert `value` to a form with the same `repr` on all ranks."""
    if isinstance(value, Mapping):
        return [(str(key), _normalize_value(value[key])) for key in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [_normalize_value(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, (str, bytes, int, float, type(None))) else type(value).__name__


def _replace_paths_in_command(command: Any) -> Any:
    """Replace paths of this rank's own files in a command for `os.system` by their real paths."""
    arguments = {"args": command, "shell": True}
    _replace_paths_in_arguments(arguments)
    return arguments["args"]


@HOOKS.replace("os", "system", _IF_HOOK_MISSING)
def _wrap_system(original: Any) -> Any:
    def system(command):
        if not _runs_for_all_ranks():
            return original(_replace_paths_in_command(command))
        return _run_on_rank_0(lambda: original(_replace_paths_in_command(command)), "system", [command], {})

    return system


@HOOKS.replace("subprocess", "run call", _IF_HOOK_MISSING)
def _wrap_command(original: Any) -> Any:
    """A hook for `run` and `call`. The other functions that wait for a command, such as `check_output`, call them."""

    def run(*args, **kwargs):
        if not _runs_for_all_ranks():
            return original(*args, **kwargs)
        return _run_on_rank_0(lambda: original(*args, **kwargs), original.__name__, args, kwargs)

    return run


class _Output(io.StringIO):
    """The output of a command, as the file object of `os.popen`."""

    def __init__(self, text: str, status: int | None):
        super().__init__(text)
        self._status = status

    def close(self) -> int | None:  # type: ignore[override]  # as the file object of `os.popen` does
        super().close()
        return self._status


@HOOKS.replace("os", "popen", _IF_HOOK_MISSING)
def _wrap_popen(original: Any) -> Any:
    def popen(cmd, mode="r", buffering=-1):
        if mode != "r" or not _runs_for_all_ranks():
            return original(cmd, mode, buffering)

        def read() -> tuple[str, int | None]:
            stream = original(cmd, mode, buffering)
            text = stream.read()
            return text, stream.close()

        return _Output(*_run_on_rank_0(read, "popen", [cmd], {}))

    return popen


@HOOKS.replace("subprocess", "Popen.__init__", _IF_PATHS_ARE_NOT_REPLACED, when=overlay.has_view)
def _wrap_process(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs):
        call = signature.bind(self, *args, **kwargs)
        _replace_paths_in_arguments(call.arguments)
        return original(*call.args, **call.kwargs)

    return __init__


def _replace_paths_in_arguments(arguments: dict[str, Any]) -> None:
    """Replace paths of this rank's own files in the `arguments` of `Popen` by their real paths.

    A process sees only the disk. It finds a rank's own files only through its working folder and the paths among its
    arguments.
    """
    if real_files.uses_real_files() or not overlay.has_view():
        return
    try:
        folder = os.path.join(os.getcwd(), os.fsdecode(arguments.get("cwd") or ""))
    except FileNotFoundError:  # the current folder was removed, and no own files are in it
        return
    command, real_folder = arguments["args"], _find_real_path(folder)
    is_folder_own = real_folder is not None
    if is_folder_own:
        arguments["cwd"] = real_folder
    if isinstance(command, str) and arguments.get("shell"):
        arguments["args"] = _WORD.sub(functools.partial(_replace_match, folder, is_folder_own), command)
    elif isinstance(command, (list, tuple)):
        arguments["args"] = [
            _locate_word(word, folder, is_folder_own, is_first=index == 0) or word for index, word in enumerate(command)
        ]


def _replace_match(folder: str, is_folder_own: bool, match: re.Match[str]) -> str:
    """A word of a shell command, or the real path of this rank's own file that the word names."""
    is_first = _COMMAND_BEGINS.search(match.string[: match.start()]) is not None
    real_path = _locate_word(match[0], folder, is_folder_own, is_first)
    # The word may be within quotes already, or not. So a path that needs quotes cannot replace it.
    needs_quotes = real_path is not None and real_path != shlex.quote(real_path)
    return match[0] if real_path is None or needs_quotes else real_path


def _locate_word(word: Any, folder: str, is_folder_own: bool, is_first: bool) -> str | None:
    """The real path of this rank's own file that a word of a command names; None if the word stays.

    Args:
        folder: the working folder of the process.
        is_folder_own: the folder is in the private folder. The process starts in its real path, and finds relative
            paths there.
        is_first: the word names a program, which the system searches in PATH if the word is no path.
    """
    if not isinstance(word, (str, bytes, os.PathLike)):
        return None
    path = os.fsdecode(word)
    is_program = is_first and os.sep not in path
    starts_in_folder = is_folder_own and not os.path.isabs(path)
    return None if is_program or starts_in_folder else _find_real_path(os.path.join(folder, path))


def _find_real_path(path: str) -> str | None:
    """The real path, in the private folder, where a process finds the file `path`; None if it is at `path` itself."""
    if "\0" in path:
        return None  # the original function reports the error
    with real_files.use_real_files():
        try:
            key = overlay.get_own_view().find_key(path)
        except OSError:  # a loop of links
            return None
        real_path = None if key is None else overlay.get_own_view().locate_for_child(key)
    is_on_disk = real_path == key
    return None if is_on_disk else real_path
