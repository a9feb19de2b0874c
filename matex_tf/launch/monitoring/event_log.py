"""The event log of a recorded run: `matex run` writes its start, its restarts and its end into events.jsonl."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from matex_tf.monitor.log import Log


class EventLog:
    """Writes lines to events.jsonl. Without a file, nothing is written."""

    def __init__(self, log: Log | None = None):
        self._log = log

    def note_event(self, text: str) -> None:
        """Log an event."""
        self._write_line({"event": text})

    def note_end(self, code: int) -> None:
        """Log the end of the command."""
        self._write_line({"event": f"ended with exit code {code}", "end": code})

    def _write_line(self, line: dict[str, object]) -> None:
        if self._log is None or self._log.write_line({"t": round(time.time(), 3), **line}) or self._log.lost > 1:
            return
        reason = self._log.error.strerror or self._log.error if self._log.error else ""
        print(f"matex: the events of the run are not recorded: {reason}", file=sys.stderr)


def name_record_folder(target: Sequence[str]) -> str:
    """The default record folder for a run of `target`: runs/train-20261125-020501."""
    name = Path(target[1] if target[0] == "-m" and len(target) > 1 else target[0]).stem
    return os.path.join("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


@contextlib.contextmanager
def open_journal(folder: str, target: Sequence[str]) -> Iterator[EventLog]:
    """The event log of a run recorded in `folder`; an inactive log if `folder` is "".

    Raises:
        click.UsageError: the folder is not writable.
    """
    if not folder:
        yield EventLog()
        return
    try:
        os.makedirs(folder, exist_ok=True)
        journal = EventLog(Log(Path(folder, "events.jsonl"), append=True))
    except OSError as error:
        raise click.UsageError(f"--record {folder}: {error.strerror}. Name a writable folder") from None
    journal.note_event(f"matex run {shlex.join(target)}")
    yield journal
