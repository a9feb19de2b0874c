"""The log of a trial of `matex tune`: the logs of `fit` for each epoch, and the metrics that the script reports.

Only rank 0 writes the log, or a process without ranks; child processes of the script do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from matex_tf import settings
from matex_tf.monitor.log import Log, pick_numbers

_VARIABLE = settings.PREFIX + "TRIAL"

_log: Log | None = None
_process = 0  # the id of the process that opened the log


def start_log(rank: int) -> None:
    """Open the log on rank 0. Child processes of the script do not inherit the setting."""
    global _log, _process
    path = settings.get_settings().trial
    os.environ.pop(_VARIABLE, None)
    if not path or rank:
        return
    _log = Log(path, _report_loss, append=True)
    _process = os.getpid()


def is_on() -> bool:
    """Whether this process writes the log."""
    return _log is not None and _process == os.getpid()


def note_epoch(epoch: int, epochs: int | None, logs: Mapping[str, Any] | None, call: int) -> None:
    """Log the end of an epoch of Keras' `fit`: its number from 0, the number of epochs, and its logs.

    `call`, the number of the call of `fit`, identifies an epoch that is repeated after a restart.
    """
    _write_line(epoch=epoch + 1, of=epochs, call=call, logs=pick_numbers(logs))


def note_task(**features: Any) -> None:
    """Log features of the task, such as rows and columns, by which `matex tune` finds similar searches."""
    _write_line(task=features)


def note_metrics(metrics: Mapping[str, float], epoch: int | None) -> None:
    """Log metrics that the script itself reports."""
    _write_line(epoch=epoch, logs=dict(metrics))


def _write_line(**line: Any) -> None:
    if _log is None or not is_on():
        return
    _log.write_line(**line)


def _report_loss(error: OSError) -> None:
    """Called at the first line that cannot be written."""
    print(f"matex_tf: the results of this trial are not logged: {error.strerror or error}", file=sys.stderr)
