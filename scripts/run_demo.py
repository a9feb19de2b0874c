"""Trains one script alone and on two ranks, and compares losses and times of the epochs. Started by scripts/demo.

Both are run more than once, in turns: what else the machine does meanwhile slows down the one as well as the other.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click

from matex_tf.launch import command_line, run_options
from matex_tf.ops import build
from matex_tf.world import placement

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/mnist_keras.py"
RANKS = 2
TURNS = 2
TOLERANCE = 5e-3
LIMIT = 900  # seconds for one training
BAR = 30

EPOCH = re.compile(r"^epoch (\d+)\s+loss (\S+)\s.*\bseconds (\S+)", re.MULTILINE)


class Failure(Exception):
    """What failed, for the demo's last line."""


@dataclass(frozen=True)
class Epoch:
    """What the script printed of one epoch: its loss, at full precision, and its seconds."""

    loss: float
    seconds: float


def read_epochs(output: str) -> list[Epoch]:
    """The epochs in the output of the script. Raises Failure if they are not there, once each, in order."""
    found = EPOCH.findall(output)
    if not found or [int(number) for number, _, _ in found] != list(range(1, len(found) + 1)):
        raise Failure(
            f"the epochs printed by {SCRIPT} were expected as 1, 2, 3, ...; {[e[0] for e in found]} were found"
        )
    return [Epoch(float(loss), float(seconds)) for _, loss, seconds in found]


def largest_difference(alone: Sequence[Epoch], together: Sequence[Epoch]) -> float:
    """The largest relative difference of the epoch losses; NaN if a loss is."""
    if len(alone) != len(together):
        raise Failure(f"{len(alone)} epochs alone, but {len(together)} on {RANKS} ranks")
    differences = [abs(a.loss - b.loss) / abs(a.loss) for a, b in zip(alone, together)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def epoch_seconds(runs: Sequence[Sequence[Epoch]]) -> float:
    """The median seconds of the epochs after the first of a run, in which TensorFlow also traces and compiles."""
    return median(epoch.seconds for epochs in runs for epoch in epochs[1:] or epochs)


def table(alone: Sequence[Epoch], together: Sequence[Epoch]) -> str:
    """Both loss curves side by side, as figures and as bars."""
    highest = max(epoch.loss for epoch in [*alone, *together])
    lines = [f"epoch   loss alone   loss {RANKS} ranks   difference   {'alone':<{BAR}}   {RANKS} ranks"]
    for number, (a, b) in enumerate(zip(alone, together), 1):
        bars = ["#" * max(1, round(BAR * epoch.loss / highest)) for epoch in (a, b)]
        difference = abs(a.loss - b.loss) / abs(a.loss)
        lines.append(
            f"{number:5}   {a.loss:10.8f}   {b.loss:12.8f}   {difference:10.1e}   {bars[0]:<{BAR}}   {bars[1]}"
        )
    return "\n".join(lines)


def train(title: str, command: Sequence[str]) -> list[Epoch]:
    """Runs `command`, shows its output as it comes, gives the epochs. Raises Failure if its exit code is not 0."""
    print(f"\n== {title}: {shlex.join(command)}", flush=True)
    child = subprocess.Popen(
        ["timeout", "--foreground", "--kill-after=20", str(LIMIT), *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", **os.environ},
    )
    lines = []
    for line in child.stdout:
        print("   " + line, end="", flush=True)
        lines.append(line)
    code = child.wait()
    if code:
        raise Failure(f"`{shlex.join(command)}` ended with exit code {code}" + (" (too slow)" if code == 124 else ""))
    return read_epochs("".join(lines))


def demo() -> tuple[float, float]:
    """The largest relative difference of the losses, and how many times sooner the ranks' epochs end."""
    os.chdir(ROOT)
    build.build_ops(verbose=False)
    alone, together = [], []
    for turn in range(TURNS):
        again = " once more, for the time" if turn else ""
        alone.append(train(f"alone{again}", [sys.executable, SCRIPT]))
        together.append(
            train(f"{RANKS} ranks{again}", command_line.make_command_line(run_options.Run(RANKS, [SCRIPT])))
        )
    print("\n" + table(alone[0], together[0]))
    difference = max(map(largest_difference, alone, together))
    seconds = [epoch_seconds(runs) for runs in (alone, together)]
    print(f"\nseconds an epoch: alone {seconds[0]:.2f}, {RANKS} ranks {seconds[1]:.2f}", end="")
    print(f" (the median of {TURNS} runs each, without their first epoch)")
    print(f"cores: {len(placement.list_cores())}; TensorFlow alone computes on all of them too")
    return difference, seconds[0] / seconds[1]


def main() -> int:
    try:
        difference, speedup = demo()
    except (Failure, click.UsageError, RuntimeError, OSError) as error:
        print(f"\ndemo: failed: {error}")
        return 1
    figures = f"difference={difference:.1e} speedup={speedup:.2f}"
    if not difference <= TOLERANCE:  # also where it is not a number
        print(f"\ndemo: failed: the losses differ by more than {TOLERANCE}: {figures}")
        return 1
    print(f"\ndemo: ok {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
