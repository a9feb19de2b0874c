"""Kills ranks at random moments of `matex run --restarts` and sees whether the result is that of an undisturbed run.

    python benchmarks/restarts.py --runs 20 --kills 2 --ranks 3
    python benchmarks/restarts.py --elastic --runs 50 --kills 2 --ranks 4
    python benchmarks/restarts.py --strategy sharded --elastic --runs 20 --kills 2 --ranks 4
    python benchmarks/restarts.py --strategy async --elastic --runs 20 --kills 2 --ranks 3
    python benchmarks/restarts.py --strategy servers:1 --runs 20 --kills 1 --ranks 2
    sudo python benchmarks/restarts.py --host cut --runs 3

With `--host` nobody is killed: there is one rank on each of three hosts, network namespaces of this machine, and the
last of them loses its cable, or all that is sent to it ("drop"), as where its power fails.

With `--elastic` it is `matex run --elastic`, and the ranks that are left go on in their processes where they can.

Each run has its ranks killed, one at a time and any of them, by SIGKILL or SIGSEGV, at moments drawn at random from the
beginning of the script on. The table has, for each run, when which rank was killed, at what those that were left went
on, how often and from which states the run was started again, its exit code, and the largest difference of losses,
metrics and weights from a run alone, relative to the larger of the value and 1e-3. That is to be below 1e-8, unless
the results of the `--strategy` are statistical. The batches of each call of `fit`, and with `async` how often each row
was trained, are to be those of a run alone in any case.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

from network import Hosts

WORKER = Path(__file__).with_name("restarts_worker.py")
PATIENCE = 900  # seconds for a run


def curve(text: str, word: str = "CURVE") -> list[float]:
    """All figures that the script showed last, in their order, behind this word."""
    shown = [line.partition(word)[2] for line in text.splitlines() if word in line]
    found: list[float] = []

    def walk(part) -> None:
        if isinstance(part, (int, float)):
            found.append(float(part))
        else:
            for one in part.values() if isinstance(part, dict) else part:
                walk(one)

    if shown:
        walk(json.loads(shown[-1]))
    return found


def difference(want: list[float], found: list[float]) -> float:
    """The largest difference, relative to the larger of the value and 1e-3."""
    if len(want) != len(found):
        return float("inf")
    return max(abs(one - other) / max(abs(one), 1e-3) for one, other in zip(want, found))


def end_of(child: subprocess.Popen, printed: BinaryIO) -> tuple[int, str]:
    """The exit code of a run, and what it has printed."""
    try:
        code = child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
        code = child.wait()
    printed.seek(0)
    return code, printed.read().decode(errors="replace")


def disturbed(
    ranks: int, kills: int, mean: float, draw: random.Random, how: list[str]
) -> tuple[list[str], int, str, float]:
    """The kills of one run, its exit code, what it printed, and its seconds."""
    with tempfile.TemporaryDirectory(prefix="restarts-") as temporary:
        notes = Path(temporary, "notes")
        notes.mkdir()
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "MATEX_SAVE_SECONDS": "0.2", "MATEX_STATE": f"{temporary}/state",
        }  # fmt: skip
        command = [sys.executable, "-m", "matex_tf.launch.cli", "run", *how, "--restarts", str(kills), "-n", str(ranks)]
        began = time.monotonic()
        with open(Path(temporary, "printed"), "w+b") as printed:
            child = subprocess.Popen(
                [*command, str(WORKER), str(notes)], env=environment, stdin=subprocess.DEVNULL, stdout=printed,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            done = []
            while len(done) < kills and child.poll() is None:
                by = draw.choice(["SIGKILL", "SIGKILL", "SIGSEGV"])
                while len(list(notes.iterdir())) < (ranks - len(done) if how else ranks) and child.poll() is None:
                    time.sleep(0.1)  # they have not come to their script
                time.sleep(draw.expovariate(1 / mean))
                if child.poll() is None:
                    victim = draw.choice(sorted(note.name for note in notes.iterdir()))
                    pid = int((notes / str(victim)).read_text())
                    for note in [notes / str(victim)] if how else list(notes.iterdir()):
                        note.unlink()
                    with contextlib.suppress(ProcessLookupError):  # it went with the one that was killed before
                        os.kill(pid, getattr(signal, by))
                        done.append(f"{by} of {victim} at {time.monotonic() - began:.0f} s")
            code, text = end_of(child, printed)
        return done, code, text, time.monotonic() - began


def without_a_host(way: str, mean: float, draw: random.Random, how: list[str]) -> tuple[list[str], int, str, float]:
    """The same of one run on three hosts, of which the last is lost."""
    with tempfile.TemporaryDirectory(prefix="restarts-") as temporary, Hosts(3, "1gbit", temporary) as hosts:
        notes = Path(temporary, "notes")
        notes.mkdir()
        environment = Hosts.environment(
            {
                "MATEX_SAVE_SECONDS": "0.2",
                "MATEX_STATE": f"{temporary}/state",
                "MATEX_CACHE_DIR": os.environ.get("MATEX_CACHE_DIR", f"{temporary}/cache"),
            }
        )
        command = [
            sys.executable,
            "-m",
            "matex_tf.launch.cli",
            "run",
            *how,
            "--restarts",
            "2",
            *hosts.options(),
            "-n",
            "3",
        ]
        began = time.monotonic()
        with open(Path(temporary, "printed"), "w+b") as printed:
            child = subprocess.Popen(
                [*hosts.enter("h1"), *command, str(WORKER), str(notes)], env=environment, stdin=subprocess.DEVNULL,
                stdout=printed, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            while len(list(notes.iterdir())) < 3 and child.poll() is None:
                time.sleep(0.1)  # they have not come to their script
            time.sleep(2 + draw.expovariate(1 / mean))
            done = [f"{way} h3 at {time.monotonic() - began:.0f} s"]
            {"cut": Hosts.cut, "drop": Hosts.drop}[way](hosts, "h3")
            code, text = end_of(child, printed)
        return done, code, text, time.monotonic() - began


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--runs", type=int, default=5)
    asked.add_argument("--kills", type=int, default=2, help="of each run")
    asked.add_argument("--ranks", type=int, default=2)
    asked.add_argument("--mean", type=float, default=8.0, help="seconds to a kill, on average")
    asked.add_argument("--elastic", action="store_true", help="go on in the same processes")
    asked.add_argument("--host", choices=("cut", "drop"), help="lose a host in this way, and kill no rank")
    asked.add_argument("--strategy", default="allreduce", help="MATEX_STRATEGY")
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args()
    draw = random.Random(options.seed)
    os.environ["MATEX_STRATEGY"] = options.strategy
    is_exact = options.strategy == "async:0" or not options.strategy.startswith(("async", "local"))
    with tempfile.TemporaryDirectory() as notes:
        alone = subprocess.run([sys.executable, str(WORKER), notes], capture_output=True, text=True, check=True)
    want, counts = curve(alone.stdout), curve(alone.stdout, "COUNTS")
    print(
        "| run | killed | went on at | started again | from | exit code | seconds | largest difference | batches "
        "once |\n|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    bad = 0
    for number in range(1, options.runs + 1):
        how = ["--elastic"] if options.elastic else []
        if options.host:
            kills, code, text, seconds = without_a_host(options.host, options.mean, draw, how)
        else:
            kills, code, text, seconds = disturbed(options.ranks, options.kills, options.mean, draw, how)
        moments = re.findall(r"on without [a-z]+, (?:at: )?(.*)", text)
        again = len(re.findall(r"; restart \d+ of", text))
        states = re.findall(r"state saved at (epoch \d+, step \d+ of call \d+)", text)
        found, once = difference(want, curve(text)), counts == curve(text, "COUNTS")
        print(
            f"| {number} | {'; '.join(kills)} | {'; '.join(moments)} | {again} | {'; '.join(states)} | {code} | "
            f"{seconds:.0f} | {found:.1e} | {'yes' if once else 'no'} |",
            flush=True,
        )
        if code != 0 or not once or (is_exact and found > 1e-8):
            bad += 1
            print(text[-6000:], file=sys.stderr)
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
