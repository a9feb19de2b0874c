"""What computing a slice in parts costs and spares: `python benchmarks/parts.py [--rows 512] [--steps 6] [MODEL ...]`.

One rank; each line is a process of its own. CPU seconds of a step are the least of the last steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from matex_tf.observe.measured_steps import read_resident_bytes

MODELS = ("conv", "dense", "tanh")
ASKED = ("0", "512", "128", "32", "auto")


def build(name: str, keras: object) -> object:
    layers = keras.layers  # type: ignore[attr-defined]
    if name == "conv":
        inner = [layers.Reshape((32, 32, 1)), *[layers.Conv2D(32, 3, padding="same") for _ in range(4)]]
    elif name == "dense":
        inner = [layers.Dense(1024, activation="relu") for _ in range(8)]
    else:
        inner = [layers.Reshape((1024, 1)), layers.Dense(64), *[layers.Activation("tanh") for _ in range(8)]]
    return keras.Sequential(  # type: ignore[attr-defined]
        [keras.Input((1024,)), *inner, layers.Flatten(), layers.Dense(1)]  # type: ignore[attr-defined]
    )


def train(name: str, rows: int, steps: int) -> None:
    """Trains, and prints CPU seconds of a step (in all, user, system) and the peak of the process in MiB."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    model = build(name, keras)
    model.compile("sgd", "mse")  # type: ignore[attr-defined]
    took: list[tuple[float, float, float]] = []

    class Steps(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch, logs=None):
            self.began = os.times()

        def on_train_batch_end(self, batch, logs=None):
            user, system = (now - then for now, then in zip(os.times()[:2], self.began[:2]))
            took.append((user + system, user, system))

    x = np.random.RandomState(0).rand(rows, 1024).astype("float32")
    model.fit(x, x[:, :1], batch_size=rows, epochs=steps, verbose=0, callbacks=[Steps()])  # type: ignore[attr-defined]
    print(*(f"{one:.2f}" for one in min(took[2:])), read_resident_bytes("VmHWM") >> 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--parts", nargs="+", default=ASKED, help="rows of a part, 0 for all at once, or auto")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--memory", default="", help="of auto, as 900MiB")
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        return train(given.models[0], given.rows, given.steps)
    for model in given.models:
        for asked in given.parts:
            environment = {**os.environ, "MATEX_MICROBATCH": asked, "TF_CPP_MIN_LOG_LEVEL": "3"}
            if asked == "auto" and given.memory:
                environment["MATEX_MEMORY"] = given.memory
            words = [__file__, model, "--worker", "--rows", str(given.rows), "--steps", str(given.steps)]
            ended = subprocess.run(
                [sys.executable, "-m", "matex_tf", *words], env=environment, capture_output=True, text=True, check=True
            )
            said = [line for line in ended.stderr.splitlines() if "MATEX_MICROBATCH" in line]
            seconds, user, system, peak = ended.stdout.split()[-4:]
            print(
                f"{model:6} parts of {asked:5} {seconds:>6} CPU s ({user} user, {system} system) {peak:>6} MiB", *said
            )


if __name__ == "__main__":
    main()
