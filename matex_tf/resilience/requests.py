"""By which signals a rank is asked to end, to go on later.

mpirun sends SIGTERM to the ranks that are left when one is lost. `matex run` never asks it for that: what it is asked
itself it passes on as SIGUSR1. So SIGTERM of mpirun is no request; of anyone else it is, and SIGUSR1 of whomever.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from matex_tf import ops
from matex_tf.runtime import exit_marks
from matex_tf.world import launchers

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def hear_requests(handle: Callable[[str], None], finish: Callable[[], None]) -> None:
    """From now on call `handle` with the name of the signal by which this rank, or `matex run`, is asked to end.

    Where mpirun ends this rank, call `finish` and end.
    """

    def hear(number: int, frame: Any) -> None:
        comes_from_launcher = not ops.came_from_others(number)
        if comes_from_launcher and number == signal.SIGTERM:
            finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            asked = exit_marks.read_request() if comes_from_launcher else None
            handle(asked or signal.Signals(number).name)

    for number in SIGNALS:
        signal.signal(number, hear)
        ops.watch_sender(number, launchers.get_launchers())


def ignore_requests() -> None:
    """Python ends with the handlers of the system, which would end a rank that has done all."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
