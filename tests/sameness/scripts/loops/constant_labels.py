"""A conditional GAN with a gradient penalty, in eager code that names its batch's size wherever it can."""

import numpy as np
import tensorflow as tf

tf.keras.backend.set_floatx("float64")
BATCH_SIZE, noise_dim = 32, 4
rng = np.random.RandomState(0)
images, labels = rng.rand(160, 6), rng.randint(0, 3, 160)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(160, seed=2).batch(BATCH_SIZE)


def network(inputs, outputs):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((inputs,)),
            tf.keras.layers.Dense(8, activation="tanh"),
            tf.keras.layers.Dense(outputs),
        ]
    )


generator, critic = network(noise_dim + 3, 6), network(6 + 3, 1)
generator_optimizer, critic_optimizer = tf.keras.optimizers.Adam(1e-3), tf.keras.optimizers.Adam(1e-3)
cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)
real, fake = tf.ones((BATCH_SIZE, 1)), tf.zeros((BATCH_SIZE, 1))


def noise():
    return tf.constant(rng.randn(BATCH_SIZE, noise_dim))


def penalty(true, made, kinds):
    mixed = true + tf.constant(rng.rand(BATCH_SIZE, 1)) * (made - true)
    with tf.GradientTape() as tape:
        tape.watch(mixed)
        scores = critic(tf.concat([mixed, kinds], 1))
    slopes = tf.sqrt(tf.reduce_sum(tf.square(tape.gradient(scores, mixed)), axis=1))
    return tf.reduce_mean((slopes - 1.0) ** 2)


losses = []
for epoch in range(2):
    for true, kind in dataset:
        kinds = tf.one_hot(kind, 3, dtype=tf.float64)
        with tf.GradientTape() as tape:
            made = generator(tf.concat([noise(), kinds], axis=1))
            both = tf.concat([tf.concat([true, kinds], 1), tf.concat([made, kinds], 1)], axis=0)
            critic_loss = cross_entropy(tf.concat([real, fake], axis=0), critic(both))
            critic_loss += 10.0 * penalty(true, made, kinds)
        gradients = tape.gradient(critic_loss, critic.trainable_variables)
        critic_optimizer.apply_gradients(zip(gradients, critic.trainable_variables))
        with tf.GradientTape() as tape:
            made = generator(tf.concat([noise(), kinds], axis=1))
            scores = critic(tf.concat([made, kinds], 1))
            found = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(real, scores.dtype), logits=scores)
            generator_loss = tf.reduce_mean(found)
        gradients = tape.gradient(generator_loss, generator.trainable_variables)
        generator_optimizer.apply_gradients(zip(gradients, generator.trainable_variables))
        losses += [float(critic_loss), float(generator_loss)]
    print("epoch %d: critic %.4f generator %.4f" % (epoch, critic_loss, generator_loss))
