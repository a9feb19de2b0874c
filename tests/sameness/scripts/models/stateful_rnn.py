"""A stateful RNN with a fixed batch size."""

import keras
import numpy as np

series = np.sin(np.arange(200) / 5.0)
x = np.stack([series[i : i + 4] for i in range(160)])[:, :, None]
y = np.stack([series[i + 4] for i in range(160)])[:, None]
model = keras.Sequential(
    [keras.Input(batch_shape=(32, 4, 1)), keras.layers.SimpleRNN(6, stateful=True), keras.layers.Dense(1)]
)
model.compile("adam", "mse")
losses = []
for epoch in range(2):
    history = model.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
    for layer in model.layers:
        if getattr(layer, "stateful", False):
            layer.reset_states() if hasattr(layer, "reset_states") else layer.reset_state()
    losses.append(history.history["loss"][0])
print("losses", losses)
