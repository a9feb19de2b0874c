"""Steps under a tape without a Keras model: `python recorded_cases.py FOLDER`, alone and under ranks; all are exact.

Batches of 20, 20 and 3 rows, so that a slice may have one row; one case has fewer rows than 3 ranks. Of each case it is
stored, too, how often ranks shared the way back.
"""

import os
import sys

import numpy as np
import tensorflow as tf

GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(43, 8, 8, 2)), GENERATOR.normal(size=(43, 3))
WORDS = GENERATOR.integers(0, 7, size=(43, 4))
COUNT = {"shared": 0, "steps": 0}
results: dict = {}


class V:
    """The variables: two kernels and two vectors of one shape, and a table with as many rows as a batch."""

    @classmethod
    def renew(cls):
        make = np.random.default_rng(1).normal
        cls.kernel, cls.other = (tf.Variable(0.3 * make(size=(3, 3, 2, 2))) for _ in range(2))
        cls.bias, cls.dense, cls.scale = (
            tf.Variable(np.zeros(2)),
            tf.Variable(make(size=(2, 3))),
            tf.Variable(np.float64(1.0)),
        )
        cls.table, cls.word = tf.Variable(make(size=(20, 3))), tf.Variable(make(size=(7, 3)))
        return [cls.kernel, cls.other, cls.bias, cls.dense, cls.scale, cls.table, cls.word]


def net(x):
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, V.kernel, 1, "SAME"), V.bias))  # ops read these variables themselves
    h = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(h, V.other, 1, "SAME")), 2, 2, "SAME")
    return tf.reduce_mean(h, [1, 2]) @ V.dense * V.scale


def mse(p, y):
    return tf.reduce_mean((p - y) ** 2)


def stopped(x, y, tape):
    p = net(x)
    with tape.stop_recording():
        weights = tf.sigmoid(p) + V.scale
    return tf.reduce_mean(weights * (p - y) ** 2) + mse(tf.stop_gradient(p) * V.scale, y)


def assigned(x, y, tape):
    first = net(x)
    V.scale.assign_add(0.01)
    return mse(first, y) + mse(net(x), y)


def drawn(x, y, tape):
    noise = tf.random.stateless_normal(tf.shape(y), seed=[1, 2], dtype=tf.float64)
    weights = tf.random.stateless_gamma(tf.shape(y), [3, 2], alpha=tf.constant(2.0, tf.float64), dtype=tf.float64)
    return mse(tf.nn.dropout(net(x), 0.3) * weights + noise, y)


@tf.custom_gradient
def mixing(z):
    return tf.identity(z), lambda upstream: upstream * 0.5 + tf.reduce_mean(upstream)


@tf.function
def doubled(z):
    return 2.0 * z


def turning(x, y, tape):
    h = net(x)
    for _ in range(2 if float(tf.reduce_mean(h)) > 0 else 3):
        h = tf.tanh(h) + h
    return mse(h, y) * float(tf.reduce_max(x))


def of_gradients(x, y, tape):
    with tf.GradientTape() as inner:
        inner.watch(x)
        loss = mse(net(x), y)
    return loss + tf.reduce_sum(inner.gradient(loss, x) ** 2)


def normalized(x, y, tape):
    p = net(x)
    mean, variance = tf.nn.moments(p, 0)
    return mse((p - mean) / tf.sqrt(variance + 1e-3), y)


def words(x, y, tape):
    rows = tf.nn.embedding_lookup(V.word, WORDS[: len(x)])
    return mse(net(x) + tf.reduce_mean(rows, 1), y)


CASES = {
    "mean": lambda x, y, tape: mse(net(x), y),
    "sum over the number of rows, and a penalty": lambda x, y, tape: (
        tf.reduce_sum((net(x) - y) ** 2) / len(x) + tf.nn.l2_loss(V.kernel)
    ),
    "root of a ratio": lambda x, y, tape: tf.sqrt(tf.reduce_sum((net(x) * y) ** 2) / tf.reduce_sum(y**2)),
    "a number for each row": lambda x, y, tape: tf.reduce_sum((net(x) - y) ** 2, 1),
    "several": lambda x, y, tape: [mse(net(x), y), tf.reduce_sum(V.bias)],
    "a table of as many rows": lambda x, y, tape: mse(net(x) + (V.table if len(x) == 20 else 0.0), y),
    "embeddings": words,
    "stopped": stopped,
    "assigned between": assigned,
    "drawn": drawn,
    "Python reads": turning,
    "rows with rows": lambda x, y, tape: tf.reduce_mean((net(x) @ tf.transpose(net(x))) ** 2),
    "chosen rows": lambda x, y, tape: tf.reduce_mean(tf.boolean_mask(net(x), y[:, 0] > 0) ** 2),
    "normalised": normalized,
    "sizes named": lambda x, y, tape: mse(tf.reshape(tf.reshape(net(x), [len(x) * 3]), [len(x), 3]), y),
    "a gradient of its own": lambda x, y, tape: mse(mixing(net(x)), y),
    "a function that is called": lambda x, y, tape: mse(doubled(net(x)), y),
    "two tapes": of_gradients,
}


def steps(name, loss_of, sizes=(20, 20, 3), *, watches=False, persistent=False):
    trained, found, start = V.renew(), [], 0
    tf.random.set_seed(1)
    COUNT.update(shared=0, steps=0)
    for size in sizes * 3:
        x, y = tf.constant(X[start : start + size]), tf.constant(Y[start : start + size])
        start = (start + size) % sum(sizes)
        with tf.GradientTape(persistent=persistent) as tape:
            unwatched = x * x  # of which the tape knows no way back
            if watches:
                tape.watch(x)
            loss = loss_of(x, y, tape)
            if watches:
                loss += tf.reduce_mean(unwatched * x)
        gradients = tape.gradient(loss, {"inputs": [x], "of": trained} if watches else trained)
        if watches:
            found.append(float(tf.reduce_sum(gradients["inputs"][0] ** 3)))
            gradients = gradients["of"]
        if persistent:
            gradients[2] += tape.gradient(loss, V.bias)
        for variable, gradient in zip(trained, gradients):
            if gradient is not None:
                variable.assign_sub(0.01 * tf.convert_to_tensor(gradient))
        found += [float(tf.reduce_sum(one)) for one in (loss if isinstance(loss, list) else [loss])]
        found += [float(gradient is None) for gradient in gradients]
        COUNT["steps"] += 1
    results[name] = np.concatenate([found, *(np.ravel(variable) for variable in trained)])
    results[f"{name}: shared"] = np.array([COUNT["shared"], COUNT["steps"]])


def main(folder):
    if "matex_tf" in sys.modules:
        from matex_tf.loops.recorded import backward

        run = backward._run_plan

        def counted(*args):
            COUNT["shared"] += 1
            return run(*args)

        backward._run_plan = counted
    for name, loss_of in CASES.items():
        steps(name, loss_of)
    steps("few rows", CASES["mean"], (2, 2))
    steps("of inputs", CASES["mean"], watches=True)
    steps("persistent", CASES["mean"], persistent=True)
    rank = sys.modules["matex_tf"].rank() if "matex_tf" in sys.modules else 0
    np.savez(os.path.join(folder, f"rank-{rank}.npz"), **results)


if __name__ == "__main__":
    main(sys.argv[1])
