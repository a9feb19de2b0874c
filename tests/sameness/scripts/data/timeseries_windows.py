"""Weather forecasting with windows of a series and an LSTM."""

import keras
import numpy as np

series = np.sin(np.arange(260) / 7.0) + 0.1 * np.random.RandomState(0).randn(260)
features = np.stack([series, np.cos(np.arange(260) / 7.0)], axis=-1)
dataset_train = keras.utils.timeseries_dataset_from_array(
    features[:-12], series[12:], sequence_length=10, sampling_rate=1, batch_size=48, shuffle=True, seed=3
)
for batch in dataset_train.take(1):
    inputs, targets = batch
print("Input shape:", inputs.numpy().shape)
print("Target shape:", targets.numpy().shape)

inputs = keras.layers.Input(shape=(inputs.shape[1], inputs.shape[2]))
lstm_out = keras.layers.LSTM(8)(inputs)
outputs = keras.layers.Dense(1)(lstm_out)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
history = model.fit(dataset_train, epochs=2, validation_data=dataset_train.take(2), verbose=2)
