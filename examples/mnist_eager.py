"""The plainest loop: eager TensorFlow, variables and layers by hand, no tf.function.

Alone, and on two ranks:

    python examples/mnist_eager.py
    mpirun -n 2 python -m matex_tf examples/mnist_eager.py
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf


def load(path, rows):
    with np.load(path) as file:
        train = file["x_train"][:rows], file["y_train"][:rows]
        test = file["x_test"], file["y_test"]
    return [(x.reshape(len(x), 784).astype("float32") / 255.0, y.astype("int32")) for x, y in (train, test)]


class Network(tf.Module):
    def __init__(self, sizes):
        super().__init__()
        random = np.random.RandomState(4)
        pairs = list(zip(sizes[:-1], sizes[1:]))
        self.weights = [tf.Variable(random.normal(0, (2 / a) ** 0.5, (a, b)).astype("float32")) for a, b in pairs]
        self.biases = [tf.Variable(tf.zeros(b)) for _, b in pairs]

    def __call__(self, x):
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            x = tf.nn.relu(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]


def loss_of(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "mnist" / "mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=None, help="train on the first so many digits only")
    options = parser.parse_args()

    tf.random.set_seed(4)
    (x_train, y_train), (x_test, y_test) = load(options.data, options.rows)
    dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train)).batch(options.batch_size)
    network = Network([784, 256, 128, 10])
    optimizer = tf.keras.optimizers.RMSprop(5e-4)

    for epoch in range(options.epochs):
        for images, labels in dataset:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, network(images))
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables))
        logits = network(tf.constant(x_test))
        correct = np.mean(np.argmax(logits, axis=-1) == y_test)
        print(f"epoch {epoch + 1}  test_loss {float(loss_of(y_test, logits))!r}  test_accuracy {correct.item()!r}")


if __name__ == "__main__":
    main()
