"""Fuel efficiency: Normalization.adapt on arrays and a regression."""

import keras
import numpy as np

np.set_printoptions(precision=3, suppress=True)
rng = np.random.RandomState(0)
train_features = rng.normal([4, 200, 100], [1, 50, 20], size=(180, 3))
train_labels = 40 - 0.05 * train_features[:, 1] + rng.normal(size=180)

normalizer = keras.layers.Normalization(axis=-1)
normalizer.adapt(np.array(train_features))
print(np.array(normalizer.mean))

linear_model = keras.Sequential([normalizer, keras.layers.Dense(units=1)])
linear_model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.1), loss="mean_absolute_error")
history = linear_model.fit(train_features, train_labels, epochs=3, verbose=0, validation_split=0.2)
print("val_loss", history.history["val_loss"][-1])
