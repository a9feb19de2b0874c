"""make_csv_dataset from a file, packed into one tensor; as_numpy_iterator in a loop."""

import os

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
path = os.path.join(os.getcwd(), "table.csv")
if not os.path.exists(path):
    with open(path, "w") as file:
        file.write("a,b,c,label\n")
        for a, b, c in rng.rand(96, 3):
            file.write(f"{a:.4f},{b:.4f},{c:.4f},{int(a + b > c)}\n")


def pack(features, label):
    return tf.stack([tf.cast(value, tf.float32) for value in features.values()], axis=-1), label


table = tf.data.experimental.make_csv_dataset(path, batch_size=24, label_name="label", num_epochs=1, shuffle_seed=5)
packed = table.map(pack).cache()
for features, label in table.take(1):
    print(list(features.keys()), label.shape)
model = tf.keras.Sequential(
    [tf.keras.Input((3,)), tf.keras.layers.Dense(6, activation="tanh"), tf.keras.layers.Dense(1, activation="sigmoid")]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(packed, epochs=2, verbose=2)

optimizer = tf.keras.optimizers.SGD(0.1)
losses = []
for x, y in packed.as_numpy_iterator():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(y[:, None], model(x)))
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights))
    losses.append(float(loss))
print("last loss %.6f" % losses[-1])
