"""A small convolutional network on handwritten digits: plain Keras on arrays that the script loads itself.

Alone, and on two ranks:

    python examples/mnist_keras.py
    mpirun -n 2 python -m matex_tf examples/mnist_keras.py
"""

import argparse
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

keras = tf.keras
layers = keras.layers


class Stopwatch(keras.callbacks.Callback):
    """Seconds of each epoch."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.started)


def load(path, rows):
    with np.load(path) as file:
        x_train, y_train = file["x_train"][:rows], file["y_train"][:rows]
        x_test, y_test = file["x_test"], file["y_test"]

    def images(x):
        return x[..., np.newaxis].astype("float32") / 255.0

    return images(x_train), y_train.astype("int32"), images(x_test), y_test.astype("int32")


def build():
    def convolution(filters):
        return layers.Conv2D(filters, 3, padding="same", activation="elu")

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            convolution(8),
            convolution(8),
            convolution(8),
            layers.AveragePooling2D(2),
            convolution(16),
            convolution(16),
            convolution(16),
            layers.AveragePooling2D(2),
            convolution(32),
            convolution(32),
            layers.Flatten(),
            layers.Dense(64, activation="elu"),
            layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "mnist" / "mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=None, help="train on the first so many digits only")
    options = parser.parse_args()

    keras.utils.set_random_seed(1)
    x_train, y_train, x_test, y_test = load(options.data, options.rows)
    model = build()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    stopwatch = Stopwatch()
    history = model.fit(
        x_train,
        y_train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(x_test, y_test),
        callbacks=[stopwatch],
        verbose=2,
    ).history
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)

    for epoch, seconds in enumerate(stopwatch.seconds):
        figures = "  ".join(f"{name} {float(history[name][epoch])!r}" for name in ("loss", "accuracy", "val_loss"))
        print(f"epoch {epoch + 1}  {figures}  seconds {seconds:.2f}")
    print(f"test  loss {float(loss)!r}  accuracy {float(accuracy)!r}")


if __name__ == "__main__":
    main()
