"""Imbalanced classes: class_weight in one fit, sample_weight in another."""

import keras
import numpy as np

rng = np.random.RandomState(3)
features = rng.randn(201, 6).astype("float32")
targets = (features[:, 0] + 0.3 * rng.randn(201) > 1.0).astype("uint8")[:, None]
counts = np.bincount(targets[:, 0])
print(
    f"Number of positive samples in training data: {counts[1]} ({100 * float(counts[1]) / len(targets):.2f}% of total)"
)
class_weight = {0: 1.0 / counts[0], 1: 1.0 / counts[1]}


def build():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss="binary_crossentropy",
        metrics=[keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall")],
        weighted_metrics=["accuracy"],
    )
    return model


first = build()
by_class = first.fit(features, targets, batch_size=64, epochs=2, verbose=2, class_weight=class_weight)

second = build()
weight = np.where(targets[:, 0] == 1, 4.0, 0.5)
weight[:30] = 0.0
by_sample = second.fit(
    features,
    targets,
    sample_weight=weight,
    batch_size=64,
    epochs=2,
    verbose=2,
    validation_data=(features[:40], targets[:40], weight[:40]),
)
