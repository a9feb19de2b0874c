"""Keras fit on a tf.data pipeline: shuffled anew in each epoch, batched, prefetched.

Alone, and on two ranks:

    python examples/mnist_dataset.py
    mpirun -n 2 python -m matex_tf examples/mnist_dataset.py
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf

keras = tf.keras
layers = keras.layers


def scale(image, label):
    return tf.cast(image[..., tf.newaxis], tf.float32) / 255.0, label


def pipelines(path, rows, batch_size):
    with np.load(path) as file:
        train = tf.data.Dataset.from_tensor_slices((file["x_train"][:rows], file["y_train"][:rows]))
        test = tf.data.Dataset.from_tensor_slices((file["x_test"], file["y_test"]))
    train = train.shuffle(len(train), seed=7).map(scale, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size)
    return train.prefetch(tf.data.AUTOTUNE), test.map(scale).batch(250)


def build():
    image = keras.Input((28, 28, 1))
    x = layers.Conv2D(16, 3, strides=2, activation="relu")(image)
    x = layers.Conv2D(32, 3, activation="relu")(x)
    x = layers.AveragePooling2D(2)(x)
    x = layers.Flatten()(x)
    return keras.Model(image, layers.Dense(10, activation="softmax")(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "mnist" / "mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=None, help="train on the first so many digits only")
    options = parser.parse_args()

    keras.utils.set_random_seed(2)
    train, test = pipelines(options.data, options.rows, options.batch_size)
    model = build()
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(train, epochs=options.epochs, validation_data=test, verbose=2).history
    loss, accuracy = model.evaluate(test, verbose=0)

    for epoch in range(options.epochs):
        figures = "  ".join(f"{name} {float(history[name][epoch])!r}" for name in ("loss", "accuracy", "val_loss"))
        print(f"epoch {epoch + 1}  {figures}")
    print(f"test  loss {float(loss)!r}  accuracy {float(accuracy)!r}")


if __name__ == "__main__":
    main()
