"""The line `import matex_tf`, and the reader that gives each rank only its share of the files.

Alone, and on two ranks:

    python examples/mnist_import.py
    mpirun -n 2 python examples/mnist_import.py
"""

import argparse
from pathlib import Path

import tensorflow as tf

import matex_tf  # noqa: F401  (attaches the runtime)
from matex_tf.readers import DataSet

keras = tf.keras
layers = keras.layers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "mnist", help="folder of IDX files")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    options = parser.parse_args()

    keras.utils.set_random_seed(9)
    digits = DataSet("MNIST", options.data, normalize=True)
    print(digits)

    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        digits.training_data,
        digits.training_labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2,
    ).history
    loss, accuracy = model.evaluate(digits.testing_data, digits.testing_labels, verbose=0)

    for epoch in range(options.epochs):
        figures = "  ".join(f"{name} {float(history[name][epoch])!r}" for name in ("loss", "accuracy"))
        print(f"epoch {epoch + 1}  {figures}")
    print(f"test  loss {float(loss)!r}  accuracy {float(accuracy)!r}")


if __name__ == "__main__":
    main()
