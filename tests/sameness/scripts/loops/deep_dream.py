"""Optimising an image instead of weights, as in DeepDream and neural style transfer."""

import keras
import numpy as np
import tensorflow as tf

base = keras.Sequential(
    [keras.Input((12, 12, 3)), keras.layers.Conv2D(4, 3, activation="tanh", name="mixed3"), keras.layers.Conv2D(2, 3)]
)
dream = keras.Model(base.inputs, base.get_layer("mixed3").output)
image = tf.constant(np.random.RandomState(0).rand(12, 12, 3))


def calc_loss(img, model):
    layer_activations = model(tf.expand_dims(img, axis=0))
    return tf.reduce_sum([tf.math.reduce_mean(layer_activations)])


@tf.function
def climb(img, steps, step_size):
    loss = tf.constant(0.0, img.dtype)
    for _ in tf.range(steps):
        with tf.GradientTape() as tape:
            tape.watch(img)
            loss = tf.cast(calc_loss(img, dream), img.dtype)
        gradients = tape.gradient(loss, img)
        gradients /= tf.math.reduce_std(gradients) + 1e-8
        img = tf.clip_by_value(img + gradients * step_size, -1, 1)
    return loss, img


loss, image = climb(image, tf.constant(5), tf.constant(0.01, tf.float64))
print("dream loss {:.5f}".format(float(loss)))

content = dream(tf.expand_dims(image, 0))
combination = tf.Variable(tf.expand_dims(image, 0) * 0.5)
optimizer = keras.optimizers.Adam(0.02)
for step in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.cast(dream(combination) - content, combination.dtype)))
    optimizer.apply_gradients([(tape.gradient(loss, combination), combination)])
print("style loss {:.5f}".format(float(loss)))
