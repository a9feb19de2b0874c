"""Losses over what is not padding, averaged by the script itself, as in the tutorials on translation."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
source = rng.randint(1, 20, (70, 8))
for row, length in zip(source, rng.randint(2, 9, 70)):
    row[length:] = 0
dataset = tf.data.Dataset.from_tensor_slices((source, source)).batch(16)


def build():
    return keras.Sequential([keras.Input((8,)), keras.layers.Embedding(20, 6), keras.layers.Dense(20)])


def masked_loss(label, pred):
    mask = label != 0
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    loss = loss_object(label, pred)
    mask = tf.cast(mask, dtype=loss.dtype)
    loss *= mask
    return tf.reduce_sum(loss) / tf.reduce_sum(mask)


def masked_mean(label, pred):
    mask = tf.cast(tf.math.not_equal(label, 0), pred.dtype)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=pred) * mask
    return tf.reduce_mean(loss) / tf.reduce_mean(mask)


compiled = build()
compiled.compile(optimizer=keras.optimizers.Adam(0.01), loss=masked_loss)
history = compiled.fit(dataset, epochs=2, validation_data=dataset, verbose=2)

models = []
for loss_of in (masked_loss, masked_mean):
    for in_graph in (True, False):
        model, optimizer = build(), keras.optimizers.SGD(0.5)

        def step(x, y, model=model, optimizer=optimizer, loss_of=loss_of):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x)) + 1e-3 * tf.nn.l2_loss(model.trainable_variables[1])
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        step = tf.function(step) if in_graph else step
        seen = [float(step(x, y)) for x, y in dataset]
        print(loss_of.__name__, ["%.6f" % value for value in seen])
        models.append(model)
