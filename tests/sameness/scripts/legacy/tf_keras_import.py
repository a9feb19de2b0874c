"""tf_keras by name, subclassed layers and a loop of one's own with metrics."""

import numpy as np
import tensorflow as tf
import tf_keras as keras


class Linear(keras.layers.Layer):
    def __init__(self, units=4):
        super().__init__()
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(shape=(input_shape[-1], self.units), initializer="random_normal", trainable=True)
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", trainable=True)

    def call(self, inputs):
        self.add_loss(1e-2 * tf.reduce_mean(tf.square(inputs)))
        return tf.matmul(inputs, self.w) + self.b


model = keras.Sequential([Linear(6), keras.layers.LSTM(4) if False else keras.layers.Activation("tanh"), Linear(3)])
optimizer = keras.optimizers.Adam(0.01)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()
rng = np.random.RandomState(0)
x, y = rng.rand(80, 5).astype("float32"), rng.randint(0, 3, 80)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(80, seed=1).batch(16)


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        logits = model(a, training=True)
        loss = loss_fn(b, logits) + sum(model.losses)
    grads = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    accuracy.update_state(b, logits)
    return loss


for epoch in range(2):
    for a, b in dataset:
        loss = train_step(a, b)
    print(f"epoch {epoch} loss {float(loss):.5f} accuracy {float(accuracy.result()):.5f}")
    accuracy.reset_states()

model.compile(optimizer="rmsprop", loss=loss_fn, metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=2, validation_split=0.2, verbose=2)
