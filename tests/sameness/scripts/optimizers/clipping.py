"""clipnorm, global_clipnorm, clipvalue and weight decay in the optimizer."""

import keras
import numpy as np

rng = np.random.RandomState(0)
x, y = rng.randn(60, 5) * 4, rng.randn(60, 1) * 10
models, losses = [], {}
for options in (dict(clipnorm=0.5), dict(global_clipnorm=1.0), dict(clipvalue=0.05), dict(weight_decay=0.01)):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, **options), "mse")
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    print(options, "%.6f" % history.history["loss"][-1])
    models.append(model)
