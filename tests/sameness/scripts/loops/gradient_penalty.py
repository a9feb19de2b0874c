"""WGAN with a gradient penalty: gradients with respect to inputs inside a tape, several critic steps."""

import keras
import numpy as np
import tensorflow as tf

critic = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(5)])


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim, discriminator_extra_steps=2, gp_weight=10.0):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_steps = discriminator_extra_steps
        self.gp_weight = gp_weight

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer

    def gradient_penalty(self, batch_size, real, fake):
        alpha = tf.random.uniform([batch_size, 1], 0.0, 1.0, dtype=real.dtype)
        interpolated = real + alpha * (fake - real)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=1))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real):
        if isinstance(real, tuple):
            real = real[0]
        batch_size = tf.shape(real)[0]
        for _ in range(self.d_steps):
            noise = tf.random.normal(shape=(batch_size, self.latent_dim), dtype=real.dtype)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                fake_logits = self.discriminator(fake, training=True)
                real_logits = self.discriminator(real, training=True)
                d_cost = tf.reduce_mean(fake_logits) - tf.reduce_mean(real_logits)
                gp = self.gradient_penalty(batch_size, real, fake)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(zip(d_gradient, self.discriminator.trainable_variables))
        noise = tf.random.normal(shape=(batch_size, self.latent_dim), dtype=real.dtype)
        with tf.GradientTape() as tape:
            g_loss = -tf.reduce_mean(self.discriminator(self.generator(noise, training=True), training=True))
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gen_gradient, self.generator.trainable_variables))
        return {"d_loss": d_loss, "g_loss": g_loss}


wgan = WGAN(critic, generator, latent_dim=3)
wgan.compile(keras.optimizers.Adam(2e-4, beta_1=0.5, beta_2=0.9), keras.optimizers.Adam(2e-4, beta_1=0.5, beta_2=0.9))
history = wgan.fit(np.random.RandomState(0).randn(90, 5), batch_size=30, epochs=2, verbose=0)
print(sorted(history.history))
