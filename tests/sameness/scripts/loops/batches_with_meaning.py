"""Steps that cannot do with a part of a batch: anchors and positives by number, a constant batch size, two datasets."""

import random

import keras
import numpy as np
import tensorflow as tf
from keras import layers

data = np.random.RandomState(0).rand(60, 6)
CLASSES = 5
BATCH_SIZE = 8


class AnchorPositivePairs(keras.utils.Sequence):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = np.empty((2, CLASSES, 6))
        for label in range(CLASSES):
            x[0, label] = data[random.randrange(12) * 5 + label]
            x[1, label] = data[random.randrange(12) * 5 + label]
        return x


similarity_loss = keras.metrics.Mean(name="loss")


class EmbeddingModel(keras.Model):
    def train_step(self, batch):
        if isinstance(batch, tuple):
            batch = batch[0]
        anchors, positives = batch[0], batch[1]
        with tf.GradientTape() as tape:
            similarities = tf.einsum("ae,pe->ap", self(anchors, training=True), self(positives, training=True))
            labels = tf.range(CLASSES)
            loss = self.compute_loss(y=labels, y_pred=similarities / 0.2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        similarity_loss.update_state(loss)
        return {"loss": similarity_loss.result()}

    @property
    def metrics(self):
        return [similarity_loss]


inputs = layers.Input((6,))
embedding = EmbeddingModel(inputs, layers.UnitNormalization()(layers.Dense(4)(inputs)))
embedding.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
pairs = embedding.fit(AnchorPositivePairs(), epochs=2, verbose=2)


class Denoiser(keras.Model):
    def __init__(self):
        super().__init__()
        self.network = keras.Sequential([layers.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(6)])
        self.tracker = keras.metrics.Mean(name="noise")

    @property
    def metrics(self):
        return [self.tracker]

    def loss_of(self, rows):
        noise = tf.reshape(tf.sin(tf.cast(tf.range(BATCH_SIZE * 6), rows.dtype)), (BATCH_SIZE, 6))
        return tf.reduce_mean(tf.square(self.network(rows + noise) - noise))

    def train_step(self, rows):
        with tf.GradientTape() as tape:
            loss = self.loss_of(rows)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"noise": self.tracker.result()}

    def test_step(self, rows):
        self.tracker.update_state(self.loss_of(rows))
        return {"noise": self.tracker.result()}


rows = tf.data.Dataset.from_tensor_slices(data).shuffle(60, seed=1).batch(BATCH_SIZE, drop_remainder=True)
denoiser = Denoiser()
denoiser.compile(keras.optimizers.AdamW(1e-2))
noises = denoiser.fit(rows, validation_data=rows.take(3), epochs=2, verbose=2)


class Mixer(layers.Layer):
    def call(self, rows):
        together = tf.reshape(rows, (BATCH_SIZE * 2, 3))
        return tf.reshape(tf.tanh(together) * tf.reduce_mean(together), (-1, 6))


inputs = layers.Input((6,))
mixing = keras.Model(inputs, layers.Dense(1)(Mixer()(layers.Dense(6)(inputs))))
mixing.compile("sgd", "mse")
mixed = mixing.fit(data[:56], data[:56, :1], batch_size=BATCH_SIZE, epochs=2, verbose=2)


for start in range(0, 56, BATCH_SIZE):
    value = mixing.train_on_batch(data[start : start + BATCH_SIZE], data[start : start + BATCH_SIZE, :1])
print("last batch:", round(float(np.ravel(value)[0]), 6))


class Both(keras.Model):
    def train_step(self, batch):
        unlabeled, (labeled, labels) = batch
        with tf.GradientTape() as tape:
            features = self(tf.concat((unlabeled, labeled), 0))
            loss = tf.reduce_mean(tf.square(features)) + tf.reduce_mean(tf.square(self(labeled) - labels))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"total": loss}


inputs = layers.Input((6,))
both = Both(inputs, layers.Dense(1)(inputs))
both.compile("adam")
unlabeled = tf.data.Dataset.from_tensor_slices(data).batch(12)
labeled = tf.data.Dataset.from_tensor_slices((data[:25], data[:25, :1])).batch(5)
zipped = tf.data.Dataset.zip((unlabeled, labeled))
semi = both.fit(zipped, epochs=2, verbose=2)

step = keras.optimizers.SGD(0.1)
losses = []
for many, (few, targets) in zipped:
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(both(tf.concat([many, few], 0)) ** 2) + tf.reduce_mean((both(few) - targets) ** 2)
    step.apply_gradients(zip(tape.gradient(value, both.trainable_variables), both.trainable_variables))
    losses.append(float(value))
print("semi-supervised:", [round(value, 6) for value in losses])
