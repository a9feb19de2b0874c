"""Train, save, load, go on; weights and whole model, and a checkpoint callback."""

import os

import keras
import numpy as np

rng = np.random.RandomState(0)
x, y = rng.rand(96, 6), rng.rand(96, 1)


def create_model():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return model


model = create_model()
os.makedirs("training_1", exist_ok=True)
callback = keras.callbacks.ModelCheckpoint("training_1/cp.weights.h5", save_weights_only=True, verbose=1)
history = model.fit(x, y, epochs=2, batch_size=32, callbacks=[callback], verbose=0)
print(sorted(os.listdir("training_1")))

fresh = create_model()
fresh.load_weights("training_1/cp.weights.h5")
print("restored: {:.6f}".format(fresh.evaluate(x, y, verbose=0)[0]))
model.save("my_model.keras")
reloaded = keras.models.load_model("my_model.keras")
again = reloaded.fit(x, y, epochs=2, batch_size=32, verbose=2)
print("equal:", bool(np.allclose(model.predict(x, verbose=0), fresh.predict(x, verbose=0))))
