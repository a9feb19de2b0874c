"""The GAN of many a repository: batches of NumPy arrays, a frozen critic within a combined model, train_on_batch."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import BatchNormalization, Dense, Input, LeakyReLU
from tensorflow.keras.models import Model, Sequential
from tensorflow.keras.optimizers import SGD

rng = np.random.RandomState(0)
X_train = rng.rand(120, 6)
latent_dim, batch_size = 4, 20

discriminator = Sequential([Input((6,)), Dense(8), LeakyReLU(0.2), Dense(1, activation="sigmoid")])
discriminator.compile(loss="binary_crossentropy", optimizer=SGD(0.05, momentum=0.5), metrics=["accuracy"])
generator = Sequential([Input((latent_dim,)), Dense(8), BatchNormalization(momentum=0.8), Dense(6, activation="tanh")])
z = Input((latent_dim,))
discriminator.trainable = False
combined = Model(z, discriminator(generator(z)))
combined.compile(loss="binary_crossentropy", optimizer=SGD(0.05, momentum=0.5))

valid, fake = np.ones((batch_size, 1)), np.zeros((batch_size, 1))
losses = []
for epoch in range(4):
    noise = rng.normal(0, 1, (batch_size, latent_dim))
    made = generator.predict(noise, verbose=0)
    d_loss_real = discriminator.train_on_batch(X_train[rng.randint(0, 120, batch_size)], valid)
    d_loss_fake = discriminator.train_on_batch(made, fake)
    d_loss = 0.5 * np.add(d_loss_real, d_loss_fake)
    g_loss = combined.train_on_batch(rng.normal(0, 1, (batch_size, latent_dim)), valid)
    print("%d [D loss: %f, acc.: %.2f%%] [G loss: %f]" % (epoch, d_loss[0], 100 * d_loss[1], g_loss))
    losses += [float(d_loss[0]), float(d_loss[1]), float(g_loss)]

# The same of batches that a dataset gives.
regressor = Sequential([Input((6,)), Dense(8, activation="tanh"), Dense(1)])
regressor.compile(loss="mse", optimizer=SGD(0.1))
dataset = tf.data.Dataset.from_tensor_slices((X_train, X_train.sum(1, keepdims=True))).batch(32)
for x, y in dataset:
    losses.append(float(regressor.train_on_batch(x, y)))
print("regressor %.5f" % losses[-1])
