"""`matex tune`: what a trial costs beside itself, searches that are killed, engines and warm starts on the same tasks.

    python benchmarks/tune.py overhead      # 20 trials with 50 in the history, for each engine
    python benchmarks/tune.py efficiency    # 14 trials of a real script, two at a time, for each engine
    python benchmarks/tune.py rungs         # 12 trials of 27 epochs, whole and with --rungs 1,3,9, twice
    python benchmarks/tune.py killed        # 20 searches, each killed at random moments
    python benchmarks/tune.py engines       # trials to a given cost, on eight made-up tasks
    python benchmarks/tune.py warm          # the same, cold and after searches of four alike tasks

Trials of all but `efficiency` and `rungs` are small Pythons, or functions. What is not installed is left out.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from matex_tf.tune import setup, space_file
from matex_tf.tune.engines import engine
from matex_tf.tune.engines.proposals import Proposals
from matex_tf.tune.settings import Settings
from matex_tf.tune.space import Config

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import fake_trials  # noqa: E402

SPACE = """\
search:
  --lr: {log: [1e-5, 1e-1]}
  --units: {log_int: [8, 512]}
  --optimizer: [adam, sgd, rmsprop]
  --dropout: {float: [0, 0.6]}
"""
SLEEPS = """\
import json, os, sys, time
time.sleep(float(os.environ.get("SLEEP", 0)))
line = {"epoch": 1, "logs": {"val_loss": hash(sys.argv[1]) % 999}}
open(os.environ["MATEX_TRIAL"], "a").write(json.dumps(line) + "\\n")
"""
TRAINS = """\
import argparse, numpy as np, keras
p = argparse.ArgumentParser()
for name, kind in (("lr", float), ("units", int), ("optimizer", str), ("dropout", float)):
    p.add_argument(f"--{name}", type=kind)
