"""TensorFlow 1 style: placeholders, a Session, feed_dict, and arrays shuffled and cut into batches by hand.

Alone, and on two ranks:

    python examples/mnist_v1.py
    mpirun -n 2 python -m matex_tf examples/mnist_v1.py
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def load(path, rows):
    with np.load(path) as file:
        train = file["x_train"][:rows], file["y_train"][:rows]
        test = file["x_test"], file["y_test"]
    return [(x[..., np.newaxis].astype("float32") / 255.0, y.astype("int32")) for x, y in (train, test)]


def network(images):
    def weights(name, shape):
        return tf.get_variable(name, shape, initializer=tf.glorot_uniform_initializer(seed=5))

    def biases(name, count):
        return tf.get_variable(name, [count], initializer=tf.zeros_initializer())

    x = tf.nn.conv2d(images, weights("w1", [5, 5, 1, 16]), strides=1, padding="SAME")
    x = tf.nn.max_pool2d(tf.nn.relu(x + biases("b1", 16)), 2, 2, "SAME")
    x = tf.nn.conv2d(x, weights("w2", [5, 5, 16, 32]), strides=1, padding="SAME")
    x = tf.nn.max_pool2d(tf.nn.relu(x + biases("b2", 32)), 2, 2, "SAME")
    x = tf.reshape(x, [-1, 7 * 7 * 32])
    return tf.matmul(x, weights("w3", [7 * 7 * 32, 10])) + biases("b3", 10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=Path(__file__).parent / "data" / "mnist" / "mnist.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=None, help="train on the first so many digits only")
    options = parser.parse_args()

    (data, labels), (test_data, test_labels) = load(options.data, options.rows)

    # Setting up the network
    x = tf.placeholder(tf.float32, [None, 28, 28, 1])
    y = tf.placeholder(tf.int32, [None])
    logits = network(x)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    correct = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))

    # Setting up optimizer
    train = tf.train.MomentumOptimizer(0.02, 0.9).minimize(loss)

    init = tf.global_variables_initializer()
    sess = tf.Session()
    sess.run(init)

    # Run training regime
    random = np.random.RandomState(6)
    for epoch in range(options.epochs):
        order = random.permutation(len(data))
        losses = []
        for start in range(0, len(data), options.batch_size):
            rows = order[start : start + options.batch_size]
            _, value = sess.run([train, loss], feed_dict={x: data[rows], y: labels[rows]})
            losses.append(value)
        print(f"epoch {epoch + 1}  loss {np.mean(losses, dtype=np.float64).item()!r}")

    value, accuracy = sess.run([loss, correct], feed_dict={x: test_data, y: test_labels})
    print(f"test  loss {float(value)!r}  accuracy {float(accuracy)!r}")


if __name__ == "__main__":
    main()
