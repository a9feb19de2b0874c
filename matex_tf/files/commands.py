"""Commands of the system that a script runs and waits for: rank 0 runs them, and every rank has what came of it.

A command sees the real files: run by every rank, `rm -rf logs` would remove what rank 0 has written since.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from matex_tf import ops, settings
from matex_tf.files import journal, overlay
from matex_tf.runtime import objects, real_files, watchdog
from matex_tf.world import world

_state = threading.local()
_SHOWN = 60  # characters of a command in messages
_STREAMS = ("stdout", "stderr")
_OF_THE_RANK = ("env", "stdin", *_STREAMS, "preexec_fn")


def are_shared() -> bool:
    """Whether a command that this thread comes to now is one that every rank comes to, and none runs for itself yet.

    Where the script asked for its rank, which rank is to run a command is its own affair.
    """
    if (
        world.script_knows_ranks
        or getattr(_state, "inside", False)
        or not world.is_active()
        or settings.get_settings().output == "all"
    ):
        return False
    return threading.current_thread() is threading.main_thread() and not real_files.uses_real_files()


def run_on_rank_0(run: Callable[[], Any], name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What `run` returns or raises on rank 0, on every rank, once it is done. Collective.

    Ranks whose commands are not the same, such as those that name a temporary folder, run each its own.

    Args:
        name: of the function that runs the command.
        arguments: what that is called with; so `options`.
    """
    mine = _hash_command(name, arguments, options)
    ops.records.mark_between_steps()
    everyone = objects.allgather(mine, "a command that the script runs")
    _state.inside = True
    try:
        if any(digest != mine for digest in everyone):
            return run()
        with _adopt_changes(options):
            objects.barrier("a command begins")
            outcome = None
            if world.get_world().rank == 0:
                with watchdog.excuse_wait(f"running {str(arguments[0] if arguments else name)[:_SHOWN]!r}"):
                    outcome = _catch_outcome(run)
            result, error = objects.broadcast(outcome, "what came of a command")
        objects.barrier("a command has ended")
    finally:
        _state.inside = False
    if error is not None:
        raise error
    return result


@contextlib.contextmanager
def _adopt_changes(options: Mapping[str, Any]) -> Iterator[None]:
    """What is changed on the disk within it is changed for this rank; on other hosts the disk may be another one.

    All ranks have come to it, and none goes on before all have left it: else what the script does is mixed up with it.
    """
    me = world.get_world()
    view = overlay.get_view() if me.host == me.hosts[0] else None
    with real_files.use_real_files():
        own = view.list_own_on_disk() if view is not None else set()
    yield
    with real_files.use_real_files():
        if (news := journal.get_writer()) is not None:
            news.mark_caught_up()
        elif view is not None:
            names = [getattr(options.get(stream), "name", None) for stream in _STREAMS]
            keys = (view.find_key(name) for name in names if isinstance(name, (str, bytes, os.PathLike)))
            view.adopt_disk(own, {key for key in keys if key is not None})


def _catch_outcome(run: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What `run` returns, or the exception that it raises, as the other ranks can have it."""
    try:
        outcome: tuple[Any, BaseException | None] = run(), None
        pickle.dumps(outcome)
    except Exception as error:
        try:
            copy.deepcopy(error)  # by what pickle makes it of
            outcome = None, error
        except Exception:  # one that cannot be sent
            outcome = None, RuntimeError(f"{type(error).__name__}: {error}")
    return outcome


def _hash_command(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Of what a command does; without the open files, which are each rank's."""
    kept = {key: value for key, value in options.items() if key not in _OF_THE_RANK}
    text = repr((name, _normalize_value(list(arguments)), _normalize_value(kept), os.getcwd()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _normalize_value(value: Any) -> Any:
    """`value` in words that say the same on all ranks."""
    if isinstance(value, Mapping):
        return [(str(key), _normalize_value(value[key])) for key in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [_normalize_value(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, (str, bytes, int, float, type(None))) else type(value).__name__
