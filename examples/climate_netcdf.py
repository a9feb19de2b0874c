"""Forecasts next year's temperature field from those of eight years: a small network on windows of a NetCDF file.

Each rank reads the steps of its own windows from disk as training goes on. Alone, and on two ranks:

    python examples/climate_netcdf.py
    mpirun -n 2 python examples/climate_netcdf.py
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf

import matex_tf
from matex_tf.readers import DataSet

keras = tf.keras
layers = keras.layers
YEARS = 8


def build(rows, columns):
    """The mean of the years, and what convolutions over all of them add to it."""
    years = keras.Input((YEARS, rows, columns))
    channels = layers.Permute((2, 3, 1))(years)
    mean = layers.Conv2D(1, 1, use_bias=False, kernel_initializer=keras.initializers.Constant(1 / YEARS))(channels)
    hidden = layers.Conv2D(16, 3, padding="same", activation="tanh")(channels)
    change = layers.Conv2D(1, 3, padding="same", kernel_initializer="zeros")(hidden)
    return keras.Model(years, layers.Reshape((1, rows, columns))(layers.Add()([mean, change])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "climate" / "a1b.nc")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="of all ranks together")
    options = parser.parse_args()

    keras.utils.set_random_seed(2)
    years = DataSet(
        "NETCDF",
        options.data,
        data="air_temperature",
        window=YEARS,
        test_fraction=0.2,
        normalize="standard",
        distribution="batch",
        batch_size=options.batch_size,
    )
    print(years)

    model = build(*years.testing_data.shape[2:])
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss="mse")
    batches = years.as_dataset(options.batch_size, shuffle=True, seed=2)
    history = model.fit(batches, epochs=options.epochs, verbose=2).history
    loss = model.evaluate(years.testing_data, years.testing_labels, verbose=0)

    # Figures of one's own are of this rank's rows; here they are added up over the ranks.
    errors = np.mean((years.testing_data[:, -1:] - years.testing_labels) ** 2, axis=(1, 2, 3), dtype="float64")
    same_as_last = matex_tf.allreduce(np.array([errors.sum(), len(errors)]), op="sum")
    kelvin = float(years.scaling.deviation[0]) ** 2
    for epoch, value in enumerate(history["loss"]):
        print(f"epoch {epoch + 1}  loss {float(value)!r}")
    print(f"test  loss {float(loss)!r}  last_year {float(same_as_last[0] / same_as_last[1])!r}")
    print(f"squared error of the forecast {loss * kelvin:.3f} K^2, of last year's field", end=" ")
    print(f"{float(same_as_last[0] / same_as_last[1]) * kelvin:.3f} K^2")


if __name__ == "__main__":
    main()
