"""Rows a second of an unchanged script on 1 to N ranks, a core each, next to the script alone with as many threads.

    python benchmarks/scaling.py [--ranks 1 2 4] [--scripts arrays images] [--rounds 2]

Both scripts train with `fit` and the same batches for any number of ranks (strong scaling): "arrays" a ResNet-20 on
arrays, in batches of 256 rows; "images" a small CNN on JPEGs of 500 x 375 that the script decodes, in batches of 128.
"threads" is one process that has all cores of the N ranks. Figures are medians over rounds and the epochs after the
first; settings take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from input import encode_images

from matex_tf.launch import command_line, run_options
from matex_tf.world import placement

EPOCHS = 4
ROWS = {"arrays": 3072, "images": 2048}


def make_images(folder: Path) -> None:
    """JPEGs, each of 64 images 32 times."""
    import numpy as np

    for number, encoded in enumerate(encode_images(64, np.random.default_rng(0))):
        for copy in range(32):
            (folder / f"{number * 32 + copy:05}.jpg").write_bytes(encoded.numpy())


def prepare(script: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model of a script, and the arguments of `fit` that are its data."""
    import keras
    import models
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    if script == "arrays":
        case = models.CASES["resnet20"]
        images = np.random.default_rng(0).random((ROWS[script], *case.shape), np.float32)
        labels = np.arange(ROWS[script]) % 10
        return case.build(keras, case.shape), {"x": images, "y": labels, "batch_size": 256}

    def load(path: Any, label: Any) -> tuple[Any, Any]:
        return tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), 3), [96, 96]) / 255.0, label

    layers = keras.layers
    paths = sorted(map(str, folder.glob("*.jpg")))
    rows = tf.data.Dataset.from_tensor_slices((paths, tf.range(len(paths)) % 10)).shuffle(len(paths), seed=1)
    convolutions = [layers.Conv2D(filters, 3, 2, activation="relu") for filters in (16, 32)]
    model = keras.Sequential(
        [keras.Input((96, 96, 3)), *convolutions, layers.GlobalAveragePooling2D(), layers.Dense(10)]
    )
    return model, {"x": rows.map(load, tf.data.AUTOTUNE).batch(128).prefetch(2)}


def train(script: str, folder: Path) -> None:
    """Train, and print the rows a second of the epochs after the first, and the last loss."""
    import keras

    model, data = prepare(script, folder)
    model.compile(keras.optimizers.SGD(0.01, 0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    speeds = []
    for _ in range(EPOCHS):
        started = time.perf_counter()
        history = model.fit(**data, verbose=0).history
        speeds.append(ROWS[script] / (time.perf_counter() - started))
    print(json.dumps({"speed": median(speeds[1:]), "loss": history["loss"][0]}), flush=True)


def run(script: str, folder: Path, setting: str, cores: list[int]) -> dict[str, float]:
    """Run a script on `cores`; "threads" is one process, "ranks" a rank for each core."""
    words = [str(Path(__file__).resolve()), "--train", script, str(folder)]
    command = (
        [sys.executable, *words]
        if setting == "threads"
        else command_line.make_command_line(run_options.Run(len(cores), words))
    )
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "MATEX_QUIET": "1", **os.environ}
    bound = ["taskset", "-c", placement.format_cpu_list(cores), *command]
    output = subprocess.run(bound, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=900).stdout
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = [core[0] for core in placement.list_cores()]
    parser.add_argument("--ranks", type=int, nargs="+", default=[n for n in (1, 2, 4, 8, 16, 32) if n <= len(cores)])
    parser.add_argument("--scripts", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train[0], Path(given.train[1]))
        return
    print(f"{'script':8} {'cores':>5} {'threads rows/s':>15} {'ranks':>9} {'ranks/threads':>14} {'loss of both':>22}")
    with tempfile.TemporaryDirectory() as temporary:
        make_images(Path(temporary))
        for script in given.scripts:
            for count in given.ranks:
                settings = ("threads", "ranks")[: 1 + (count > 1)]
                rounds = [
                    {setting: run(script, Path(temporary), setting, cores[:count]) for setting in settings}
                    for _ in range(given.rounds)
                ]
                speeds = [median(found[setting]["speed"] for found in rounds) for setting in settings]
                losses = " ".join(f"{rounds[0][setting]['loss']:.6f}" for setting in settings)
                ranks = f"{speeds[1]:9.0f} {speeds[1] / speeds[0]:14.2f}" if count > 1 else f"{'':9} {'':14}"
                print(f"{script:8} {count:5} {speeds[0]:15.0f} {ranks} {losses:>22}", flush=True)


if __name__ == "__main__":
    main()
