"""The fuel consumption of cars: a regression on columns of a gzipped CSV file.

Each rank reads, parses and holds its own rows. Alone, and on two ranks:

    python examples/cars_csv.py
    mpirun -n 2 python examples/cars_csv.py
"""

import argparse
from pathlib import Path

import tensorflow as tf

from matex_tf.readers import DataSet

keras = tf.keras
layers = keras.layers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "cars" / "autompg.csv.gz")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
    options = parser.parse_args()

    keras.utils.set_random_seed(4)
    cars = DataSet(
        "CSV",
        options.data,
        header=False,
        columns=range(7),
        labels=[-1],
        dtype="float32",
        test_fraction=0.2,
        split="spread",  # the cars are in the order of their year
        normalize="standard",
        distribution="batch",  # with shuffle=False, each step has the rows that it has alone
        batch_size=options.batch_size,
    )
    print(cars)

    model = keras.Sequential(
        [keras.Input((7,)), layers.Dense(32, activation="tanh"), layers.Dense(1, bias_initializer="ones")]
    )
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse", metrics=["mae"])
    history = model.fit(
        cars.training_data,
        cars.training_labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        shuffle=False,
        verbose=2,
    ).history
    loss, error = model.evaluate(cars.testing_data, cars.testing_labels, verbose=0)

    for epoch in range(options.epochs):
        print(f"epoch {epoch + 1}  " + "  ".join(f"{name} {float(history[name][epoch])!r}" for name in ("loss", "mae")))
    print(f"test  loss {float(loss)!r}  mae {float(error)!r}")


if __name__ == "__main__":
    main()
