"""Handles the signals that ask a run to end and to resume later, and tells them from an abort by mpirun."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from matex_tf import errors, ops
from matex_tf.runtime import rank_records
from matex_tf.world import launcher_processes

REQUESTS = (signal.SIGTERM, signal.SIGUSR1)


def hear_requests(handle: Callable[[str], None], finish: Callable[[], None]) -> None:
    """From now on, call `handle` with the name of a signal that asks this rank or `matex run` to end.

    After a loss, mpirun sends SIGTERM to the other ranks. So a SIGTERM from mpirun is an abort, not a request: `finish`
    is called, and the process ends. `matex run` passes its requests to the ranks as SIGUSR1. A signal from an unknown
    sender is a request. The sender is unknown without `matex run`, or if a later handler replaced this one.
    """
    engine, launchers = ops.get_library().c, list(launcher_processes.get_launchers())

    def hear(signal_number: int, frame: Any) -> None:
        is_from_launcher = bool(engine.matex_came_from_launchers(signal_number))
        if is_from_launcher and signal_number == signal.SIGTERM:
            finish()
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        else:
            request = rank_records.read_request() if is_from_launcher else None
            handle(request or signal.Signals(signal_number).name)

    thread_data = threading.local()  # `mask`: the signals that the thread blocked before its fork

    def block() -> None:
        thread_data.mask = signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, thread_data.mask)

    def restore_default() -> None:
        for signal_number in REQUESTS:
            if signal.getsignal(signal_number) is hear:
                signal.signal(signal_number, signal.SIG_DFL)
        unblock()

    # A forked child is no rank, so a signal ends it. The signals are blocked until the child has restored the default,
    # because an earlier signal would call `hear` in the child.
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore_default)
    for signal_number in REQUESTS:
        signal.signal(signal_number, hear)
        if engine.matex_watch_sender(signal_number, (ctypes.c_int * len(launchers))(*launchers), len(launchers)):
            raise errors.RankError(f"the senders of signal {signal_number} cannot be told apart")
