"""Digits in a TFRecord file, of which each rank reads and parses its own records.

The file is made of the sample first. Alone, and on two ranks:

    python examples/mnist_tfrecord.py
    mpirun -n 2 python examples/mnist_tfrecord.py
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import matex_tf  # noqa: F401  (attaches the runtime)
from matex_tf.readers import DataSet

keras = tf.keras
layers = keras.layers


def write_records(path, images, labels):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(images, labels):
            example = tf.train.Example()
            example.features.feature["image"].bytes_list.value.append(image.tobytes())
            example.features.feature["label"].int64_list.value.append(int(label))
            writer.write(example.SerializeToString())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "mnist" / "mnist.npz")
    parser.add_argument("--rows", type=int, default=4000, help="how many digits to train on")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    options = parser.parse_args()

    keras.utils.set_random_seed(9)
    folder = tempfile.TemporaryDirectory()
    sample = np.load(options.data)
    path = Path(folder.name) / "digits.tfrecord"
    write_records(path, sample["x_train"][: options.rows], sample["y_train"][: options.rows])
    digits = DataSet(
        "TFRECORD",
        path,
        columns="image",
        labels="label",
        dtype={"image": "uint8"},  # the bytes are numbers of this type
        shape=(28, 28, 1),
        normalize=True,
        test_fraction=0.2,
        distribution="batch",  # with shuffle=False, each step has the rows that it has alone
        batch_size=options.batch_size,
    )
    print(digits)

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
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
    batches = digits.as_dataset(options.batch_size)
    history = model.fit(batches, epochs=options.epochs, verbose=2).history
    loss, accuracy = model.evaluate(digits.testing_data, digits.testing_labels, verbose=0)

    for epoch in range(options.epochs):
        figures = "  ".join(f"{name} {float(history[name][epoch])!r}" for name in ("loss", "accuracy"))
        print(f"epoch {epoch + 1}  {figures}")
    print(f"test  loss {float(loss)!r}  accuracy {float(accuracy)!r}")


if __name__ == "__main__":
    main()
