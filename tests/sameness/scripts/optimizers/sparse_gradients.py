"""Embeddings in a loop of one's own: gradients that are IndexedSlices, with words that repeat."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
vocabulary, width = 300, 4
centers = rng.randint(0, 40, 120)
contexts = rng.randint(0, 40, (120, 3))
labels = (rng.rand(120, 3) < 0.3).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(((centers, contexts), labels)).batch(32)


class Word2Vec(keras.Model):
    def __init__(self):
        super().__init__()
        self.target_embedding = keras.layers.Embedding(vocabulary, width, name="w2v_embedding")
        self.context_embedding = keras.layers.Embedding(vocabulary, width)

    def call(self, pair):
        target, context = pair
        return tf.einsum("be,bce->bc", self.target_embedding(target), self.context_embedding(context))


models = []
for optimizer in (keras.optimizers.Adam(0.05), keras.optimizers.SGD(0.5), keras.optimizers.Adagrad(0.1)):
    model = Word2Vec()
    for epoch in range(2):
        for pair, label in dataset:
            with tf.GradientTape() as tape:
                logits = model(pair)
                label = tf.cast(label, logits.dtype)
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    print(type(gradients[0]).__name__ in ("IndexedSlices", "EagerTensor"), "loss %.6f" % float(loss))
    models.append(model)