a = p.parse_args()
keras.utils.set_random_seed(1)
g = np.random.default_rng(0)
x = g.normal(size=(4000, 64)).astype("float32")
y = (x @ g.normal(size=(64, 10))).argmax(1)
m = keras.Sequential([keras.layers.Dense(a.units, "relu"), keras.layers.Dropout(a.dropout), keras.layers.Dense(10)])
o = keras.optimizers.get({"class_name": a.optimizer, "config": {"learning_rate": a.lr}})
m.compile(o, keras.losses.SparseCategoricalCrossentropy(True))
m.fit(x, y, epochs=8, batch_size=32, validation_split=0.25, verbose=0)
"""
COST, MOST = 0.15, 60


def present() -> list[str]:
    """The engines whose libraries are here."""
    found = []
    for name in engine.NAMES:
        try:
            engine.load_engine(name)
            found.append(name)
        except engine.EngineMissingError:
            print(f"{name}: not installed")
    return found


def search(folder: Path, script: str, **settings: object) -> Path:
    """A new search in `folder`, the current one, of trials that are small Pythons or real."""
    fake_trials.prepare(folder, script, SPACE)
    asked = Settings(source=str(folder), name="space.yaml", **settings)  # type: ignore[arg-type]
    return setup.create_search(["train.py"], SPACE, asked, database=str(folder / "tune.db"))


def quietly(work: Callable[[], object]) -> None:
    """`work`, without the lines of its trials."""
    before = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        work()
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)
        os.close(null)


def overhead() -> None:
    """Seconds of a slot that are no trial's, for each trial: one at a time, of six seconds each.

    An engine thinks while a trial runs. SMAC needs two to four seconds, so that in shorter trials it could not be done.
    """
    setup.find_own_command = lambda: fake_trials.command(Path.cwd())
    for name in present():
        with tempfile.TemporaryDirectory() as root:
            os.chdir(root)
            where = search(Path(root), SLEEPS, trials=50, engine=name, warm_start=False)
            quietly(lambda where=where: setup.run_search(where))
            os.environ["SLEEP"] = "6"
            began, used = time.monotonic(), time.process_time()
            quietly(lambda where=where: setup.run_search(where, trials=70))
            whole, used = time.monotonic() - began, time.process_time() - used
            del os.environ["SLEEP"]
            database, found = setup.open_search(where)
            seconds = sum(one.seconds for one in database.list_trials(found.id)[50:])
            print(f"{name}: {(whole - seconds) / 20:.3f} s beside each of 20 trials of {seconds / 20:.2f} s "
                  f"({(whole - seconds) / 20 / 60:.2%} of a minute), {used / 20:.3f} s of a core")  # fmt: skip
            os.chdir("/")


def efficiency() -> None:
    """Seconds of trials over those of two slots."""
    for name in present():
        with tempfile.TemporaryDirectory() as root:
            os.chdir(root)
            where = search(Path(root), TRAINS, trials=14, parallel=2, engine=name, warm_start=False)
            began = time.monotonic()
            quietly(lambda where=where: setup.run_search(where))
            whole = time.monotonic() - began
            database, found = setup.open_search(where)
            trials = database.list_trials(found.id)
            seconds = sum(one.seconds for one in trials)
            best = min(one.value for one in trials if one.value is not None)
            print(
                f"{name}: {whole:.1f} s, a trial {seconds / 14:.1f} s, efficiency {seconds / 2 / whole:.2f}, "
                f"best {best:.3f}"
            )
            os.chdir("/")


def with_rungs() -> None:
    """Epochs, seconds and what was found, of the same configurations: whole, and stopped at rungs."""
    script = TRAINS.replace("4000", "20000").replace("epochs=8", "epochs=27")
    for rungs in ((), (1, 3, 9)) * 2:
        with tempfile.TemporaryDirectory() as root:
            os.chdir(root)
            where = search(Path(root), script, trials=12, parallel=2, rungs=rungs, warm_start=False)
            began = time.monotonic()
            quietly(lambda where=where: setup.run_search(where))
            whole = time.monotonic() - began
            database, found = setup.open_search(where)
            trials = database.list_trials(found.id)
            epochs = [point.epoch for one in trials for point in one.curve]
            best = min(one.value for one in trials if one.state == "done")
            print(
                f"rungs {rungs}: {whole:.0f} s, {len(epochs)} epochs, "
                f"{sum(one.state == 'done' for one in trials)} trials to their ends, best {best:.4f}",
                flush=True,
            )
            os.chdir("/")


def killed() -> None:
    """Twenty searches of ten trials, killed up to five times each, and gone on with."""
    draw, kills, wrong = random.Random(0), 0, 0
    for number in range(20):
        with tempfile.TemporaryDirectory() as root:
            os.chdir(root)
            where = search(Path(root), SLEEPS, trials=10, parallel=2, seed=number)
            environment = {**os.environ, "SLEEP": "0.05"}
            words = [sys.executable, str(Path(fake_trials.__file__)), "--resume", str(where)]
            for _ in range(draw.randrange(1, 6)):
                child = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
                try:
                    child.wait(draw.uniform(0.2, 1.5))
                except subprocess.TimeoutExpired:
                    child.send_signal(signal.SIGKILL)
                    kills += 1
                    child.wait()
            code = subprocess.run(words, env=environment, stdout=subprocess.DEVNULL).returncode
            database, found = setup.open_search(where)
            trials = database.list_trials(found.id)
            right = [one.number for one in trials] == list(range(1, 11)) and {one.state for one in trials} == {"done"}
            wrong += code != 0 or not right or any(len(one.curve) != 1 for one in trials)
            os.chdir("/")
    print(f"20 searches, killed {kills} times: {20 - wrong} ended with each of 10 trials once")


def task(seed: int) -> Callable[[Config], float]:
    """A made-up task: its best learning rate and width lie near those of others."""
    draw = random.Random(seed)
    lr, units = -2.7 + draw.gauss(0, 0.25), 6 + draw.gauss(0, 0.5)
    return lambda c: (
        (math.log10(float(c["--lr"])) - lr) ** 2 + 0.2 * abs(math.log2(float(c["--units"])) - units)
        + (0.3 if c["--optimizer"] == "sgd" else 0) + 0.5 * (float(c["--dropout"]) - 0.2) ** 2
    )  # fmt: skip


def play(
    name: str, of: Callable[[Config], float], seed: int, trials: int, first: list[Config]
) -> list[tuple[float, Config]]:
    """A search of functions: costs and configurations in order."""
    space = space_file.read_space(SPACE, "space").space
    proposals = Proposals(engine.load_engine(name)(space, seed), space, seed)
    proposals.put_first(first)
    found = []
    while len(found) < trials:
        proposed = proposals.take_next()
        if proposed is None:
            time.sleep(0.001)
            continue
        found.append((of(proposed[0]), proposed[0]))
        proposals.tell(proposed[0], found[-1][0])
    proposals.close()
    return found


def reached(found: list[tuple[float, Config]]) -> int:
    """Trials until the cost is reached; one more than there are where it is not."""
    return next((place + 1 for place, (cost, _) in enumerate(found) if cost <= COST), len(found) + 1)


def engines() -> None:
    """Trials to the cost, and the best after half of them, on eight tasks."""
    for name in present():
        began = time.monotonic()
        runs = [play(name, task(seed), seed, MOST, []) for seed in range(8)]
        half = median(min(cost for cost, _ in run[: MOST // 2]) for run in runs)
        print(f"{name}: cost {COST} after {median(map(reached, runs)):g} trials (median of 8), best after {MOST // 2} "
              f"{half:.3f}, after {MOST} {median(min(cost for cost, _ in run) for run in runs):.3f}; "
              f"{time.monotonic() - began:.0f} s")  # fmt: skip


def warm_starts() -> None:
    """The same, cold and with the best of four earlier tasks."""
    for name in present():
        best = [min(play(name, task(seed), seed, 20, []), key=lambda one: one[0])[1] for seed in range(100, 104)]
        cold, hot = ([reached(play(name, task(seed), seed, 25, first)) for seed in range(8)] for first in ([], best))
        print(
            f"{name}: cost {COST} cold after {median(cold):g}, warm after {median(hot):g} trials "
            "(medians of 8; 26: not in 25)"
        )


if __name__ == "__main__":
    asked = {
        "overhead": overhead, "efficiency": efficiency, "rungs": with_rungs, "killed": killed, "engines": engines,
        "warm": warm_starts,
    }  # fmt: skip
    if len(sys.argv) != 2 or sys.argv[1] not in asked:
        sys.exit(__doc__)
    asked[sys.argv[1]]()
