"""Siamese network with a contrastive loss over pairs, and a triplet loss in a train_step."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
left, right = rng.rand(72, 6), rng.rand(72, 6)
same = rng.randint(0, 2, 72).astype("float32")

inputs = keras.layers.Input((6,))
embedding = keras.Model(inputs, keras.layers.Dense(4, activation="tanh")(inputs))


def euclidean_distance(vects):
    x, y = vects
    sum_square = tf.reduce_sum(tf.square(x - y), axis=1, keepdims=True)
    return tf.sqrt(tf.maximum(sum_square, keras.backend.epsilon()))


input_1, input_2 = keras.layers.Input((6,)), keras.layers.Input((6,))
merge = keras.layers.Lambda(euclidean_distance, output_shape=(1,))([embedding(input_1), embedding(input_2)])
siamese = keras.Model(inputs=[input_1, input_2], outputs=keras.layers.Dense(1, activation="sigmoid")(merge))


def loss(margin=1):
    def contrastive_loss(y_true, y_pred):
        square_pred = tf.square(y_pred)
        margin_square = tf.square(tf.maximum(margin - (y_pred), 0))
        return tf.reduce_mean((1 - y_true) * square_pred + (y_true) * margin_square)

    return contrastive_loss


siamese.compile(loss=loss(margin=1), optimizer="RMSprop", metrics=["accuracy"])
history = siamese.fit([left, right], same[:, None], batch_size=18, epochs=2, verbose=2)


class SiameseModel(keras.Model):
    def __init__(self, embedding, margin=0.5):
        super().__init__()
        self.embedding = embedding
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def _compute_loss(self, data):
        anchor, positive, negative = (self.embedding(part) for part in data)
        ap = tf.reduce_sum(tf.square(anchor - positive), -1)
        an = tf.reduce_sum(tf.square(anchor - negative), -1)
        return tf.maximum(ap - an + self.margin, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.embedding.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.embedding.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


triplets = tf.data.Dataset.zip(tuple(tf.data.Dataset.from_tensor_slices(rng.rand(72, 6)) for _ in range(3))).batch(
    20, drop_remainder=False
)
triplet_model = SiameseModel(embedding)
triplet_model.compile(optimizer=keras.optimizers.Adam(0.001))
triplet_history = triplet_model.fit(triplets, epochs=2, verbose=2)
