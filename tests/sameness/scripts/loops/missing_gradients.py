"""Variables without a gradient: a branch that is not used, and one that is used only in some steps."""

import keras
import numpy as np
import tensorflow as tf

x = np.random.RandomState(3).rand(64, 6).astype(keras.backend.floatx())
dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(16)
trunk = keras.layers.Dense(8, activation="tanh")
left, right, unused = keras.layers.Dense(2), keras.layers.Dense(2), keras.layers.Dense(2)
trunk.build((None, 6))
for layer in (left, right, unused):
    layer.build((None, 8))
variables = [v for layer in (trunk, left, right, unused) for v in layer.trainable_variables]
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(variables)

for epoch in range(2):
    for step, (a, b) in enumerate(dataset):
        with tf.GradientTape() as tape:
            head = left if step % 2 == 0 else right
            loss = tf.reduce_mean(tf.square(head(trunk(a)) - b))
        grads = tape.gradient(loss, variables)
        pairs = [(g, v) for g, v in zip(grads, variables) if g is not None]
        optimizer.apply_gradients(pairs)
    print(f"epoch {epoch} loss {float(loss):.6f} without a gradient: {sum(g is None for g in grads)}")

inputs = keras.Input((6,))
hidden = keras.layers.Dense(4, activation="tanh")(inputs)
main = keras.layers.Dense(2, name="main")(hidden)
aside = keras.layers.Dense(2, name="aside")(hidden)
model = keras.Model(inputs, [main, aside])
model.compile("sgd", loss=["mse", None])
history = model.fit(x, [x[:, :2], x[:, :2]], epochs=2, batch_size=16, verbose=0)
print(history.history["loss"])
final = [v.numpy() for v in variables]
