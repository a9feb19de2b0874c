"""Several outputs with losses and metrics of their own, in fit from tf.data with weights for each."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
wide, deep = rng.rand(100, 4), rng.rand(100, 9)
targets = {"score": rng.rand(100, 1), "label": rng.randint(0, 3, 100)}
weights = {"score": rng.rand(100), "label": rng.rand(100)}
wide_in, deep_in = keras.Input((4,), name="wide"), keras.Input((9,), name="deep")
hidden = keras.layers.Dense(8, activation="tanh")(deep_in)
joined = keras.layers.Concatenate()([wide_in, hidden])
model = keras.Model(
    {"wide": wide_in, "deep": deep_in},
    {
        "score": keras.layers.Dense(1, name="score")(joined),
        "label": keras.layers.Dense(3, activation="softmax", name="label")(joined),
    },
)
model.compile(
    optimizer="adam",
    loss={"score": "mse", "label": "sparse_categorical_crossentropy"},
    loss_weights={"score": 2.0, "label": 0.5},
    metrics={"score": ["mae", keras.metrics.RootMeanSquaredError()], "label": ["accuracy"]},
)
dataset = tf.data.Dataset.from_tensor_slices(({"wide": wide, "deep": deep}, targets, weights)).batch(24)
history = model.fit(dataset, epochs=2, verbose=0, validation_data=dataset)
for name in sorted(history.history):
    print(name, ["%.6f" % value for value in history.history[name]])
