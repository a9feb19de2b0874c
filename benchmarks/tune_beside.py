"""What `matex tune`, Optuna's own loop and keras-tuner ask of a script, and how long the same number of trials takes.

    python benchmarks/tune_beside.py

Each searches ten trials of one model at random. A line of the script counts where it is new or another one. The two
loops train in one process; `matex tune` starts a process for each trial, one at a time and two at a time.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TRIALS, ROUNDS = 10, 2
PLAIN = """\
import argparse, numpy as np, keras
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.01)
p.add_argument("--dropout", type=float, default=0.2)
p.add_argument("--optimizer", default="adam")
a = p.parse_args()
keras.utils.set_random_seed(1)
g = np.random.default_rng(0)
x = g.normal(size=(20000, 64)).astype("float32")
y = (x @ g.normal(size=(64, 10))).argmax(1)
m = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dropout(a.dropout), keras.layers.Dense(10)])
o = keras.optimizers.get({"class_name": a.optimizer, "config": {"learning_rate": a.lr}})
m.compile(o, keras.losses.SparseCategoricalCrossentropy(True))
m.fit(x, y, epochs=8, batch_size=32, validation_split=0.25, verbose=0)
"""
SPACE = """\
search:
  --lr: {log: [1e-5, 1e-1]}
  --dropout: {float: [0, 0.6]}
  --optimizer: [adam, sgd, rmsprop]
"""
OPTUNA = f"""\
import numpy as np, keras, optuna
keras.utils.set_random_seed(1)
g = np.random.default_rng(0)
x = g.normal(size=(20000, 64)).astype("float32")
y = (x @ g.normal(size=(64, 10))).argmax(1)
def objective(trial):
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    dropout = trial.suggest_float("dropout", 0, 0.6)
    optimizer = trial.suggest_categorical("optimizer", ["adam", "sgd", "rmsprop"])
    m = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dropout(dropout), keras.layers.Dense(10)])
    o = keras.optimizers.get({{"class_name": optimizer, "config": {{"learning_rate": lr}}}})
    m.compile(o, keras.losses.SparseCategoricalCrossentropy(True))
    return m.fit(x, y, epochs=8, batch_size=32, validation_split=0.25, verbose=0).history["val_loss"][-1]
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
study.optimize(objective, n_trials={TRIALS})
print(study.best_params)
"""
KERAS_TUNER = f"""\
import numpy as np, keras, keras_tuner
keras.utils.set_random_seed(1)
g = np.random.default_rng(0)
x = g.normal(size=(20000, 64)).astype("float32")
y = (x @ g.normal(size=(64, 10))).argmax(1)
def build(hp):
    lr = hp.Float("lr", 1e-5, 1e-1, sampling="log")
    dropout = hp.Float("dropout", 0, 0.6)
    optimizer = hp.Choice("optimizer", ["adam", "sgd", "rmsprop"])
    m = keras.Sequential([keras.layers.Dense(128, "relu"), keras.layers.Dropout(dropout), keras.layers.Dense(10)])
    o = keras.optimizers.get({{"class_name": optimizer, "config": {{"learning_rate": lr}}}})
    m.compile(o, keras.losses.SparseCategoricalCrossentropy(True))
    return m
tuner = keras_tuner.RandomSearch(build, "val_loss", max_trials={TRIALS}, seed=1, directory="tuner")
tuner.search(x, y, epochs=8, batch_size=32, validation_split=0.25, verbose=0)
print(tuner.get_best_hyperparameters()[0].values)
"""
PYTHON = (sys.executable, "script.py")
TUNE = (
    str(Path(sys.executable).with_name("matex")), "tune", "--search", "space.yaml", "--trials", str(TRIALS),
    "--no-warm-start", "--database", "tune.db",
)  # fmt: skip
WAYS = {
    "Optuna": ("optuna", OPTUNA, PYTHON),
    "keras-tuner": ("keras_tuner", KERAS_TUNER, PYTHON),
    "matex tune": ("", PLAIN, (*TUNE, "script.py")),
    "matex tune --parallel 2": ("", PLAIN, (*TUNE, "--parallel", "2", "script.py")),
}


def count_changes(script: str) -> tuple[int, int]:
    """Lines of the plain script that are gone, and lines that are new."""
    lines = list(difflib.ndiff(PLAIN.splitlines(), script.splitlines()))
    return sum(line.startswith("- ") for line in lines), sum(line.startswith("+ ") for line in lines)


def measure_seconds(script: str, command: Sequence[str]) -> float:
    """Seconds of a search in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(script)
        Path(folder, "space.yaml").write_text(SPACE)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        began = time.monotonic()
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return time.monotonic() - began


def main() -> None:
    """A round after another, so that what else the machine does falls on all of them."""
    ways = {name: way for name, way in WAYS.items() if not way[0] or importlib.util.find_spec(way[0])}
    for name in WAYS.keys() - ways.keys():
        print(f"{name}: not installed")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (_, script, command) in ways.items():
            seconds[name].append(measure_seconds(script, command))
    for name, (_, script, _) in ways.items():
        gone, new = count_changes(script)
        print(
            f"{name}: {gone} lines of the script gone, {new} new; {', '.join(f'{one:.0f} s' for one in seconds[name])}"
        )


if __name__ == "__main__":
    main()
