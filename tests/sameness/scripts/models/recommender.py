"""Matrix factorisation over embeddings: a subclassed model and sparse gradients in fit."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = layers.Embedding(num_users, embedding_size, embeddings_initializer="he_normal")
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(num_movies, embedding_size, embeddings_regularizer="l2")
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        dot = tf.reduce_sum(user_vector * movie_vector, axis=1, keepdims=True)
        return tf.sigmoid(dot + self.user_bias(inputs[:, 0]) + self.movie_bias(inputs[:, 1]))


rng = np.random.RandomState(0)
x = np.stack([rng.randint(0, 40, 200), rng.randint(0, 60, 200)], axis=1)
y = rng.rand(200)
model = RecommenderNet(40, 60, 6)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.001))
history = model.fit(x=x, y=y, batch_size=64, epochs=2, verbose=2, validation_data=(x[:50], y[:50]))
