"""Processes that a rank starts by `multiprocessing` see the files of the rank, and rank 0's write notes to the journal.

A forked process has a copy of the view or the journal. A process of another start method, such as spawn, receives it
with the data by which Python prepares such a process; so do the processes that it starts itself.
"""

from __future__ import annotations

from typing import Any

from matex_tf.files import commands, journal, libraries, overlay, python, tensorflow
from matex_tf.files.view import View
from matex_tf.runtime.hooks import Table
from matex_tf.world import world

HOOKS = Table(when=overlay.is_on, later=True)

_KEY = "files of the rank"  # which Python ignores among the data


class _Files:
    """The view of this rank, or its journal. It takes effect in the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        view, writer = overlay.get_view(), journal.get_writer()
        described = view.describe() if view is not None else None if writer is None else writer.describe()
        return _adopt_files, (described, view is not None, world.script_knows_ranks)


@HOOKS.replace("multiprocessing.spawn", "get_preparation_data", "a process that a rank starts sees other files")
def _wrap_preparation(original: Any) -> Any:
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), _KEY: _Files()}

    return get_preparation_data


def _adopt_files(described: dict[str, Any] | None, has_view: bool, script_knows_ranks: bool) -> None:
    if described is None:
        return
    world.script_knows_ranks = script_knows_ranks
    if has_view:
        overlay.adopt_view(View.adopt(**described))
        python.install_view()
    else:
        journal.Journal.adopt(**described).start_writing()
    for table in (libraries.HOOKS, tensorflow.HOOKS, commands.HOOKS, HOOKS):
        table.install()
