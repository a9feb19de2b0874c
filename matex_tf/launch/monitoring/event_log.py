"""The event log of a recorded run: `matex run` writes its start, its restarts and its end into events.jsonl."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from matex_tf.monitor.log import Log


def open_log(folder: str, target: Sequence[str]) -> Callable[..., None]:
    """Log the start of a run of `target`. Returns a function that logs an event: its text, and further fields.

    Without a record `folder`, nothing is written. Raises click.UsageError if the folder is not writable.
    """

    def report_loss(error: OSError) -> None:
        print(f"matex: the events of the run are not recorded: {error.strerror or error}", file=sys.stderr)

    if not folder:
        return lambda text, **fields: None
    try:
        os.makedirs(folder, exist_ok=True)
        log = Log(Path(folder, "events.jsonl"), report_loss, append=True)
    except OSError as error:
        raise click.UsageError(f"--record {folder}: {error.strerror}. Name a writable folder") from None
    log.write_line(event=f"matex run {shlex.join(target)}")
    return lambda text, **fields: log.write_line(event=text, **fields)
