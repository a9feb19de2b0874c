"""Text classification with TextVectorization and a bidirectional LSTM."""

import re
import string

import keras
import numpy as np
import tensorflow as tf
from keras import layers

words = "film plot great awful boring actor scene love hate fine music story bad good".split()
rng = np.random.RandomState(1)
texts = [" ".join(rng.choice(words, size=rng.randint(4, 14))) + ".<br />" for _ in range(110)]
labels = np.array([("good" in text) or ("great" in text) for text in texts], dtype="int32")
raw_train_ds = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(16)

for text_batch, label_batch in raw_train_ds.take(1):
    for i in range(2):
        print(text_batch.numpy()[i], label_batch.numpy()[i])


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, f"[{re.escape(string.punctuation)}]", "")


vectorize_layer = keras.layers.TextVectorization(
    standardize=custom_standardization, max_tokens=30, output_mode="int", output_sequence_length=12
)
vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))
print("Vocabulary size: {}".format(len(vectorize_layer.get_vocabulary())))
train_ds = raw_train_ds.map(lambda x, y: (vectorize_layer(tf.expand_dims(x, -1)), y)).cache().prefetch(10)

model = keras.Sequential(
    [
        layers.Embedding(30, 8, mask_zero=True),
        layers.Bidirectional(layers.LSTM(4)),
        layers.Dense(8, activation="tanh"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(train_ds, epochs=2, verbose=2)
