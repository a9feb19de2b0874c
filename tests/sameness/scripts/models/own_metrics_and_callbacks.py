"""A metric, a loss and callbacks of one's own; early stopping that restores the best weights."""

import keras
import numpy as np
import tensorflow as tf


class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="categorical_true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_weight(shape=(), initializer="zeros", name="ctp")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = tf.reshape(tf.argmax(y_pred, axis=1), (-1, 1))
        values = tf.cast(tf.reshape(y_true, (-1, 1)), "int32") == tf.cast(y_pred, "int32")
        values = tf.cast(values, self.dtype)
        self.true_positives.assign_add(tf.reduce_sum(values))

    def result(self):
        return 1.0 * self.true_positives

    def reset_state(self):
        self.true_positives.assign(0)


class LossHistory(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.epochs = []
        print("Starting training; got log keys:", sorted(logs or {}))

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            self.model.optimizer.learning_rate = 0.001

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(logs["loss"])
        print("The average loss for epoch {} is {:7.5f}.".format(epoch, logs["loss"]))
        if logs["loss"] < 0.01:
            self.model.stop_training = True


class HuberLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        probabilities = tf.one_hot(tf.cast(tf.reshape(y_true, (-1,)), "int32"), 3, dtype=y_pred.dtype)
        return tf.reduce_mean(tf.square(probabilities - y_pred), axis=-1)


rng = np.random.RandomState(0)
x, y = rng.rand(120, 5), rng.randint(0, 3, 120)
model = keras.Sequential(
    [keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3, activation="softmax")]
)
model.compile(optimizer=keras.optimizers.Adam(0.05), loss=HuberLoss(), metrics=[CategoricalTruePositives()])
recorder = LossHistory()
history = model.fit(
    x,
    y,
    epochs=6,
    batch_size=25,
    verbose=0,
    callbacks=[
        recorder,
        keras.callbacks.EarlyStopping(monitor="loss", patience=2, min_delta=0.004, restore_best_weights=True),
        keras.callbacks.LambdaCallback(on_train_end=lambda logs: print("done")),
        keras.callbacks.TerminateOnNaN(),
    ],
)
print("epochs", len(history.history["loss"]))
