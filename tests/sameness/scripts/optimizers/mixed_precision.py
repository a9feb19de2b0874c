"""mixed_float16 with loss scaling in fit and in a loop; mixed_bfloat16."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.RandomState(0)
x, y = rng.rand(96, 8).astype("float32"), rng.randint(0, 3, 96)


def build():
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="tanh"),
            layers.Dense(3),
            layers.Activation("softmax", dtype="float32"),
        ]
    )


keras.mixed_precision.set_global_policy("mixed_float16")
model = build()
print(model.layers[0].compute_dtype, model.layers[0].variable_dtype)
model.compile(optimizer=keras.optimizers.RMSprop(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=2, verbose=0)
print("loss %.2f" % history.history["loss"][-1])

looped = build()
optimizer = keras.mixed_precision.LossScaleOptimizer(
    keras.optimizers.SGD(0.1), initial_scale=2.0**30, dynamic_growth_steps=4
)
loss_object = keras.losses.SparseCategoricalCrossentropy()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        loss = loss_object(b, looped(a, training=True))
        scaled_loss = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled_loss, looped.trainable_variables)
    optimizer.apply_gradients(zip(gradients, looped.trainable_variables))
    return loss


for epoch in range(4):
    for a, b in dataset:
        loss = train_step(a, b)
print("loss %.1f" % float(loss), "scaled down:", float(optimizer.dynamic_scale) < 2.0**30)

keras.mixed_precision.set_global_policy("mixed_bfloat16")
brain = build()
brain.compile("adam", "sparse_categorical_crossentropy")
brain_history = brain.fit(x, y, batch_size=32, epochs=2, verbose=0)
print("loss %.1f" % brain_history.history["loss"][-1])
keras.mixed_precision.set_global_policy("float32")
