"""What a trial of `matex tune` tells it, a line a figure: what `fit` logs of each epoch, what the script reports.

Rank 0 writes, and so does a script that is one process alone; others, and processes that it starts, do not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from matex_tf import settings
from matex_tf.monitor.log import Log, pick_numbers
from matex_tf.runtime import real_files

_VARIABLE = settings.PREFIX + "TRIAL"

_log: Log | None = None
_process = 0


def start_log(rank: int) -> None:
    """Begin, on rank 0. Children of the script are told nothing of it."""
    global _log, _process
    path = settings.get_settings().trial
    os.environ.pop(_VARIABLE, None)
    if not path or rank:
        return
    with real_files.use_real_files():
        _log = Log(path, goes_on=True)
    _process = os.getpid()


def is_on() -> bool:
    """Whether this process writes."""
    return _log is not None and _process == os.getpid()


def note_epoch(epoch: int, of: int | None, logs: Mapping[str, Any] | None, call: int) -> None:
    """An epoch of Keras' `fit` has ended: its number from 0, how many there are to be, its figures.

    `call` is the number of the call of `fit`: an epoch that comes again, where a run goes on, is known by it.
    """
    _write_line(epoch=epoch + 1, of=of, call=call, logs=pick_numbers(logs))


def note_task(**features: Any) -> None:
    """What is learnt: rows, columns and so on, by which searches of other data are found alike."""
    _write_line(task=features)


def report_figures(told: Mapping[str, float], epoch: int | None) -> None:
    """What the script says itself of how well it does."""
    _write_line(epoch=epoch, logs=dict(told))


def _write_line(**line: Any) -> None:
    if _log is None or not is_on():
        return
    with real_files.use_real_files():
        if _log.write_line({"t": round(time.time(), 3), **line}):
            return
    if _log.lost == 1:
        why = _log.error.strerror or _log.error if _log.error else ""
        print(f"matex_tf: what this trial reaches is not noted: {why}", file=sys.stderr)
