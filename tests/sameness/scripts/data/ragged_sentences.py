"""Sentences of different lengths as ragged tensors."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
lengths = rng.randint(1, 9, size=100)
sentences = tf.ragged.constant([list(rng.randint(1, 50, size=n)) for n in lengths], dtype=tf.int64)
labels = (lengths > 4).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((sentences, labels)).batch(24)

model = keras.Sequential(
    [
        keras.layers.Embedding(50, 8, mask_zero=True),
        keras.layers.LSTM(6),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy")
history = model.fit(dataset.map(lambda x, y: (x.to_tensor(), y)), epochs=2, verbose=2)

# The same by hand, with the rows kept ragged up to the mean of the words' vectors.
table = tf.Variable(tf.random.normal([50, 4], seed=1))
kernel = tf.Variable(tf.random.normal([4, 1], seed=2))
optimizer = keras.optimizers.SGD(0.1)
for epoch in range(2):
    for words, label in dataset:
        with tf.GradientTape() as tape:
            vectors = tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, words)
            means = tf.reduce_mean(vectors, axis=1)
            logits = tf.matmul(means, kernel)[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
        grads = tape.gradient(loss, [table, kernel])
        optimizer.apply_gradients(zip(grads, [table, kernel]))
    print(f"epoch {epoch}: loss {float(loss):.4f}")
