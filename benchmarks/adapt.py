"""What slices by the speed of ranks gain on a busy core: `matex run --adapt -n 2 benchmarks/adapt.py`.

Each rank computes on a core of its own. Busy loops share the core of the last rank. `fit` trains a small CNN with equal
slices and with adapted ones, in alternating rounds of one run; the first epoch compiles or adapts and is not timed.
"Won back" is the part of the loops' cost that adapted slices save. At the end the loops stop in the middle of `fit`:
the benchmark counts the steps until slices are equal again. Each line states the other work on the machine.
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
    asked = parser.parse_args()

    import matex_tf

    cores = sorted(os.sched_getaffinity(0)) if len(CORES) < matex_tf.size() else CORES
    mine = cores[matex_tf.rank() % len(cores)]
    os.sched_setaffinity(0, {mine})  # before TensorFlow makes its threads

    import models
    import training

    run = Run(training.fitted(models.CASES["cnn"], asked.batch * asked.steps), asked)
    idle = None
    print(f"{'loops':>5} {'equal':>8} {'--adapt':>8}   s an epoch, median of rounds   ratio: median, of each round")
    for loops in asked.loops:
        took: dict[str, list[float]] = {"off": [], "on": []}
        cpu: dict[str, list[float]] = {"off": [], "on": []}
        others, slices = [], []
        with beside(loops, mine) as run.loops:
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

        import matex_tf
        from matex_tf.adapt import slice_adapter
        from matex_tf.monitor.machine import Machine
        from matex_tf.runtime import objects

        equal = (1,) * matex_tf.size()

        def keep_equal(rows: int, seconds: Any) -> Any:
            return None if slice_adapter._agreed_ratios == equal else equal

        slice_adapter.override_choice(None if how == "on" else keep_equal)
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
        import matex_tf
        from matex_tf.adapt import slice_adapter
        from matex_tf.sharding import slice_bounds

        return slice_bounds.count_dealt_rows(self.asked.batch, slice_adapter._agreed_ratios or (1,) * matex_tf.size())

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
            stack.enter_context(beside(loops, core))
            self.loops = []
            self.fit("on", Watch(), epochs=7)
        return equal - gone if equal else -1


@contextmanager
def beside(loops: int, core: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Within it, `loops` busy loops run on the core of the last rank."""
    import matex_tf

    command = [sys.executable, "-S", "-c", "while True: pass"]
    last = matex_tf.rank() == matex_tf.size() - 1
    started = [subprocess.Popen(command) for _ in range(loops if last else 0)]
    try:
        for one in started:
            os.sched_setaffinity(one.pid, {core})
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


if __name__ == "__main__":
    main()
