"""Learning-rate schedules, built in and of one's own, and by callbacks."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x, y = rng.rand(100, 4), rng.rand(100, 1)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d_model, warmup_steps=10):
        super().__init__()
        self.d_model = tf.cast(d_model, tf.float32)
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = tf.cast(step, dtype=tf.float32)
        return tf.math.rsqrt(self.d_model) * tf.math.minimum(tf.math.rsqrt(step + 1), step * (self.warmup_steps**-1.5))


def scheduler(epoch, lr):
    return lr if epoch < 1 else float(lr * np.exp(-0.1))


models = []
for rate in (
    keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=5, decay_rate=0.5),
    keras.optimizers.schedules.CosineDecay(0.1, 12, warmup_target=0.2, warmup_steps=2),
    keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01]),
    WarmUp(8),
    0.1,
):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    callbacks = []
    if rate == 0.1:
        callbacks = [
            keras.callbacks.LearningRateScheduler(scheduler),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.2, patience=1, min_delta=1.0, verbose=1),
        ]
    history = model.fit(x, y, batch_size=32, epochs=3, verbose=0, callbacks=callbacks)
    print(round(float(model.optimizer.learning_rate), 6), "loss %.6f" % history.history["loss"][-1])
    models.append(model)
