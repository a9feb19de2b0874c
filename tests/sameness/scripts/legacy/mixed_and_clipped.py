"""Keras 2: clipping, legacy optimizers, LossScaleOptimizer with get_scaled_loss, class weights."""

import numpy as np
import tensorflow as tf

keras = tf.keras
x = np.random.RandomState(0).rand(96, 6).astype("float32")
y = np.random.RandomState(1).randint(0, 2, 96)


def build():
    return keras.Sequential(
        [keras.layers.Dense(8, activation="tanh", input_shape=(6,)), keras.layers.Dense(1, dtype="float32")]
    )


models = []
for optimizer in (
    keras.optimizers.SGD(0.1, clipnorm=0.1),
    keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    keras.optimizers.legacy.Adam(0.01, clipvalue=0.01),
    keras.optimizers.legacy.RMSprop(0.01),
):
    model = build()
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, class_weight={0: 1.0, 1: 3.0})
    print(type(optimizer).__name__, "%.5f" % history.history["loss"][-1])
    models.append(model)

keras.mixed_precision.set_global_policy("mixed_float16")
scaled = build()
optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
bce = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        loss = bce(b[:, None], scaled(a, training=True))
        scaled_loss = optimizer.get_scaled_loss(loss)
    gradients = tape.gradient(scaled_loss, scaled.trainable_variables)
    gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(zip(gradients, scaled.trainable_variables))
    return loss


for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat(2):
    loss = train_step(a, b)
keras.mixed_precision.set_global_policy("float32")
print("loss %.1f" % float(loss))
