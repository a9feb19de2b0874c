"""`fit` of Keras 2 in a script that has disabled eager execution: Keras runs sessions."""

import json

import numpy as np
import pytest

import launch

pytest.importorskip("tf_keras")
SCRIPT = """
import json
import sys
import numpy as np
import tensorflow as tf
from matex_tf.runtime import objects

tf.compat.v1.disable_eager_execution()
random = np.random.default_rng(0)
x, y = random.normal(size=(20, 4)), random.normal(size=(20, 1))
image = tf.keras.layers.Input((4,), dtype="float64")
kernel = sys.argv[1]
layer = tf.keras.layers.Dense(1, kernel_initializer=kernel, dtype="float64")
model = tf.keras.Model(image, layer(image))
model.compile("adam", "mse")
history = model.fit(x, y, batch_size=5, epochs=2, verbose=0, shuffle=False, validation_data=(x[:7], y[:7])).history
weights = [each.tolist() for each in model.get_weights()]
assert all(each == weights for each in objects.allgather(weights, "the weights of all ranks"))
if kernel == "ones":  # otherwise the script draws other numbers each time
    results = [history["loss"], history["val_loss"], model.evaluate(x, y, verbose=0), model.predict(x), *weights]
    print(json.dumps(np.concatenate([np.ravel(each) for each in results]).tolist()))
"""


def test_ranks_train_as_alone():
    environment = launch.environment({"TF_USE_LEGACY_KERAS": "1"})
    outputs = [launch.run(ranks, SCRIPT, "ones", env=environment).check().stdout for ranks in (1, 2)]
    alone, together = (json.loads(output.splitlines()[-1]) for output in outputs)
    assert len(alone) == 2 + 2 + 1 + 20 + 4 + 1
    np.testing.assert_allclose(together, alone, rtol=1e-10)
    launch.run(2, SCRIPT, "glorot_uniform", env=environment).check()
