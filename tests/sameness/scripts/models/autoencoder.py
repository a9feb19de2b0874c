"""A subclassed denoising autoencoder."""

import numpy as np
from tensorflow.keras import layers, losses
from tensorflow.keras.models import Model, Sequential

x_train = np.random.RandomState(0).rand(84, 8, 8).astype("float32")
noisy = np.clip(x_train + 0.2 * np.random.RandomState(1).randn(84, 8, 8), 0.0, 1.0)


class Autoencoder(Model):
    def __init__(self, latent_dim, shape):
        super().__init__()
        self.latent_dim = latent_dim
        self.shape = shape
        self.encoder = Sequential([layers.Flatten(), layers.Dense(latent_dim, activation="tanh")])
        self.decoder = Sequential([layers.Dense(int(np.prod(shape)), activation="sigmoid"), layers.Reshape(shape)])

    def call(self, x):
        return self.decoder(self.encoder(x))


autoencoder = Autoencoder(6, x_train.shape[1:])
autoencoder.compile(optimizer="adam", loss=losses.MeanSquaredError())
history = autoencoder.fit(noisy, x_train, epochs=3, shuffle=True, validation_data=(noisy[:20], x_train[:20]), verbose=2)
decoded = autoencoder.decoder(autoencoder.encoder(noisy[:4])).numpy()
print(decoded.shape)
