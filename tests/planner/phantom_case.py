"""The same model in five styles of script, which know nothing of ranks: 32 rows a batch, a kernel and a bias; and one
of words, whose embedding has a sparse gradient.
"""

import sys

import numpy as np
import tensorflow as tf

KIND, FOLDER = sys.argv[1], sys.argv[2]
x = np.random.default_rng(0).normal(size=(320, 4)).astype(np.float32)
y = (x @ np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)) + 1


def model():
    made = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    made.compile(optimizer=tf.keras.optimizers.SGD(0.01, 0.5), loss="mse")
    return made


def batches():
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(32)


def fit():
    model().fit(x, y, batch_size=32, epochs=20, verbose=0)


def sparse():
    words, embedding = np.arange(1280).reshape(320, 4) % 50, tf.keras.layers.Embedding(50, 6)
    made = tf.keras.Sequential([tf.keras.Input((4,)), embedding, tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")
    made.fit(words, y, batch_size=32, epochs=20, verbose=0)


def reader():
    from matex_tf.readers import DataSet

    np.savetxt(f"{FOLDER}/rows.csv", np.hstack([x, y]), delimiter=",", header="a,b,c,d,label", comments="")
    data = DataSet(f"{FOLDER}/rows.csv", labels="label")
    model().fit(data.training_data, data.training_labels, batch_size=32, epochs=20, verbose=0)


def loop(wrap):
    kernel, bias = tf.Variable(tf.zeros((4, 1))), tf.Variable(tf.zeros((1,)))
    layer = model()
    optimizer = tf.keras.optimizers.SGD(0.01, 0.5)

    @wrap
    def step(rows, labels):
        with tf.GradientTape() as tape:
            out = layer(rows) if wrap is not tf.function else rows @ kernel + bias
            loss = tf.reduce_mean((out - labels) ** 2)
        variables = layer.trainable_variables if wrap is not tf.function else [kernel, bias]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    for _ in range(20):
        for rows, labels in batches():
            step(rows, labels)


def session():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as running:
        rows, labels = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.float32, [None, 1])
        kernel, bias = v1.get_variable("kernel", [4, 1]), v1.get_variable("bias", [1])
        loss = tf.reduce_mean((rows @ kernel + bias - labels) ** 2)
        train = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
        running.run(v1.global_variables_initializer())
        for i in range(200):
            at = i % 10 * 32
            running.run([train, loss], {rows: x[at : at + 32], labels: y[at : at + 32]})


{"fit": fit, "sparse": sparse, "reader": reader, "session": session, "function": lambda: loop(tf.function),
 "eager": lambda: loop(lambda step: step)}[KIND]()  # fmt: skip
print("the script went on to its end")
