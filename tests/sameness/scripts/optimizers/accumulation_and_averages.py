"""gradient_accumulation_steps, and exponential moving averages of the weights."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x, y = rng.rand(96, 5), rng.rand(96, 1)


def build():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])


accumulating = build()
accumulating.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=3, global_clipnorm=1.0), "mse")
first = accumulating.fit(x, y, batch_size=16, epochs=2, verbose=2)

# Loss scaling around it: whether a batch is skipped is asked before it is accumulated.
scaled = build()
inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
scaled.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0), "mse")
third = scaled.fit(x, y, batch_size=16, epochs=2, verbose=2)

averaging = build()
averaging.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=None), "mse")
second = averaging.fit(x, y, batch_size=16, epochs=2, verbose=2, callbacks=[keras.callbacks.SwapEMAWeights()])

# Accumulating by hand: gradients of two batches are summed up before an update.
by_hand, optimizer = build(), keras.optimizers.SGD(0.1)
totals = [tf.Variable(tf.zeros_like(v), trainable=False) for v in by_hand.trainable_variables]
for step, (a, b) in enumerate(tf.data.Dataset.from_tensor_slices((x, y)).batch(16)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(by_hand(a) - tf.cast(b, by_hand.compute_dtype)))
    for total, gradient in zip(totals, tape.gradient(loss, by_hand.trainable_variables)):
        total.assign_add(gradient / 2)
    if step % 2 == 1:
        optimizer.apply_gradients(zip(totals, by_hand.trainable_variables))
        for total in totals:
            total.assign(tf.zeros_like(total))
        print("step", step, "loss %.5f" % float(loss))
