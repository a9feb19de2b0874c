"""Sparse rows, as from a bag of words."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(2)
dense = rng.rand(120, 40) * (rng.rand(120, 40) < 0.1)
labels = rng.randint(0, 3, 120)
sparse = tf.sparse.from_dense(dense)
dataset = tf.data.Dataset.from_tensor_slices((sparse, labels)).batch(25)

inputs = keras.Input((40,), sparse=True)
x = keras.layers.Dense(8, activation="tanh")(inputs)
model = keras.Model(inputs, keras.layers.Dense(3)(x))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(dataset, epochs=2, verbose=2)

weights = tf.Variable(tf.zeros([40, 3], tf.float64))
for features, label in dataset.repeat(2):
    with tf.GradientTape() as tape:
        logits = tf.sparse.sparse_dense_matmul(features, weights)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
    weights.assign_sub(0.5 * tape.gradient(loss, weights))
print("last loss", float(loss))
