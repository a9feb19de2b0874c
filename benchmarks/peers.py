"""What a user would pick instead, for benchmarks/step.py --compare: each as its own documentation has it in a script.

Both need Keras 2: under Keras 3 MultiWorkerMirroredStrategy raises an error, and Horovod reduces nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

MIRRORED, HOROVOD = "mirrored", "horovod"
TITLES = {MIRRORED: "MultiWorkerMirrored", HOROVOD: "Horovod"}


class Alone:
    """One process: nothing is added to the script."""

    def scope(self) -> contextlib.AbstractContextManager:
        """In which the model and its optimizer are made."""
        return contextlib.nullcontext()

    def share_tape(self, tape: Any) -> Any:
        """What takes gradients in a loop of one's own."""
        return tape

    def share_optimizer(self, optimizer: Any) -> Any:
        """The optimizer that a model is compiled with."""
        return optimizer

    def share_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step of a loop of one's own, before it becomes a `tf.function`."""
        return step


class Mirrored(Alone):
    """TensorFlow's own strategy; its processes find each other by `TF_CONFIG`."""

    def __init__(self) -> None:
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def scope(self) -> contextlib.AbstractContextManager:
        return self._strategy.scope()

    def share_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *batch: self._strategy.run(step, args=batch)


class Horovod(Alone):
    """Under mpirun."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd

    def share_tape(self, tape: Any) -> Any:
        return self._hvd.DistributedGradientTape(tape)

    def share_optimizer(self, optimizer: Any) -> Any:
        return self._hvd.DistributedOptimizer(optimizer)


def join(setting: str) -> Alone:
    """This process's part in a run of `setting`. Before TensorFlow has computed anything."""
    return {MIRRORED: Mirrored, HOROVOD: Horovod}.get(setting, Alone)()


def find_peers() -> tuple[str, ...]:
    """Those that are installed."""
    return (MIRRORED, *[HOROVOD] * bool(importlib.util.find_spec("horovod")))


def list_commands(
    setting: str, words: Sequence[str], cpus: Sequence[int], ranks: Sequence[str]
) -> list[tuple[list[str], Sequence[int], Mapping[str, str]]]:
    """The command lines of the processes of `setting`, with their cores and what is added to their environment.

    Args:
        words: the script and its arguments.
        ranks: the same under mpirun, as ranks of ours.
    """
    if setting == HOROVOD:
        at = ranks.index("-m")  # matex_tf
        # Its cycle of 1 ms is long for a step of a few.
        return [([*ranks[:at], *ranks[at + 2 :]], cpus, {"HOROVOD_CYCLE_TIME": "0.1"})]
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(socket.socket()) for _ in cpus]
        for port in ports:
            port.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    return [
        ([sys.executable, *words], [cpu], {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})})
        for cpu, task in zip(cpus, ({"type": "worker", "index": index} for index in range(len(cpus))))
    ]
