"""tf.function steps of one's own in which the rows of a batch meet: contrastive, batch-hard, decorrelated, averaged."""

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train, y_train = rng.randn(90, 6), rng.randint(0, 3, 90)
dataset = tf.data.Dataset.from_tensor_slices((x_train, x_train + 0.1 * rng.randn(90, 6), y_train)).batch(30)


def contrastive(model, a, b, y):
    a, b = tf.math.l2_normalize(model(a), 1), tf.math.l2_normalize(model(b), 1)
    logits = tf.matmul(a, b, transpose_b=True) / 0.2
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(a)[0]), logits))


def batch_hard(model, a, b, y):
    a = tf.math.l2_normalize(model(a), 1)
    distances = 2 - 2 * tf.matmul(a, a, transpose_b=True)
    same = tf.cast(y[:, None] == y[None], distances.dtype)
    return tf.reduce_mean(tf.nn.softplus(tf.reduce_max(distances * same, 1) - tf.reduce_min(distances + 9 * same, 1)))


def decorrelated(model, a, b, y):
    a, b = [(z - tf.reduce_mean(z, 0)) / (tf.math.reduce_std(z, 0) + 1e-3) for z in (model(a), model(b))]
    c = tf.matmul(a, b, transpose_a=True) / tf.cast(tf.shape(a)[0], a.dtype)
    return tf.reduce_sum((c - tf.eye(4, dtype=c.dtype)) ** 2)


class Trainer:
    def __init__(self, loss):
        self.loss = loss
        self.model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(4)])
        self.optimizer = tf.keras.optimizers.SGD(0.05)

    @tf.function
    def step(self, a, b, y):
        with tf.GradientTape() as tape:
            loss = self.loss(self.model, a, b, y)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss


losses, models = [], []
for loss in (contrastive, batch_hard, decorrelated):
    trainer = Trainer(loss)
    models.append(trainer.model)
    for epoch in range(2):
        # Made anew in each epoch, as where the length of an epoch is its own.
        for batch in dataset.take(3):
            losses.append(float(trainer.step(*batch)))
    print("%s %.6f" % (loss.__name__, losses[-1]))
