"""Processes that a rank starts by `multiprocessing` see and write the files of the rank, as its own process does.

A forked process has a copy of the view or the journal. A process of another start method, such as spawn, receives it
with the data by which Python prepares such a process.
"""

from __future__ import annotations

from typing import Any

from matex_tf.files import commands, journal, journal_reader, libraries, overlay, python, tensorflow
from matex_tf.files.view import View
from matex_tf.runtime.hooks import Table
from matex_tf.world import script_knowledge

HOOKS = Table(when=overlay.is_on, later=True)

_KEY = "files of the rank"  # Python unpickles this entry of the data, and ignores it otherwise


class _Files:
    """Stands for the view or the journal of this rank. A process that unpickles it adopts the view or the journal."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if (view := overlay.get_view()) is not None:
            return _adopt_view, (view.share_with_child(), script_knowledge.knows_ranks)
        if (writer := journal.get_writer()) is not None:
            return _adopt_journal, (writer.notes.describe(), writer.paths)
        return dict, ({},)  # nothing to adopt


@HOOKS.replace("multiprocessing.spawn", "get_preparation_data", "a process that a rank starts sees other files")
def _wrap_preparation(original: Any) -> Any:
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), _KEY: _Files()}

    return get_preparation_data


def _adopt_view(description: tuple[Any, ...], knows_ranks: bool) -> None:
    script_knowledge.knows_ranks = knows_ranks
    overlay.adopt_view(View.adopt(*description))
    python.install_view()
    for module in (libraries, tensorflow, commands):
        module.HOOKS.install()


def _adopt_journal(notes: tuple[Any, ...], paths: dict[str, Any]) -> None:
    journal.Journal(journal_reader.Notes(*notes), paths).start_writing()
    for module in (libraries, tensorflow):
        module.HOOKS.install()
