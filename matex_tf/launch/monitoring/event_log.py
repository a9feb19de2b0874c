"""The event log of a recorded run: `matex run` writes its start, its restarts and its end into events.jsonl."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from matex_tf.monitor.log import Log


class EventLog:
    """The events of a run of `target`, in events.jsonl of the record folder; without a folder, nothing is written."""

    def __init__(self, folder: str, target: Sequence[str]):
        """Raises click.UsageError if the folder is not writable."""
        self._log: Log | None = None
        if folder:
            try:
                os.makedirs(folder, exist_ok=True)
                self._log = Log(Path(folder, "events.jsonl"), self._report_loss, append=True)
            except OSError as error:
                raise click.UsageError(f"--record {folder}: {error.strerror}. Name a writable folder") from None
        self.note_event(f"matex run {shlex.join(target)}")

    def note_event(self, text: str, **fields: object) -> None:
        """Log an event, with further fields."""
        if self._log is not None:
            self._log.write_line(event=text, **fields)

    def _report_loss(self, error: OSError) -> None:
        print(f"matex: the events of the run are not recorded: {error.strerror or error}", file=sys.stderr)
