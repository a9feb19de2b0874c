"""A training loop of one's own: tf.GradientTape in a tf.function, over a tf.data pipeline.

Alone, and on two ranks:

    python examples/mnist_loop.py
    mpirun -n 2 python -m matex_tf examples/mnist_loop.py
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf

keras = tf.keras
layers = keras.layers


def load(path, rows):
    with np.load(path) as file:
        train = file["x_train"][:rows], file["y_train"][:rows]
        test = file["x_test"], file["y_test"]
    return [(x[..., np.newaxis].astype("float32") / 255.0, y.astype("int64")) for x, y in (train, test)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "mnist" / "mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=None, help="train on the first so many digits only")
    options = parser.parse_args()

    keras.utils.set_random_seed(3)
    (x_train, y_train), (x_test, y_test) = load(options.data, options.rows)
    dataset = (
        tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train), seed=8).batch(options.batch_size)
    )

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.AdamW(1e-3)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_of(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(labels, logits)
        return loss

    for epoch in range(options.epochs):
        accuracy.reset_state()
        losses = [float(train_step(images, labels)) for images, labels in dataset]
        print(f"epoch {epoch + 1}  loss {np.mean(losses).item()!r}  accuracy {float(accuracy.result())!r}")

    logits = model(x_test, training=False)
    correct = np.mean(np.argmax(logits, axis=-1) == y_test)
    print(f"test  loss {float(loss_of(y_test, logits))!r}  accuracy {correct.item()!r}")


if __name__ == "__main__":
    main()
