"""The event log of a recorded run: `matex run` writes its start, its restarts and its end into events.jsonl."""

from __future__ import annotations

import os
import shlex
import sys
import time
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
                self._log = Log(Path(folder, "events.jsonl"), append=True)
            except OSError as error:
                raise click.UsageError(f"--record {folder}: {error.strerror}. Name a writable folder") from None
        self.note_event(f"matex run {shlex.join(target)}")

    def note_event(self, text: str, **fields: object) -> None:
        """Log an event, with further fields. The first failure prints a message."""
        log = self._log
        # No message: without a folder, after a successful write, and after the second and later failures.
        if log is None or log.write_line({"t": round(time.time(), 3), "event": text, **fields}) or log.lost > 1:
            return
        reason = log.error.strerror or log.error if log.error else ""
        print(f"matex: the events of the run are not recorded: {reason}", file=sys.stderr)
