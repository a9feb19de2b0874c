"""`fit` of Keras 2 in a script that has disabled eager execution: Keras runs sessions."""

import corpus_run
import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
random = np.random.default_rng(0)
x, y = random.normal(size=(20, 4)), random.normal(size=(20, 1))
results = {}
for kernel in ("ones", "glorot_uniform"):
    image = tf.keras.layers.Input((4,), dtype="float64")
    layer = tf.keras.layers.Dense(1, kernel_initializer=kernel, dtype="float64")
    model = tf.keras.Model(image, layer(image))
    model.compile("adam", "mse")
    part = (x[:7], y[:7])
    history = model.fit(x, y, batch_size=5, epochs=2, verbose=0, shuffle=False, validation_data=part).history
    if kernel == "ones":  # otherwise the script draws other numbers each time
        found = [history["loss"], history["val_loss"], model.evaluate(x, y, verbose=0), model.predict(x)]
        results |= {f"{kernel} {place}": array for place, array in enumerate([*found, *model.get_weights()])}
    if corpus_run.has_ranks():
        from matex_tf.runtime import objects

        weights = [each.tolist() for each in model.get_weights()]
        everywhere = objects.allgather(weights, "the weights of all ranks")
        corpus_run.expect(all(each == weights for each in everywhere), f"{kernel}: ranks have other weights")
