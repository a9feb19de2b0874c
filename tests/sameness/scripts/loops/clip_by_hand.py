"""Clipping between tape.gradient and apply_gradients: global norm, norm and value."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x, y = rng.randn(80, 6) * 3, rng.randn(80, 2) * 5
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
norms, models = [], []
for way in ("global", "norm", "value"):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1)
    for epoch in range(2):
        for a, b in dataset:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.mean_squared_error(b, model(a, training=True)))
            grads = tape.gradient(loss, model.trainable_variables)
            if way == "global":
                grads, norm = tf.clip_by_global_norm(grads, 1.0)
                norms.append(float(norm))
            elif way == "norm":
                grads = [tf.clip_by_norm(g, 0.5) for g in grads]
            else:
                grads = [tf.clip_by_value(g, -0.1, 0.1) for g in grads]
            optimizer.apply_gradients(zip(grads, model.trainable_variables))
    models.append(model)
    print(way, "loss", float(loss))
