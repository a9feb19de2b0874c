"""One process whose steps benchmarks/step.py times: a plain loop, or Keras' `fit`, that trains when it is told to.

It connects to the socket ADDRESS and tells its setting; then it reads numbers of steps, runs them and answers with
their seconds, of the clock or of a core, until it reads 0. It ends with its number of parameters and the most bytes
that it took.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import tensorflow as tf
from models import CASES, Case
from peers import Alone, join
from training import check_rows, fitted, prepared, read_memory, use_one_thread

WARM_UP = 3
TRIALS = 80  # steps in which ranks try ways out
MOST = 10**6  # steps, more than are asked for


def read_own_time() -> float:
    """Seconds that cores have computed for this process, without waiting for other ranks of this host."""
    if "matex_tf" not in sys.modules or sys.modules["matex_tf"].size() == 1:
        return time.process_time()
    from matex_tf import ops

    waited, of_a_core = ctypes.c_double(), ctypes.c_double()
    ops.get_library().c.matex_waited(ctypes.byref(waited), ctypes.byref(of_a_core))
    return time.process_time() - of_a_core.value


class Clock:
    """Notes each step's seconds, and does what `channel` says after as many as it asked for."""

    def __init__(self, channel: TextIO, warm_up: int, read: Callable[[], float]):
        self._channel = channel
        self.read = read
        self._to_do, self._seconds = warm_up, []

    def tell(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._channel, flush=True)

    def goes_on(self, seconds: float) -> bool:
        """A step took `seconds`; whether there is to be another one."""
        self._seconds.append(seconds)
        if len(self._seconds) == self._to_do:
            self.tell(self._seconds)
            self._to_do, self._seconds = int(self._channel.readline()), []
        return self._to_do > 0


def loop(case: Case, batch: int, xla: bool, clock: Clock, peer: Alone, updates: bool = True) -> int:
    """Trains in a loop until the clock stops it, or computes gradients only; gives the number of parameters."""
    model, data, step = prepared(case, 2 * batch, xla, peer, updates)
    batches = tf.data.Dataset.from_tensor_slices(data).repeat().batch(batch)
    for number, (x, y) in enumerate(batches):
        start = clock.read()
        rows = int(step(x, y))
        took = clock.read() - start
        check_rows(number, rows, case.batch)
        if not clock.goes_on(took):
            break
    return model.count_params()


def fit(case: Case, batch: int, xla: bool, clock: Clock, peer: Alone) -> int:
    """The same by `fit`; a step lasts from the end of the last one, but for what the clock waits."""
    model, data = fitted(case, 2 * batch, xla, peer)

    class Watch(tf.keras.callbacks.Callback):
        last = 0.0

        def on_train_begin(self, logs=None):
            self.last = clock.read()

        def on_train_batch_end(self, batch, logs=None):
            if not clock.goes_on(clock.read() - self.last):
                self.model.stop_training = True
            self.last = clock.read()

    batches = tf.data.Dataset.from_tensor_slices(data).repeat().batch(batch)
    model.fit(batches, steps_per_epoch=MOST, callbacks=[Watch()], shuffle=False, verbose=0)
    return model.count_params()


def measure_peak() -> int:
    """The most bytes that this process took; of memory that others share, its part of what it has now."""
    shared = read_memory("status", "RssShmem:") - read_memory("smaps_rollup", "Pss_Shmem:")
    return read_memory("status", "VmHWM:") - shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("setting")
    parser.add_argument("address")
    parser.add_argument("--ranks", type=int, default=1, help="the batch is so many times that of the case")
    parser.add_argument("--fit", action="store_const", const=fit, default=loop, dest="train")
    parser.add_argument("--xla", action="store_true", help="compile the step")
    parser.add_argument("--own", action="store_const", const=read_own_time, default=time.perf_counter, dest="read")
    arguments = parser.parse_args()
    case = CASES[arguments.case]
    use_one_thread()
    peer = join(arguments.setting)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(arguments.address)
        with connection.makefile("rw") as channel:
            ways = os.environ.get("MATEX_STRATEGY", "auto") == "auto" and "OMPI_COMM_WORLD_RANK" in os.environ
            clock = Clock(channel, WARM_UP + ways * TRIALS, arguments.read)
            clock.tell(arguments.setting)
            more = {} if arguments.setting != "gradients" else {"updates": False}
            parameters = arguments.train(case, arguments.ranks * case.batch, arguments.xla, clock, peer, **more)
            clock.tell((parameters, measure_peak()))


if __name__ == "__main__":
    main()
