"""Does a process that trains for long hold ever more? Memory, file descriptors and threads, alone and on ranks.

    python benchmarks/soak.py [--ranks 2] [--steps 50000] [--only steps fits models retraces sums]

Each line is one script: how much resident memory grew from the first look after the warm-up (a fiftieth of the steps,
a fifth of the rest) to the last, and the least numbers of descriptors and threads in the first half and in the second:
threads of a pipeline of TensorFlow's end some time after it. What Keras and TensorFlow hold by themselves is in the
line "alone": so a function in which an optimizer of Keras is applied is held with each of its traces, of which ranks
make more. Exit code 1 where ranks exceed that by more than `LIMIT` or the numbers grow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

WORKER = Path(__file__).resolve().with_name("soak_worker.py")
COUNTS = {"steps": 50000, "fits": 200, "models": 100, "retraces": 200, "sums": 20000}
LIMIT = 2048  # KiB


@dataclass
class Course:
    """Of the looks that count what was held at the first and at the last: memory in KiB, and traces; between them the
    least numbers of descriptors and threads in the first half and in the second.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def growth(self) -> int:
        return self.last[0] - self.first[0]

    @property
    def traces(self) -> int:
        """Functions traced by the script meanwhile."""
        return self.last[3] - self.first[3]

    @property
    def is_even(self) -> bool:
        """Whether there are no more descriptors or threads than before."""
        return self.last[1] <= self.first[1] and self.last[2] <= self.first[2]


def course_of(printed: str, warm: float) -> Course:
    """The course in what a worker printed, from the part `warm` of its looks on."""
    looks = [tuple(map(int, line.split()[1:])) for line in printed.splitlines() if line.split()[0].isdigit()]
    counted = looks[int(len(looks) * warm) :]
    halves = counted[: len(counted) // 2], counted[len(counted) // 2 :]
    early, late = (tuple(map(min, zip(*half)))[1:3] for half in halves)
    (before, *_, traces), (after, *_, more_traces) = counted[0], counted[-1]
    return Course((before, *early, traces), (after, *late, more_traces))


def run(what: str, count: int, ranks: int) -> Course:
    """One script to its end; ends this program where it fails."""
    script = [str(WORKER), what, str(count)]
    command = [sys.executable, *script]
    if ranks > 1:
        command = [sys.executable, "-m", "matex_tf.launch.cli", "run", "-n", str(ranks), *script]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "MATEX_QUIET": "1", **os.environ}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{what} on {ranks} failed:\n{result.stdout}\n{result.stderr}")
    return course_of(result.stdout, 0.02 if what == "steps" else 0.2)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--ranks", type=int, default=2)
    asked.add_argument("--steps", type=int, default=COUNTS["steps"])
    asked.add_argument("--only", nargs="*", choices=COUNTS, default=list(COUNTS))
    options = asked.parse_args()
    bad = 0
    print("| what | times | on | memory grew by, KiB | descriptors | threads | traces |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for what in options.only:
        count = options.steps if what == "steps" else COUNTS[what]
        courses = {}
        for ranks in (1, options.ranks):
            courses[ranks] = course = run(what, count, ranks)
            numbers = [f"{before} to {after}" for before, after in zip(course.first[1:3], course.last[1:3])]
            place = "alone" if ranks == 1 else f"{ranks} ranks"
            print(
                f"| {what} | {count} | {place} | {course.growth} | {' | '.join(numbers)} | {course.traces} |",
                flush=True,
            )
        alone, together = courses[1], courses[options.ranks]
        traced = together.traces / alone.traces if alone.traces else 1.0
        bad += together.growth > max(alone.growth, 0) * traced + LIMIT or not together.is_even
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
