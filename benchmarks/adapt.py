"""What slices by the speed of ranks win beside other work: `matex run -n 2 benchmarks/adapt.py`.

Each rank computes on a core of its own. On that of the last one so many loops keep running beside it. `fit` trains a
small CNN with equal slices and with `--adapt`, in alternating rounds of one run, from equal slices each time; the first
epoch compiles and is not timed. "Won back" is which part of what the loops cost equal slices `--adapt` saves. At the
end the loops stop in the middle of `fit`: how many steps until slices are equal again. Other work on the machine is
said, as it changes what comes out.

`--device` stands in for ranks that each compute on a device of their own: a row takes some sleep, and on the last rank
as many times as much as loops beside it would make of it. Other work on the machine hardly matters then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=51, help="of an epoch")
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", action="store_true")
    asked = parser.parse_args()

    import matex_tf

    cores = sorted(os.sched_getaffinity(0)) if len(CORES) < matex_tf.size() else CORES
    mine = cores[matex_tf.rank() % len(cores)]
    os.sched_setaffinity(0, {mine})  # before TensorFlow makes its threads

    import models
    import training

    case = models.Case("a device", (10,), 0, 0, Device.model) if asked.device else models.CASES["cnn"]
    run = Run(training.fitted(case, asked.batch * asked.steps), asked)
    idle = None
    print(f"{'loops':>5} {'equal':>8} {'--adapt':>8}   s an epoch, median of rounds   ratio: median, of each round")
    for loops in asked.loops:
        took: dict[str, list[float]] = {"off": [], "on": []}
        cpu: dict[str, list[float]] = {"off": [], "on": []}
        others, slices = [], []
        with beside(loops, mine, asked.device) as run.loops:
            for turn in range(asked.rounds):
                for how in ("off", "on") if turn % 2 == 0 else ("on", "off"):
                    seconds, used, other = run.fit(how)
                    took[how].append(seconds)
                    cpu[how].append(used)
                    others.append(other)
                    if how == "on":
                        slices.append(run.slices())
        ratios = [a / b for a, b in zip(took["off"], took["on"])]
        equal, adapted = statistics.median(took["off"]), statistics.median(took["on"])
        idle = equal if loops == 0 else idle
        won = f"won back {(equal - adapted) / (equal - idle):.0%}   " if loops and idle else ""
        print(
            f"{loops:5} {equal:8.3f} {adapted:8.3f}   "
            f"{statistics.median(ratios):.3f}: {' '.join(f'{one:.2f}' for one in ratios)}   {won}"
            f"last slices {' '.join('/'.join(map(str, one)) for one in slices)}   "
            f"rank 0 computes {statistics.median(cpu['off']):.2f} and {statistics.median(cpu['on']):.2f} ms a step   "
            f"other work {statistics.median(others):.2f} cores",
            flush=True,
        )
    for loops in [loops for loops in asked.loops if loops]:
        print(f"{loops} loops gone: slices equal again after {run.recovers(loops, mine)} steps", flush=True)


class Device:
    """Sleeps for rows, as a rank whose device computes them."""

    seconds_of_row = 0.0005
    slowness = 1

    @staticmethod
    def model(keras: Any, shape: tuple[int, ...]) -> Any:
        import tensorflow as tf

        from matex_tf.analysis import verdict

        verdict._HARMLESS += ("PyFunc",)  # else all ranks would compute all rows, as Python cannot be seen into

        def compute(rows: Any) -> Any:
            time.sleep(Device.slowness * Device.seconds_of_row * int(rows))
            return rows

        class OnDevice(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                with tf.control_dependencies([tf.numpy_function(compute, [tf.shape(x)[0]], tf.int32)]):
                    return tf.identity(x)

        return keras.Sequential([keras.Input(shape), OnDevice(), keras.layers.Dense(10)])


class Run:
    """Trains one model again and again."""

    def __init__(self, made: Any, asked: argparse.Namespace):
        self.model, (self.x, self.y) = made
        self.x, self.y = self.x.numpy(), self.y.numpy()
        self.asked = asked
        self.loops: list[subprocess.Popen[bytes]] = []

    def fit(self, how: str, *callbacks: Any, epochs: int = 0) -> tuple[float, float, float]:
        """Seconds of an epoch, milliseconds of a core that this process took a step, and how many cores others took."""
        import keras

        from matex_tf import settings
        from matex_tf.monitor.machine import Machine
        from matex_tf.runtime import objects
        from matex_tf.sharding.uneven import leases

        settings.get_settings().adapt = how
        leases.agree_on(())
        starts: list[tuple[float, float]] = []
        began = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_: starts.append((time.perf_counter(), time.process_time()))
        )
        machine = Machine()
        before, start, used = machine.take_sample()["busy"], time.perf_counter(), self.cpu()
        self.model.fit(
            self.x, self.y, batch_size=self.asked.batch, epochs=epochs or self.asked.epochs, verbose=0, shuffle=False,
            callbacks=[began, *callbacks],
        )  # fmt: skip
        end, after, computed = time.perf_counter(), machine.take_sample()["busy"], time.process_time()
        ours = sum(objects.allgather(self.cpu() - used, "what ranks and loops used"))
        epochs = len(starts) - 1
        of_step = 1e3 * (computed - starts[1][1]) / (epochs * self.asked.steps)
        return (end - starts[1][0]) / epochs, of_step, max(after - before - ours, 0) / (end - start)

    def cpu(self) -> float:
        """Seconds of a core that this process and the loops beside it have had."""
        mine = time.process_time()
        return mine + sum(int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[0]) / 1e9 for one in self.loops)

    def slices(self) -> list[int]:
        from matex_tf.sharding import slice_bounds
        from matex_tf.sharding.uneven import leases

        return slice_bounds.count_dealt_rows(self.asked.batch, leases.get_agreed())

    def recovers(self, loops: int, core: int) -> int:
        """How many steps after the loops have gone the slices differ by no more than 5% of an equal one."""
        import keras

        import matex_tf

        run, steps, gone, equal = self, 0, 0, 0
        even = self.asked.batch / matex_tf.size()

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                nonlocal steps, gone, equal
                steps += 1
                if steps == 3 * run.asked.steps:
                    stack.close()
                    gone = steps
                is_equal = all(abs(rows - even) <= 0.05 * even for rows in run.slices())
                equal = 0 if not is_equal else equal or steps

        with ExitStack() as stack:
            stack.enter_context(beside(loops, core, self.asked.device))
            self.loops = []
            self.fit("on", Watch(), epochs=7)
        return equal - gone if equal else -1


@contextmanager
def beside(loops: int, core: int, device: bool) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Within it so many loops run on the core of the last rank, or its device is as slow as if they did."""
    import matex_tf

    command = [sys.executable, "-S", "-c", "while True: pass"]
    last = matex_tf.rank() == matex_tf.size() - 1
    started = [subprocess.Popen(command) for _ in range(loops if last and not device else 0)]
    Device.slowness = 1 + loops if last else 1
    try:
        for one in started:
            os.sched_setaffinity(one.pid, {core})
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()
        Device.slowness = 1


if __name__ == "__main__":
    main()
